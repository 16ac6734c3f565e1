//! IP families and cluster IPs of services: how `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` fill each
//! other in, and what they may hold. Pure.

use super::{EXTERNAL_NAME, cluster_ips, families, is_headless, policy, service_type};
use crate::shared::{
    net::{check_legacy_ip, is_ipv4, is_ipv6},
    value::{Fields, drop_field, ensure_object, put},
};
use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::Value;

/// `IPv4`
pub const V4: &str = "IPv4";
/// `IPv6`
pub const V6: &str = "IPv6";
const SINGLE: &str = "SingleStack";
const PREFER_DUAL: &str = "PreferDualStack";
const REQUIRE_DUAL: &str = "RequireDualStack";

/// The families the cluster's service CIDRs offer, the default one first.
#[derive(Clone, Debug)]
pub struct Configured(pub Vec<&'static str>);

impl Configured {
    /// From the configured CIDRs.
    pub fn from_cidrs(cidrs: &[String]) -> Self {
        let mut all = vec![];
        for c in cidrs {
            let family = if c.contains(':') { V6 } else { V4 };
            if !all.contains(&family) {
                all.push(family);
            }
        }
        Configured(if all.is_empty() { vec![V4] } else { all })
    }

    fn primary(&self) -> &'static str {
        self.0.first().copied().unwrap_or(V4)
    }
}

/// The family of an address.
pub fn family_of(ip: &str) -> &'static str {
    if is_ipv4(ip) {
        V4
    } else if is_ipv6(ip) {
        V6
    } else {
        "unknown"
    }
}

fn spec() -> Path {
    Path::new("spec")
}

fn owned(list: &[&str]) -> Vec<Value> {
    list.iter().map(|s| Value::from(*s)).collect()
}

/// Whether two services have the same cluster IPs.
pub fn same_ips(a: &Value, b: &Value) -> bool {
    cluster_ips(a) == cluster_ips(b)
}

/// Whether two services have the same families.
pub fn same_families(a: &Value, b: &Value) -> bool {
    families(a) == families(b)
}

/// Sets `clusterIPs` from `clusterIP` for clients that set only the latter.
pub fn normalize(new: &mut Value, old: Option<&Value>) {
    let ip = new.at("spec").text("clusterIP").to_owned();
    let many = cluster_ips(new).len();
    let Some(old) = old else {
        if !ip.is_empty() && many == 0 {
            put(ensure_object(new, "spec"), "clusterIPs", vec![Value::from(ip)]);
        }
        return;
    };
    let old_ip = old.at("spec").text("clusterIP");
    if many == 0 && !cluster_ips(old).is_empty() && old_ip == ip {
        let ips = old.at("spec").at("clusterIPs").clone();
        put(ensure_object(new, "spec"), "clusterIPs", ips);
    }
    if old_ip != ip && same_ips(old, new) {
        let spec = ensure_object(new, "spec");
        if ip.is_empty() {
            drop_field(spec, "clusterIPs");
        } else {
            put(spec, "clusterIPs", vec![Value::from(ip)]);
        }
    }
}

/// Completes a service that was stored before it could have addresses of two families. Families of one without an address depend on
/// the cluster's, and are decided with the next write. Source: `defaultOnRead` of upstream's storage of services.
pub fn complete_stored(service: &mut Value) {
    if service.at("spec").text("clusterIP").is_empty() || service_type(service) == EXTERNAL_NAME {
        return;
    }
    normalize(service, None);
    if is_headless(service) || !families(service).is_empty() {
        return;
    }
    let all: Vec<&str> = cluster_ips(service).into_iter().map(family_of).collect();
    let policy = if all.len() == 1 { SINGLE } else { REQUIRE_DUAL };
    let all = owned(&all);
    let spec = ensure_object(service, "spec");
    put(spec, "ipFamilies", all);
    put(spec, "ipFamilyPolicy", policy);
}

/// Whether an update leaves a `PreferDualStack` service's addresses alone; then it is not upgraded behind its back.
pub fn keeps_preferred(new: &Value, old: Option<&Value>) -> bool {
    let Some(old) = old else { return false };
    policy(new) == PREFER_DUAL
        && (policy(old) == PREFER_DUAL || policy(old).is_empty())
        && service_type(old) == service_type(new)
        && ["ClusterIP", "NodePort", "LoadBalancer"].contains(&service_type(new))
        && same_ips(old, new)
        && same_families(old, new)
}

fn default_policy(new: &mut Value, old: Option<&Value>) {
    if new.at("spec").has("ipFamilyPolicy") {
        return;
    }
    let inherited = old.map(policy).filter(|p| !p.is_empty());
    let chosen = match inherited {
        Some(p) => p,
        None if selectorless_headless(new) => REQUIRE_DUAL,
        None => SINGLE,
    };
    let chosen = chosen.to_owned();
    put(ensure_object(new, "spec"), "ipFamilyPolicy", chosen);
}

fn selectorless_headless(svc: &Value) -> bool {
    let spec = svc.at("spec");
    spec.text("clusterIP") == "None" && spec.map("selector").is_none_or(|m| m.is_empty())
}

fn truncate(svc: &mut Value, key: &str) {
    if let Some(Value::Array(list)) = ensure_object(svc, "spec").get_mut(key) {
        list.truncate(1);
    }
}

fn push_family(svc: &mut Value, family: &str) {
    let spec = ensure_object(svc, "spec");
    let mut all = spec.list("ipFamilies").to_vec();
    all.push(family.into());
    put(spec, "ipFamilies", all);
}

/// On an update, releases the second address and family where the policy says so, or reports an error.
fn downgrade(new: &mut Value, old: &Value, errs: &mut ErrorList) {
    if policy(new) == SINGLE {
        if same_ips(old, new) {
            truncate(new, "clusterIPs");
        }
        if same_families(old, new) {
            truncate(new, "ipFamilies");
        }
        return;
    }
    let reduced = |n: usize, o: usize| n != 0 && n < o;
    let path = spec().child("ipFamilyPolicy");
    let mut bad = |what: &str| {
        let text = format!("must be 'SingleStack' to release the secondary {what}");
        errs.push(Error::invalid(&path, policy(new), text));
    };
    if reduced(cluster_ips(new).len(), cluster_ips(old).len()) {
        bad("cluster IP");
    }
    if reduced(families(new).len(), families(old).len()) {
        bad("IP family");
    }
}

/// Every address needs a family; missing ones follow from the addresses.
fn infer(new: &mut Value, configured: &Configured, errs: &mut ErrorList) {
    let path = spec().child("ipFamilyPolicy");
    if policy(new) == SINGLE {
        let mut bad = |what: &str| {
            let text =
                format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            errs.push(Error::invalid(&path, SINGLE, text));
        };
        if cluster_ips(new).len() == 2 {
            bad("cluster IPs");
        }
        if families(new).len() == 2 {
            bad("IP families");
        }
    }
    let ips: Vec<String> = cluster_ips(new).into_iter().map(str::to_owned).collect();
    for (i, ip) in ips.iter().enumerate().take_while(|(_, ip)| *ip != "None") {
        if i < families(new).len() {
            continue;
        }
        let family = family_of(ip);
        if configured.0.contains(&family) {
            push_family(new, family);
        } else {
            let text = format!("{family} is not configured on this cluster");
            errs.push(Error::invalid(&spec().child("clusterIPs").index(i), ips.clone(), text));
        }
    }
}

fn other(family: &str) -> &'static str {
    if family == V4 { V6 } else { V4 }
}

fn complete(new: &mut Value, configured: &Configured) {
    if families(new).is_empty() {
        push_family(new, configured.primary());
    }
    let all = families(new);
    let may_extend = selectorless_headless(new) || configured.0.len() == 2;
    if all.len() == 1 && policy(new) != SINGLE && may_extend {
        let second = other(all[0]);
        push_family(new, second);
    }
}

/// Fills in `ipFamilyPolicy` and `ipFamilies`.
///
/// # Errors
/// Upstream's field errors, when the fields contradict each other or the cluster's configuration.
pub fn init(new: &mut Value, old: Option<&Value>, configured: &Configured) -> Result<(), ErrorList> {
    if service_type(new) == EXTERNAL_NAME || keeps_preferred(new, old) {
        return Ok(());
    }
    default_policy(new, old);
    let errors = check(new, old);
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut errs = vec![];
    if let Some(old) = old {
        downgrade(new, old, &mut errs);
    }
    infer(new, configured, &mut errs);
    if !errs.is_empty() {
        return Err(errs);
    }
    if !selectorless_headless(new) {
        if policy(new) == REQUIRE_DUAL && configured.0.len() < 2 {
            let text = "this cluster is not configured for dual-stack services";
            errs.push(Error::invalid(&spec().child("ipFamilyPolicy"), REQUIRE_DUAL, text));
        }
        for (i, f) in families(new).into_iter().enumerate() {
            if !configured.0.contains(&f) {
                let path = spec().child("ipFamilies").index(i);
                errs.push(Error::invalid(&path, f, "not configured on this cluster"));
            }
        }
        if !errs.is_empty() {
            return Err(errs);
        }
    }
    complete(new, configured);
    Ok(())
}

fn check_lists(svc: &Value, errs: &mut ErrorList) {
    let (ips, path) = (cluster_ips(svc), spec().child("clusterIPs"));
    let single = svc.at("spec").text("clusterIP");
    if single.is_empty() {
        if !ips.is_empty() {
            errs.push(Error::invalid(&path, owned(&ips), "must be empty when `clusterIP` is not specified"));
        }
    } else if ips.is_empty() {
        errs.push(Error::required(&path, ""));
    } else if ips[0] != single {
        errs.push(Error::invalid(&path, owned(&ips), "first value must match `clusterIP`"));
    }
    let all = families(svc);
    for (i, f) in all.iter().enumerate() {
        let at = spec().child("ipFamilies").index(i);
        if ![V4, V6].contains(f) {
            errs.push(Error::not_supported(&at, *f, &[V4, V6]));
        }
        if all[..i].contains(f) {
            errs.push(Error::duplicate(&at, *f));
        }
    }
    if let Some(p) = svc.at("spec").opt_text("ipFamilyPolicy")
        && ![SINGLE, PREFER_DUAL, REQUIRE_DUAL].contains(&p)
    {
        let valid = [PREFER_DUAL, REQUIRE_DUAL, SINGLE];
        errs.push(Error::not_supported(&spec().child("ipFamilyPolicy"), p, &valid));
    }
}

/// Checks the four fields against each other.
pub fn check(svc: &Value, old: Option<&Value>) -> ErrorList {
    let mut errs = vec![];
    if service_type(svc) == EXTERNAL_NAME {
        return errs;
    }
    check_lists(svc, &mut errs);
    let (ips, path) = (cluster_ips(svc), spec().child("clusterIPs"));
    let known = old.map(cluster_ips).unwrap_or_default();
    let mut bad_ips = false;
    for (i, ip) in ips.iter().enumerate() {
        let found = if i == 0 && *ip == "None" {
            let text = "'None' must be the first and only value";
            if ips.len() > 1 { vec![Error::invalid(&path, owned(&ips), text)] } else { vec![] }
        } else {
            check_legacy_ip(&path.index(i), ip, &known)
        };
        bad_ips |= !found.is_empty();
        errs.extend(found);
    }
    if ips.len() > 2 {
        errs.push(Error::invalid(&path, owned(&ips), "may only hold up to 2 values"));
    }
    if bad_ips {
        return errs;
    }
    let v6 = ips.iter().filter(|ip| is_ipv6(ip)).count();
    if ips.len() > 1 && (v6 == 0 || v6 == ips.len()) {
        let text = "may specify no more than one IP for each IP family";
        errs.push(Error::invalid(&path, owned(&ips), text));
    }
    if !is_headless(svc) {
        for (i, (ip, family)) in ips.iter().zip(families(svc)).enumerate() {
            let wrong = (family == V4 && is_ipv6(ip)) || (family == V6 && !is_ipv6(ip));
            if wrong {
                let text = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
                errs.push(Error::invalid(&path.index(i), *ip, text));
            }
        }
    }
    errs
}

/// What an update may not do to cluster IPs and families.
pub fn check_transition(new: &Value, old: &Value) -> ErrorList {
    let mut errs = vec![];
    if service_type(new) == EXTERNAL_NAME || service_type(old) == EXTERNAL_NAME {
        return errs;
    }
    if !(is_headless(new) && is_headless(old)) {
        changed(&mut errs, "clusterIPs", new, old, cluster_ips);
    }
    if !is_headless(new) && !is_headless(old) {
        changed(&mut errs, "ipFamilies", new, old, families);
    }
    errs
}

fn changed(
    errs: &mut ErrorList,
    field: &str,
    new: &Value,
    old: &Value,
    list: for<'a> fn(&'a Value) -> Vec<&'a str>,
) {
    const ONCE: &str = "may not change once set";
    let (n, o, path) = (list(new), list(old), spec().child(field));
    let ips = field == "clusterIPs";
    let what = if ips { "clusterIP" } else { "ipFamily" };
    // Upstream shows the cluster IPs where a family changed together with the number of families.
    let shown = owned(&if ips { n.clone() } else { cluster_ips(new) });
    if n.len() == o.len() {
        for (i, (a, b)) in n.iter().zip(&o).enumerate() {
            if a != b {
                errs.push(Error::invalid(&path.index(if ips { i } else { 0 }), owned(&n), ONCE));
            }
        }
        return;
    }
    if n.len() < o.len() && cluster_ips(new).is_empty() {
        errs.push(Error::invalid(&path.index(0), owned(&n), format!("primary {what} can not be unset")));
    }
    if let (Some(a), Some(b)) = (n.first(), o.first())
        && a != b
    {
        errs.push(Error::invalid(&path.index(0), shown, ONCE));
    }
    if n.len() < o.len() && n.len() == 1 && policy(new) != SINGLE {
        let text = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        errs.push(Error::invalid(
            &spec().child("ipFamilyPolicy"),
            new.at("spec").at("ipFamilyPolicy").clone(),
            text,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::show;
    use expect_test::expect;
    use serde_json::json;

    fn run(cidrs: &[&str], spec: Value) -> String {
        let cidrs: Vec<String> = cidrs.iter().map(|s| (*s).to_owned()).collect();
        let mut svc = json!({"spec": spec});
        normalize(&mut svc, None);
        match init(&mut svc, None, &Configured::from_cidrs(&cidrs)) {
            Ok(()) => format!("{} {:?} {:?}", policy(&svc), families(&svc), cluster_ips(&svc)),
            Err(e) => show(&e),
        }
    }

    fn completed(spec: Value) -> Value {
        let mut service = json!({"metadata": {"name": "s"}, "spec": spec});
        complete_stored(&mut service);
        service["spec"].take()
    }

    #[test]
    fn a_stored_service_of_one_address_gets_its_list_and_family() {
        assert_eq!(
            completed(json!({"clusterIP": "10.0.0.1"})),
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack"})
        );
        assert_eq!(
            completed(json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1", "10.0.0.1"]})),
            json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1", "10.0.0.1"], "ipFamilies": ["IPv6", "IPv4"],
                "ipFamilyPolicy": "RequireDualStack"})
        );
        let headless = json!({"clusterIP": "None", "clusterIPs": ["None"]});
        assert_eq!(completed(json!({"clusterIP": "None"})), headless);
    }

    #[test]
    fn what_a_stored_service_has_stays() {
        let preferred = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "PreferDualStack"});
        let external = json!({"type": "ExternalName", "clusterIP": "10.0.0.1"});
        for spec in [preferred, external, json!({"type": "ClusterIP"})] {
            assert_eq!(completed(spec.clone()), spec);
        }
    }

    #[test]
    fn families_follow() {
        let (one, two) = (["10.96.0.0/12"], ["10.96.0.0/12", "fd00::/108"]);
        let all = [
            run(&one, json!({"type": "ClusterIP"})),
            run(&one, json!({"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"})),
            run(&one, json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack"})),
            run(&one, json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]})),
            run(&one, json!({"type": "ClusterIP", "clusterIP": "fd00::1"})),
            run(&one, json!({"type": "ClusterIP", "clusterIP": "None"})),
            run(&one, json!({"type": "ClusterIP", "clusterIP": "None", "selector": {"a": "b"}})),
            run(&two, json!({"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"})),
            run(&two, json!({"type": "ClusterIP", "clusterIP": "fd00::1"})),
            run(&two, json!({"type": "ClusterIP", "ipFamilies": ["IPv6", "IPv4"]})),
            run(&two, json!({"type": "ExternalName"})),
        ];
        expect![[r#"
            SingleStack ["IPv4"] []
            PreferDualStack ["IPv4"] []
            spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services
            spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster
            spec.clusterIPs[0]: Invalid value: ["fd00::1"]: IPv6 is not configured on this cluster
            RequireDualStack ["IPv4", "IPv6"] ["None"]
            SingleStack ["IPv4"] ["None"]
            PreferDualStack ["IPv4", "IPv6"] []
            SingleStack ["IPv6"] ["fd00::1"]
            spec.ipFamilyPolicy: Invalid value: "SingleStack": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified
             [] []"#]]
        .assert_eq(&all.join("\n"));
    }

    #[test]
    fn rejects_contradicting_families() {
        let svc = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.2", "10.0.0.3"],
            "ipFamilies": ["IPv6", "IPv6", "x"], "ipFamilyPolicy": "y"}});
        expect![[r#"
            spec.clusterIPs: Invalid value: ["10.0.0.2","10.0.0.3"]: first value must match `clusterIP`
            spec.ipFamilies[1]: Duplicate value: "IPv6"
            spec.ipFamilies[2]: Unsupported value: "x": supported values: "IPv4", "IPv6"
            spec.ipFamilyPolicy: Unsupported value: "y": supported values: "PreferDualStack", "RequireDualStack", "SingleStack"
            spec.clusterIPs: Invalid value: ["10.0.0.2","10.0.0.3"]: may specify no more than one IP for each IP family
            spec.clusterIPs[0]: Invalid value: "10.0.0.2": expected an IPv6 value as indicated by `ipFamilies[0]`
            spec.clusterIPs[1]: Invalid value: "10.0.0.3": expected an IPv6 value as indicated by `ipFamilies[1]`"#]]
        .assert_eq(&show(&check(&svc, None)));
    }
}

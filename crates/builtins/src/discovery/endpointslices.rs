//! EndpointSlices.

use crate::shared::{
    check,
    net::{check_endpoint_ip, check_ip, check_legacy_ip, ip_warnings, is_ipv4, is_ipv6},
    rules,
    table::{age, name},
    value::{Fields, drop_field, list_mut},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, semantic_equal, validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "AddressType",
        "string",
        0,
        "addressType specifies the type of address carried by this EndpointSlice. All addresses in this slice must be the same type. This field is immutable after creation.",
    ),
    Column::new(
        "Ports",
        "string",
        0,
        "ports specifies the list of network ports exposed by each endpoint in this slice. Each port must have a unique name.",
    ),
    Column::new(
        "Endpoints",
        "string",
        0,
        "endpoints is a list of unique endpoints in this slice. Each slice may include a maximum of 1000 endpoints.",
    ),
    age_column(),
];

const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_ENDPOINTS: usize = 1000;
const MAX_HINTS: usize = 8;

struct EndpointSlices;

fn ports(errs: &mut ErrorList, ports: &[Value]) {
    let path = Path::new("ports");
    if ports.len() > MAX_PORTS {
        errs.push(Error::too_many(&path, ports.len(), MAX_PORTS));
        return;
    }
    let mut names = std::collections::HashSet::new();
    for (i, p) in ports.iter().enumerate() {
        let (at, name) = (path.index(i), p.text("name"));
        if !name.is_empty() {
            check::dns_label(errs, &at.child("name"), name);
        }
        if !names.insert(name) {
            errs.push(Error::duplicate(&at.child("name"), name));
        }
        match p.opt_text("protocol") {
            None => errs.push(Error::required(&at.child("protocol"), "")),
            Some(v) => check::one_of(errs, &at.child("protocol"), v, &["SCTP", "TCP", "UDP"]),
        }
        if let Some(app) = p.opt_text("appProtocol") {
            check::qualified_name(errs, &at.child("appProtocol"), app);
        }
    }
}

fn addresses(errs: &mut ErrorList, path: &Path, list: &Value, ty: &str) {
    for (i, a) in list.strings("addresses").enumerate() {
        let at = path.index(i);
        let (bad, fits, text) = match ty {
            "IPv4" => (check_legacy_ip(&at, a, &[]), is_ipv4(a), "must be an IPv4 address"),
            "IPv6" => (check_ip(&at, a), is_ipv6(a), "must be an IPv6 address"),
            "FQDN" => {
                errs.extend(validation::validate_fully_qualified_domain_name(&at, a));
                continue;
            }
            _ => continue,
        };
        if !bad.is_empty() {
            errs.extend(bad);
            continue;
        }
        if !fits {
            errs.push(Error::invalid(path, a, text));
        }
        errs.extend(check_endpoint_ip(&at, a));
    }
}

fn hints(errs: &mut ErrorList, path: &Path, hints: &Value) {
    for (field, zone) in [("forZones", true), ("forNodes", false)] {
        let (at, list) = (path.child(field), hints.list(field));
        if list.len() > MAX_HINTS {
            errs.push(Error::too_many(&at, list.len(), MAX_HINTS));
            return;
        }
        for (i, hint) in list.iter().enumerate() {
            let (at, name) = (at.index(i).child("name"), hint.text("name"));
            if list[..i].iter().any(|h| h.text("name") == name) {
                errs.push(Error::duplicate(&at, name));
            }
            let bad = if zone {
                validation::is_valid_label_value(name)
            } else {
                validation::is_dns1123_subdomain(name)
            };
            check::each(errs, &at, name, bad);
        }
    }
}

fn endpoints(object: &Value) -> ErrorList {
    let (mut errs, path, list) = (vec![], Path::new("endpoints"), object.list("endpoints"));
    if list.len() > MAX_ENDPOINTS {
        return vec![Error::too_many(&path, list.len(), MAX_ENDPOINTS)];
    }
    for (i, e) in list.iter().enumerate() {
        let at = path.index(i);
        let (to, count) = (at.child("addresses"), e.list("addresses").len());
        if count == 0 {
            errs.push(Error::required(&to, "must contain at least 1 address"));
        } else if count > MAX_ADDRESSES {
            errs.push(Error::too_many(&to, count, MAX_ADDRESSES));
        }
        addresses(&mut errs, &to, e, object.text("addressType"));
        if let Some(node) = e.opt_text("nodeName") {
            check::dns_subdomain(&mut errs, &at.child("nodeName"), node);
        }
        if let Some(host) = e.opt_text("hostname") {
            check::dns_label(&mut errs, &at.child("hostname"), host);
        }
        hints(&mut errs, &at.child("hints"), e.at("hints"));
    }
    errs
}

/// `deprecatedTopology` is read-only in v1.
fn drop_topology(new: &mut Value, old: Option<&Value>) {
    if !old.is_some_and(|o| semantic_equal(o.at("endpoints"), new.at("endpoints"))) {
        list_mut(new, "endpoints").iter_mut().for_each(|e| drop_field(e, "deprecatedTopology"));
    }
}

impl Hooks for EndpointSlices {
    fn default(&self, _version: &str, object: &mut Value) {
        for port in list_mut(object, "ports") {
            rules::default_opt_text(port, "name", "");
            rules::default_opt_text(port, "protocol", "TCP");
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        drop_topology(object, None);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        let types = ["FQDN", "IPv4", "IPv6"];
        check::required_one_of(&mut errs, &Path::new("addressType"), object.text("addressType"), &types);
        ports(&mut errs, object.list("ports"));
        errs.extend(endpoints(object));
        errs
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        drop_topology(new, Some(old));
        // Labels count as content here: consumers find a service's slices by them.
        let labels = |v: &Value| v.at("metadata").at("labels").clone();
        if !semantic_equal(&labels(new), &labels(old)) {
            object::set_at(new, &["metadata", "generation"], object::generation(old) + 1);
        }
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        let types = ["FQDN", "IPv4", "IPv6"];
        check::required_one_of(&mut errs, &Path::new("addressType"), new.text("addressType"), &types);
        ports(&mut errs, new.list("ports"));
        // What was accepted before stays acceptable.
        if !semantic_equal(new.at("endpoints"), old.at("endpoints")) {
            errs.extend(endpoints(new));
        }
        check::immutable(&mut errs, &Path::new("addressType"), new.at("addressType"), old.at("addressType"));
        errs
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut all = vec![];
        if old.is_none() && new.text("addressType") == "FQDN" {
            all.push("spec.addressType: FQDN endpoints are deprecated".into());
        }
        let by = object::label(new, "endpointslice.kubernetes.io/managed-by").unwrap_or("");
        if ["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"].contains(&by) {
            return all;
        }
        for (i, e) in new.list("endpoints").iter().enumerate() {
            let path = Path::new("endpoints").index(i).child("addresses");
            for (j, a) in e.strings("addresses").enumerate() {
                all.extend(ip_warnings(&path.index(j), a));
            }
        }
        all
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let ports = object.list("ports").iter().map(|p| match p.opt_int("port") {
            Some(n) => n.to_string(),
            None => p.opt_text("name").unwrap_or("*").to_owned(),
        });
        let ports = limited(ports);
        let endpoints =
            limited(object.list("endpoints").iter().flat_map(|e| e.strings("addresses")).map(str::to_owned));
        vec![
            name(object),
            object.text("addressType").into(),
            ports.into(),
            endpoints.into(),
            age(object, now),
        ]
    }
}

/// Up to three, and how many more there are; `<unset>` for none.
fn limited(all: impl Iterator<Item = String>) -> String {
    const MAX: usize = 3;
    let all: Vec<String> = all.collect();
    if all.len() > MAX {
        return format!("{} + {} more...", all[..MAX].join(","), all.len() - MAX);
    }
    let text = all.join(",");
    if text.is_empty() { "<unset>".into() } else { text }
}

/// The definition of EndpointSlices.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "discovery.k8s.io",
        "v1",
        "EndpointSlice",
        "endpointslices",
        Scope::Namespaced,
        COLUMNS,
        EndpointSlices,
    )
    .with_generation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rules() {
        let bad = json!({"addressType": "IPv4", "ports": [{"port": 1}, {"port": 2}],
            "endpoints": [{"addresses": []}, {"addresses": ["fd00::1", "127.0.0.1", "x"]}]});
        expect![[r#"
            ports[1].name: Duplicate value: ""
            endpoints[0].addresses: Required value: must contain at least 1 address
            endpoints[1].addresses: Invalid value: "fd00::1": must be an IPv4 address
            endpoints[1].addresses[1]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)
            endpoints[1].addresses[2]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#]]
        .assert_eq(&create_errors(&def(), bad));
        assert_eq!(
            update_errors(&def(), "", json!({"addressType": "IPv6"}), json!({"addressType": "IPv4"})),
            "addressType: Invalid value: \"IPv6\": field is immutable"
        );
    }

    #[test]
    fn table() {
        let s = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}, {"addresses": ["10.0.0.3"]}, {"addresses": ["10.0.0.4"]}]});
        assert_eq!(row(&def(), &s), "s | IPv4 | 80 | 10.0.0.1,10.0.0.2,10.0.0.3 + 1 more... | <unknown>");
        assert_eq!(row(&def(), &json!({"metadata": {"name": "s"}})), "s |  | <unset> | <unset> | <unknown>");
    }
}

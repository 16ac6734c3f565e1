//! Updates of a pod's status.

mod claims;
mod containers;

use super::validate;
use crate::shared::{
    Fields, check,
    value::{copy_field, drop_field, ensure_object, list_mut, put},
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation::parse_ip_sloppy,
};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet, VecDeque};

/// The statuses of containers, and the list of those in the spec that may restart and be given resources.
const LISTS: [(&str, Option<&str>); 3] = [
    ("containerStatuses", Some("containers")),
    ("initContainerStatuses", Some("initContainers")),
    ("ephemeralContainerStatuses", None),
];

/// Upstream's `PrepareForUpdate` of `pods/status`.
pub fn prepare(new: &mut Value, old: &Value) {
    copy_field(new, old, "spec");
    let meta = ensure_object(new, "metadata");
    copy_field(meta, old.at("metadata"), "ownerReferences");
    copy_field(meta, old.at("metadata"), "deletionTimestamp");
    let before = old.at("status");
    let status = ensure_object(new, "status");
    if status.text("qosClass").is_empty() {
        copy_field(status, before, "qosClass");
    }
    sync_ips(status);
    if status.int("observedGeneration") == 0 && before.int("observedGeneration") != 0 {
        copy_field(status, before, "observedGeneration");
    }
    let mut generations: HashMap<&str, VecDeque<i64>> = HashMap::new();
    for c in before.list("conditions") {
        generations.entry(c.text("type")).or_default().push_back(c.int("observedGeneration"));
    }
    for c in list_mut(status, "conditions") {
        let old = generations.get_mut(c.text("type")).and_then(VecDeque::pop_front).unwrap_or(0);
        if c.int("observedGeneration") == 0 && old != 0 {
            put(c, "observedGeneration", old);
        }
    }
}

/// `podIP` is the first of `podIPs`; if a client sets both and they differ, the single one wins.
pub fn sync_ips(status: &mut Value) {
    let first = status.list("podIPs").first().map_or("", |p| p.text("ip")).to_owned();
    let single = status.text("podIP").to_owned();
    if !single.is_empty() && single != first {
        put(status, "podIPs", json!([{"ip": single}]));
    } else if single.is_empty() && !first.is_empty() {
        put(status, "podIP", first);
    } else if single.is_empty() {
        drop_field(status, "podIP");
    }
}

/// Upstream's `ValidatePodStatusUpdate`, without ObjectMeta.
pub fn validate(errs: &mut ErrorList, new: &Value, old: &Value) {
    let path = Path::new("metadata").child("annotations");
    validate::annotations::update(errs, &path, new.at("metadata"), old.at("metadata"));
    validate::annotations::annotations(errs, &path, new.at("metadata"), new.at("spec"));
    let path = Path::new("status");
    let (n, o) = (new.at("status"), old.at("status"));
    for (i, c) in n.list("conditions").iter().enumerate() {
        let path = path.child("conditions").index(i);
        if c.int("observedGeneration") < 0 {
            let at = path.child("observedGeneration");
            errs.push(Error::invalid(&at, c.int("observedGeneration"), "must be a non-negative integer"));
        }
        if !matches!(c.text("type"), "PodScheduled" | "Ready" | "Initialized") {
            check::qualified_name(errs, &path.child("Type"), c.text("type"));
        }
    }
    let nominated = n.text("nominatedNodeName");
    if nominated != o.text("nominatedNodeName") && !nominated.is_empty() {
        let at = path.child("nominatedNodeName");
        check::dns_subdomain(errs, &at, nominated);
        if !old.at("spec").text("nodeName").is_empty() {
            errs.push(Error::forbidden(&at, "may not be set on pods that are already bound to a node"));
        }
    }
    if n.int("observedGeneration") < 0 {
        let at = path.child("observedGeneration");
        errs.push(Error::invalid(&at, n.int("observedGeneration"), "must be a non-negative integer"));
    }
    if n.text("qosClass") != o.text("qosClass") {
        errs.push(Error::invalid(&path.child("qosClass"), n.text("qosClass"), check::IMMUTABLE));
    }
    transitions(errs, &path, n, o, old.at("spec"));
    claims::of_the_pod(errs, &path.child("resourceClaimStatuses"), n, new.at("spec"));
    claims::of_extended_resources(errs, &path, n, new.at("spec"));
    ips(errs, &path.child("podIPs"), n.list("podIPs"), o.list("podIPs"));
    let hosts = n.list("hostIPs");
    if let Some(first) = hosts.first()
        && first.text("ip") != n.text("hostIP")
    {
        let at = path.child("hostIPs").index(0).child("ip");
        errs.push(Error::invalid(&at, first.text("ip"), "must be equal to `hostIP`"));
    }
    ips(errs, &path.child("hostIPs"), hosts, o.list("hostIPs"));
    containers::validate(errs, &path, n, new.at("spec"));
}

fn ips(errs: &mut ErrorList, path: &Path, new: &[Value], old: &[Value]) {
    let known: Vec<&str> = old.iter().map(|i| i.text("ip")).collect();
    for (i, ip) in new.iter().enumerate() {
        check::ip(errs, &path.index(i), ip.text("ip"), &known);
    }
    if new.len() < 2 {
        return;
    }
    if let Some((i, ip)) =
        new.iter().map(|ip| ip.text("ip")).enumerate().find(|(_, ip)| parse_ip_sloppy(ip).is_none())
    {
        let text = format!("failed to check for dual stack with error:invalid IP[{i}]: {ip}");
        errs.push(Error::internal(path, &text));
    }
    let families: HashSet<bool> =
        new.iter().filter_map(|i| parse_ip_sloppy(i.text("ip"))).map(|a| a.is_ipv6()).collect();
    if families.len() != 2 || new.len() > 2 {
        // Internally, a host's addresses are of a type like a pod's.
        let (ty, list) = ("io.k8s.api.core.v1.PodIP", Value::from(new.to_vec()));
        let text = "may specify no more than one IP for each IP family";
        errs.push(check::invalid_struct(path, ty, &list, text));
    }
}

/// A terminated container stays terminated, unless its restart policy restarts it.
fn transitions(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value, spec: &Value) {
    let all_may_restart = ["initContainers", "containers"]
        .iter()
        .flat_map(|l| spec.list(l))
        .any(|c| c.list("restartPolicyRules").iter().any(|r| r.text("action") == "RestartAllContainers"));
    for (statuses, list) in LISTS {
        if list.is_some() && all_may_restart {
            continue;
        }
        for (i, o) in old.list(statuses).iter().enumerate() {
            let name = o.text("name");
            let Some(ended) = o.at("state").get_field("terminated") else { continue };
            let lives = new
                .list(statuses)
                .iter()
                .find(|n| n.text("name") == name && !n.at("state").has("terminated"));
            if lives.is_none() {
                continue;
            }
            let container = list.and_then(|l| spec.list(l).iter().find(|c| c.text("name") == name));
            if !container.is_some_and(|c| restarts(c, spec, ended.int("exitCode"))) {
                let path = path.child(statuses).index(i).child("state");
                errs.push(Error::forbidden(&path, "may not be transitioned to non-terminated state"));
            }
        }
    }
}

/// Whether a container is restarted after it ended with a code.
pub fn restarts(container: &Value, spec: &Value, code: i64) -> bool {
    let by_policy = |p: &str| match p {
        "OnFailure" => Some(code != 0),
        "Never" => Some(false),
        "Always" => Some(true),
        _ => None,
    };
    if let Some(policy) = container.opt_text("restartPolicy") {
        let rule = container.list("restartPolicyRules").iter().find(|r| {
            let codes = r.at("exitCodes");
            let named = codes.list("values").iter().any(|v| v.as_i64() == Some(code));
            match codes.text("operator") {
                "In" => named,
                "NotIn" => !named,
                _ => false,
            }
        });
        if rule.is_some_and(|r| matches!(r.text("action"), "Restart" | "RestartAllContainers")) {
            return true;
        }
        if let Some(answer) = by_policy(policy) {
            return answer;
        }
    }
    by_policy(spec.text("restartPolicy")).unwrap_or(true)
}

//! Resource arithmetic of pod specs: sums over containers, pod-level defaults, QoS class, and the names of resources.

use super::is_sidecar;
use crate::shared::{Fields, check::quantity, value::ensure_object};
use kaji_meta::Quantity;
use kaji_quota::names::{is_hugepages, is_native};
use serde_json::Value;
use std::collections::BTreeMap;

/// Quantities by resource name.
pub type Resources = BTreeMap<String, Quantity>;

/// Whether limits may exceed requests.
pub fn is_overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_hugepages(name)
}

/// Whether a pod as a whole may name the resource.
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_hugepages(name)
}

fn add(to: &mut Resources, list: &Value) {
    for (name, q) in list.as_object().into_iter().flatten() {
        let Some(q) = quantity(q) else { continue };
        match to.get_mut(name) {
            Some(sum) => *sum = sum.add(&q),
            None => {
                to.insert(name.clone(), q);
            }
        }
    }
}

fn add_all(to: &mut Resources, other: &Resources) {
    for (name, q) in other {
        match to.get_mut(name) {
            Some(sum) => *sum = sum.add(q),
            None => {
                to.insert(name.clone(), q.clone());
            }
        }
    }
}

fn max(to: &mut Resources, other: &Resources) {
    for (name, q) in other {
        if to.get(name).is_none_or(|have| q > have) {
            to.insert(name.clone(), q.clone());
        }
    }
}

/// What the containers of a pod need together: the sum of containers and sidecars, or what the init containers need
/// at their peak, whichever is more. `what` is `requests` or `limits`.
pub fn aggregate(spec: &Value, what: &str) -> Resources {
    let list = |c: &'_ Value| -> Value { c.at("resources").at(what).clone() };
    let mut total = Resources::new();
    for c in spec.list("containers") {
        add(&mut total, &list(c));
    }
    let (mut sidecars, mut init) = (Resources::new(), Resources::new());
    for c in spec.list("initContainers") {
        let own = list(c);
        if is_sidecar(c) {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            max(&mut init, &sidecars);
        } else {
            let mut peak = Resources::new();
            add(&mut peak, &own);
            add_all(&mut peak, &sidecars);
            max(&mut init, &peak);
        }
    }
    max(&mut total, &init);
    total
}

/// Defaults `spec.resources` of a pod that sets part of it (KEP-2837).
pub fn default_pod_level(spec: &mut Value) {
    let count = |spec: &Value, what| spec.at("resources").map(what).map_or(0, |m| m.len());
    if !spec.has("resources") || count(spec, "limits") + count(spec, "requests") == 0 {
        return;
    }
    let mut fill = |what: &str, values: Vec<(String, Value)>| {
        if !values.is_empty() {
            let list = ensure_object(ensure_object(spec, "resources"), what);
            for (name, q) in values {
                crate::shared::value::set_default(list, &name, || q);
            }
        }
        spec.clone()
    };
    let now = fill("limits", vec![]);
    let limits = aggregate(&now, "limits")
        .into_iter()
        .filter(|(n, _)| is_hugepages(n) && !now.at("resources").at("requests").has(n))
        .map(|(n, q)| (n, q.to_string().into()))
        .collect();
    let now = fill("limits", limits);
    if now.at("resources").map("limits").is_none_or(|l| l.is_empty()) {
        return;
    }
    let requests = aggregate(&now, "requests")
        .into_iter()
        .filter(|(n, _)| matches!(n.as_str(), "cpu" | "memory"))
        .map(|(n, q)| (n, q.to_string().into()))
        .collect();
    let now = fill("requests", requests);
    let limits = now.at("resources").map("limits").into_iter().flatten();
    fill("requests", limits.filter(|(n, _)| is_pod_level(n)).map(|(n, q)| (n.clone(), q.clone())).collect());
}

fn positive_cpu_memory(list: &Value) -> impl Iterator<Item = (&str, Quantity)> {
    ["cpu", "memory"].into_iter().filter_map(move |n| {
        let q = quantity(list.at(n))?;
        (q.sign() > 0).then_some((n, q))
    })
}

/// The QoS class of a pod spec: `Guaranteed` if every container limits cpu and memory and requests as much,
/// `BestEffort` if none names either, else `Burstable`. Pod-level resources decide alone where they are given.
pub fn qos_class(spec: &Value) -> &'static str {
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut guaranteed = true;
    let mut count = |resources: &Value, need_limits: bool| {
        for (sum, list) in [(&mut requests, "requests"), (&mut limits, "limits")] {
            for (name, q) in positive_cpu_memory(resources.at(list)) {
                let total = match sum.get(name) {
                    Some(have) => q.add(have),
                    None => q,
                };
                sum.insert(name.to_owned(), total);
            }
        }
        if need_limits && positive_cpu_memory(resources.at("limits")).count() < 2 {
            guaranteed = false;
        }
    };
    if spec.has("resources") {
        let resources = spec.at("resources");
        count(resources, resources.map("limits").is_some_and(|l| !l.is_empty()));
    } else {
        for c in spec.list("containers").iter().chain(spec.list("initContainers")) {
            count(c.at("resources"), true);
        }
    }
    if requests.is_empty() && limits.is_empty() {
        return "BestEffort";
    }
    let equal = requests.len() == limits.len()
        && requests.iter().all(|(n, q): (_, &Quantity)| limits.get(n) == Some(q));
    if guaranteed && equal { "Guaranteed" } else { "Burstable" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(resources: Value) -> Value {
        json!({"containers": [{"name": "a", "resources": resources}]})
    }

    #[test]
    fn computes_the_qos_class() {
        assert_eq!(qos_class(&with(json!({}))), "BestEffort");
        let both = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(qos_class(&with(json!({"limits": both, "requests": both}))), "Guaranteed");
        assert_eq!(qos_class(&with(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}))), "Burstable");
        let same = json!({"limits": both, "requests": {"cpu": "1000m", "memory": "1024Mi"}});
        assert_eq!(qos_class(&with(same)), "Guaranteed");
        assert_eq!(qos_class(&with(json!({"requests": {"cpu": "1m"}}))), "Burstable");
        let pod_level =
            json!({"resources": {"limits": both, "requests": both}, "containers": [{"name": "a"}]});
        assert_eq!(qos_class(&pod_level), "Guaranteed");
    }

    #[test]
    fn init_containers_count_at_their_peak() {
        let spec = json!({
            "containers": [{"resources": {"requests": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "2"}}}],
            "initContainers": [
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                {"resources": {"requests": {"cpu": "5"}}}
            ]
        });
        assert_eq!(aggregate(&spec, "requests").get("cpu").map(ToString::to_string), Some("6".to_owned()));
    }

    #[test]
    fn pod_level_requests_follow_limits() {
        let mut spec = json!({
            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            "containers": [{"resources": {"requests": {"cpu": "1"}}}]
        });
        default_pod_level(&mut spec);
        assert_eq!(spec["resources"]["requests"], json!({"cpu": "1", "memory": "1Gi"}));
    }
}

//! Resource arithmetic of pod specs: sums over containers, pod-level defaults, QoS class, and the names of resources.

use super::{CONTAINER_LISTS, is_sidecar};
use crate::shared::{
    Fields,
    check::quantity,
    value::{ensure_object, set_default},
};
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

/// Sets what is missing in a list of `spec.resources`.
fn fill(spec: &mut Value, what: &str, values: Vec<(String, Value)>) {
    if values.is_empty() {
        return;
    }
    let list = ensure_object(ensure_object(spec, "resources"), what);
    for (name, q) in values {
        set_default(list, &name, || q);
    }
}

/// Defaults `spec.resources` of a pod that sets part of it (KEP-2837), once its containers are complete, which is after admission:
/// limits of huge pages are those of the containers; requests those of the containers, else the limits; and limits are those of the
/// containers if all of them have one, though no less than the requests.
pub fn default_pod_level(spec: &mut Value) {
    if !["limits", "requests"]
        .iter()
        .any(|what| spec.at("resources").map(what).is_some_and(|m| !m.is_empty()))
    {
        return;
    }
    let limits = aggregate(spec, "limits");
    let pages = limits.iter().filter(|(n, _)| is_hugepages(n) && !spec.at("resources").at("requests").has(n));
    let pages = pages.map(|(n, q)| (n.clone(), q.to_string().into())).collect();
    fill(spec, "limits", pages);
    let requests =
        aggregate(spec, "requests").into_iter().filter(|(n, _)| matches!(n.as_str(), "cpu" | "memory"));
    fill(spec, "requests", requests.map(|(n, q)| (n, q.to_string().into())).collect());
    let own = spec.at("resources").map("limits").into_iter().flatten().filter(|(n, _)| is_pod_level(n));
    let own = own.map(|(n, q)| (n.clone(), q.clone())).collect();
    fill(spec, "requests", own);
    let limited = |name: &str| {
        let mut all = CONTAINER_LISTS.iter().flat_map(|list| spec.list(list));
        all.all(|container| container.at("resources").at("limits").has(name))
    };
    let wanted = spec.at("resources").map("requests").into_iter().flatten().filter_map(|(name, request)| {
        let limit = limits.get(name).filter(|_| is_pod_level(name) && limited(name))?;
        let more = quantity(request).filter(|request| request > limit);
        Some((name.clone(), more.as_ref().unwrap_or(limit).to_string().into()))
    });
    let wanted = wanted.collect();
    fill(spec, "limits", wanted);
}

/// The QoS class of a pod spec: that of its own resources where it has any, else the one that all of its containers have, else
/// `Burstable`.
pub fn qos_class(spec: &Value) -> &'static str {
    let own = spec.at("resources");
    let has_own = |list: &str| own.map(list).is_some_and(|l| l.keys().any(|name| is_pod_level(name)));
    if has_own("requests") || has_own("limits") {
        return class_of(own);
    }
    let all = spec.list("initContainers").iter().chain(spec.list("containers"));
    let mut classes = all.map(|container| class_of(container.at("resources")));
    let first = classes.next().unwrap_or(BEST_EFFORT);
    if classes.all(|other| other == first) { first } else { BURSTABLE }
}

const GUARANTEED: &str = "Guaranteed";
const BURSTABLE: &str = "Burstable";
const BEST_EFFORT: &str = "BestEffort";

/// `Guaranteed` when processors and memory are both limited to what is requested, `BestEffort` when neither is named.
fn class_of(resources: &Value) -> &'static str {
    let of = |name: &str| {
        let amount = |list: &str| quantity(resources.at(list).at(name)).filter(|q| !q.is_zero());
        match (amount("requests"), amount("limits")) {
            (None, None) => BEST_EFFORT,
            (request, limit) if request == limit => GUARANTEED,
            _ => BURSTABLE,
        }
    };
    let (cpu, memory) = (of("cpu"), of("memory"));
    if cpu == memory { cpu } else { BURSTABLE }
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
        let empty = json!({"resources": {"limits": {}}, "containers": [{"resources": {"limits": both, "requests": both}}]});
        assert_eq!(
            qos_class(&empty),
            "Guaranteed",
            "containers count where the pod as a whole asks for nothing"
        );
    }

    #[test]
    fn resources_of_a_pod_that_name_none_leave_the_qos_class_to_its_containers() {
        let both = json!({"cpu": "1", "memory": "1Gi"});
        let of = |own: Value| {
            let container = json!({"name": "a", "resources": {"limits": both, "requests": both}});
            qos_class(&json!({"resources": own, "containers": [container]}))
        };
        assert_eq!(of(json!({})), "Guaranteed");
        assert_eq!(of(json!({"limits": {}, "requests": {}})), "Guaranteed");
        assert_eq!(of(json!({"limits": {"example.com/x": "1"}})), "Guaranteed");
        assert_eq!(of(json!({"limits": {"hugepages-2Mi": "4Mi"}})), "BestEffort");
        assert_eq!(of(json!({"requests": {"cpu": "1"}})), "Burstable");
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

    fn defaulted(pod: Value, containers: Value, init: Value) -> Value {
        let mut spec = json!({"resources": pod, "containers": containers, "initContainers": init});
        default_pod_level(&mut spec);
        spec["resources"].take()
    }

    #[test]
    fn pod_level_requests_follow_containers_and_then_limits() {
        let containers = json!([{"resources": {"requests": {"cpu": "1"}}}]);
        let limited = json!({"limits": {"cpu": "2", "memory": "1Gi"}});
        assert_eq!(
            defaulted(limited.clone(), containers.clone(), json!([])),
            json!({"limits": limited["limits"], "requests": {"cpu": "1", "memory": "1Gi"}})
        );
        let requested = json!({"requests": {"memory": "1Gi"}});
        assert_eq!(
            defaulted(requested, containers.clone(), json!([])),
            json!({"requests": {"cpu": "1", "memory": "1Gi"}})
        );
        assert_eq!(defaulted(json!({"limits": {}}), containers, json!([])), json!({"limits": {}}));
    }

    #[test]
    fn pod_level_limits_follow_containers_that_are_all_limited() {
        let limited = |cpu: &str| json!({"resources": {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}});
        let asked = || json!({"requests": {"memory": "1Gi"}});
        assert_eq!(
            defaulted(asked(), json!([limited("1"), limited("2")]), json!([limited("1")])),
            json!({"requests": {"cpu": "3", "memory": "1Gi"}, "limits": {"cpu": "3"}})
        );
        let plain = json!({"resources": {}});
        assert_eq!(
            defaulted(asked(), json!([limited("1"), plain]), json!([])),
            json!({"requests": {"cpu": "1", "memory": "1Gi"}})
        );
        assert_eq!(
            defaulted(json!({"requests": {"cpu": "4"}}), json!([limited("1")]), json!([])),
            json!({"requests": {"cpu": "4"}, "limits": {"cpu": "4"}})
        );
        let pages = json!([{"resources": {"limits": {"hugepages-2Mi": "4Mi"}}}]);
        assert_eq!(
            defaulted(json!({"limits": {"cpu": "1"}}), pages, json!([])),
            json!({"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "1", "hugepages-2Mi": "4Mi"}})
        );
    }
}

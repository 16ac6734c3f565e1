//! What pods request and use. Source: Kubernetes, `component-helpers/resource` and `quota/v1/evaluator/core`.

use crate::{
    amounts::{Usage, add, amounts, at, largest, number},
    evaluator::extended,
    names,
};
use kaji_meta::object;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// How to sum a pod's requests or limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    /// Whether the pod's overhead counts.
    pub overhead: bool,
    /// Whether what the kubelet has allocated and applied counts where it is more.
    pub status: bool,
}

/// The requests of a whole pod: what runs at once at the most.
pub fn requests(pod: &Value, how: Demand) -> Usage {
    let mut sum = demand(pod, "requests", how);
    if how.overhead {
        add(&mut sum, &at(pod, &["spec", "overhead"]));
    }
    sum
}

/// The limits of a whole pod.
pub fn limits(pod: &Value, how: Demand) -> Usage {
    let mut sum = demand(pod, "limits", how);
    if how.overhead {
        let mut overhead = at(pod, &["spec", "overhead"]);
        overhead.retain(|name, _| sum.contains_key(name));
        add(&mut sum, &overhead);
    }
    sum
}

/// Whether a pod may request the resource at its own level.
fn pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || names::is_hugepages(name)
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

fn demand(pod: &Value, kind: &str, how: Demand) -> Usage {
    let states = if how.status { states(pod) } else { BTreeMap::new() };
    let infeasible = how.status && infeasible(pod);
    let of = |container: &Value| {
        let spec = at(container, &["resources", kind]);
        let state = states.get(object::str_at(container, &["name"]));
        match state.filter(|s| s["resources"].is_object()) {
            Some(state) => effective(spec, state, kind, infeasible),
            None => spec,
        }
    };
    let mut sum = Usage::new();
    for container in object::arr_at(pod, &["spec", "containers"]) {
        add(&mut sum, &of(container));
    }
    let (mut sidecars, mut start) = (Usage::new(), Usage::new());
    for container in object::arr_at(pod, &["spec", "initContainers"]) {
        if is_sidecar(container) {
            let own = of(container);
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            largest(&mut start, &sidecars);
        } else {
            let mut now = at(container, &["resources", kind]);
            add(&mut now, &sidecars);
            largest(&mut start, &now);
        }
    }
    largest(&mut sum, &start);
    // Resources at the level of the pod replace the sum.
    let whole = at(pod, &["spec", "resources", kind]);
    sum.extend(whole.into_iter().filter(|(name, _)| pod_level(name)));
    sum
}

/// The statuses of containers, by name.
fn states(pod: &Value) -> BTreeMap<&str, &Value> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let all = lists.iter().flat_map(|list| object::arr_at(pod, &["status", list]));
    all.map(|s| (object::str_at(s, &["name"]), s)).collect()
}

/// Whether the kubelet has said that it will never resize the pod as its spec has it.
fn infeasible(pod: &Value) -> bool {
    let mut conditions = object::arr_at(pod, &["status", "conditions"]).iter();
    conditions.find(|c| c["type"] == "PodResizePending").is_some_and(|c| c["reason"] == "Infeasible")
}

fn effective(spec: Usage, state: &Value, kind: &str, infeasible: bool) -> Usage {
    let mut all = at(state, &["resources", kind]);
    if kind == "requests" {
        largest(&mut all, &at(state, &["allocatedResources"]));
    }
    if !infeasible {
        largest(&mut all, &spec);
    }
    all
}

/// What a container, or a whole pod, uses by its requests and limits.
fn compute(requests: &Usage, limits: &Usage) -> Usage {
    let mut usage = Usage::from([("pods".to_owned(), number(1))]);
    for (name, amount) in requests {
        let plain = names::is_container_standard(name) || names::is_hugepages(name);
        if plain {
            usage.insert(name.clone(), amount.clone());
        }
        if plain || extended(name) {
            usage.insert(format!("requests.{name}"), amount.clone());
        }
    }
    for (name, amount) in limits {
        if names::is_container_standard(name) {
            usage.insert(format!("limits.{name}"), amount.clone());
        }
    }
    usage
}

/// What a pod uses. One that has ended, or is past its grace period, only counts as an object.
pub(crate) fn usage(pod: &Value, now: jiff::Timestamp) -> Usage {
    let mut usage = Usage::from([("count/pods".to_owned(), number(1))]);
    if live(pod, now) {
        let how = Demand { overhead: true, status: true };
        usage.append(&mut compute(&requests(pod, how), &limits(pod, how)));
    }
    usage
}

fn live(pod: &Value, now: jiff::Timestamp) -> bool {
    if matches!(object::str_at(pod, &["status", "phase"]), "Failed" | "Succeeded") {
        return false;
    }
    let Some(at) = object::deletion_timestamp(pod).and_then(|t| t.parse::<jiff::Timestamp>().ok()) else {
        return true;
    };
    let Some(grace) = object::deletion_grace_period_seconds(pod) else { return true };
    now.as_second() <= at.as_second().saturating_add(grace)
}

/// Names which every container must give an amount of when a quota limits them. Source: `ValidateResourceConstraints`.
const REQUIRED: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// What a pod lacks that a quota over these names requires.
pub(crate) fn missing(pod: &Value, names: &[&str]) -> Option<String> {
    let whole = ["requests", "limits"].into_iter().any(|kind| {
        let list = amounts(object::at(pod, &["spec", "resources", kind]));
        list.keys().any(|name| pod_level(name))
    });
    if whole {
        return None;
    }
    let required: BTreeSet<&str> = names.iter().copied().filter(|n| REQUIRED.contains(n)).collect();
    let mut lacking: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let lists = ["containers", "initContainers"];
    for container in lists.iter().flat_map(|list| object::arr_at(pod, &["spec", list])) {
        let given =
            compute(&at(container, &["resources", "requests"]), &at(container, &["resources", "limits"]));
        for name in required.iter().filter(|n| !given.contains_key(**n)) {
            lacking.entry(name).or_default().insert(object::str_at(container, &["name"]));
        }
    }
    if lacking.is_empty() {
        return None;
    }
    let part = |(name, containers): (&&str, &BTreeSet<&str>)| {
        format!("{name} for: {}", containers.iter().copied().collect::<Vec<_>>().join(","))
    };
    Some(format!("must specify {}", lacking.iter().map(part).collect::<Vec<_>>().join("; ")))
}

/// Whether a pod has a deadline.
pub(crate) fn terminating(pod: &Value) -> bool {
    object::i64_at(pod, &["spec", "activeDeadlineSeconds"]).is_some_and(|s| s >= 0)
}

/// Whether a pod requests nothing.
pub fn best_effort(pod: &Value) -> bool {
    match object::str_at(pod, &["status", "qosClass"]) {
        "" => {}
        class => return class == "BestEffort",
    }
    let nothing = |resources: Option<&Value>| {
        let lists = ["requests", "limits"].into_iter().filter_map(|k| resources?.get(k));
        let set = |list: &Value| {
            let usage = amounts(Some(list));
            usage.iter().any(|(name, q)| matches!(name.as_str(), "cpu" | "memory") && q.sign() > 0)
        };
        !lists.into_iter().any(set)
    };
    let whole = object::at(pod, &["spec", "resources"]);
    if whole.is_some_and(Value::is_object) {
        return nothing(whole);
    }
    let lists = ["containers", "initContainers"];
    lists.iter().flat_map(|l| object::arr_at(pod, &["spec", l])).all(|c| nothing(c.get("resources")))
}

/// Whether a pod's affinity selects pods of other namespaces.
pub(crate) fn crosses_namespaces(pod: &Value) -> bool {
    let crosses = |term: &Value| {
        !object::arr_at(term, &["namespaces"]).is_empty()
            || term.get("namespaceSelector").is_some_and(|s| !s.is_null())
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let list = |name| object::arr_at(pod, &["spec", "affinity", kind, name]);
        list("requiredDuringSchedulingIgnoredDuringExecution").iter().any(crosses)
            || list("preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .filter_map(|t| t.get("podAffinityTerm"))
                .any(crosses)
    })
}

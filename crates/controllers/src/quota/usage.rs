//! What objects use of a quota.
//! Source: Kubernetes' "Resource Quotas" page.

use kaji_meta::quantity::{Format, Quantity};
use kaji_runtime::objects::{Demand, PersistentVolumeClaim, Pod, ResourceQuota, ScopeRequirement, Service};
use serde_json::Value;
use std::collections::BTreeMap;

/// Amounts by resource name.
pub type Usage = BTreeMap<String, Quantity>;

fn one() -> Quantity {
    number(1)
}

fn number(n: usize) -> Quantity {
    Quantity::new(i64::try_from(n).unwrap_or(i64::MAX), Format::DecimalSi)
}

/// Adds one usage to another.
pub fn add(sum: &mut Usage, more: Usage) {
    for (name, amount) in more {
        add_one(sum, name, &amount);
    }
}

fn add_one(sum: &mut Usage, name: String, amount: &Quantity) {
    match sum.get_mut(&name) {
        Some(total) => *total = total.add(amount),
        None => drop(sum.insert(name, amount.clone())),
    }
}

/// The larger of each amount.
fn largest(a: &mut Usage, b: Usage) {
    for (name, amount) in b {
        match a.get_mut(&name) {
            Some(present) if present.sub(&amount).sign() >= 0 => {}
            _ => drop(a.insert(name, amount)),
        }
    }
}

fn amounts(demand: &Demand, kind: Kind) -> Usage {
    let list = match kind {
        Kind::Requests => &demand.requests,
        Kind::Limits => &demand.limits,
    };
    list.iter().filter_map(|(name, amount)| Some((name.to_owned(), Quantity::parse(amount).ok()?))).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Requests,
    Limits,
}

/// What a whole pod requests, or its limits: what runs at once at the most, and its overhead.
fn demand(pod: &Pod, kind: Kind) -> Usage {
    let mut sum = Usage::new();
    pod.spec.containers.iter().for_each(|c| add(&mut sum, amounts(&c.resources, kind)));
    let (mut sidecars, mut start) = (Usage::new(), Usage::new());
    for container in &pod.spec.init_containers {
        let mut now = amounts(&container.resources, kind);
        if container.sidecar() {
            add(&mut sum, now.clone());
            add(&mut sidecars, now);
            now = sidecars.clone();
        } else {
            add(&mut now, sidecars.clone());
        }
        largest(&mut start, now);
    }
    largest(&mut sum, start);
    // What the pod says of itself as a whole counts instead.
    sum.extend(amounts(&pod.spec.resources, kind));
    for (name, amount) in pod.spec.overhead.iter() {
        if let Ok(amount) = Quantity::parse(amount)
            && (kind == Kind::Requests || sum.contains_key(name))
        {
            add_one(&mut sum, name.to_owned(), &amount);
        }
    }
    sum
}

/// What a pod uses. One that is over, or past its grace period, only counts as an object.
pub fn of_pod(pod: &Pod, now: jiff::Timestamp) -> Usage {
    let mut usage = Usage::from([("count/pods".to_owned(), one())]);
    let grace = pod.spec.termination_grace_period_seconds.unwrap_or(0);
    let expired = pod.metadata.deletion_timestamp.is_some_and(|t| t.as_second() + grace < now.as_second());
    if pod.finished() || expired {
        return usage;
    }
    usage.insert("pods".into(), one());
    for (name, amount) in demand(pod, Kind::Requests) {
        let plain =
            matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        usage.insert(format!("requests.{name}"), amount.clone());
        if plain {
            usage.insert(name, amount);
        }
    }
    for (name, amount) in demand(pod, Kind::Limits) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            usage.insert(format!("limits.{name}"), amount);
        }
    }
    usage
}

/// What a service uses.
pub fn of_service(service: &Service) -> Usage {
    let ports = &service.spec.ports;
    let mut usage = Usage::from([("count/services".to_owned(), one()), ("services".to_owned(), one())]);
    match service.spec.kind.as_str() {
        "NodePort" => drop(usage.insert("services.nodeports".into(), number(ports.len()))),
        "LoadBalancer" => {
            let nodeports = ports.iter().filter(|p| p.node_port != 0).count();
            usage.insert("services.nodeports".into(), number(nodeports));
            usage.insert("services.loadbalancers".into(), one());
        }
        _ => {}
    }
    usage
}

/// What a claim uses, in all and of its class.
pub fn of_claim(claim: &PersistentVolumeClaim) -> Usage {
    let plain = "persistentvolumeclaims";
    let mut usage = Usage::from([(format!("count/{plain}"), one()), (plain.to_owned(), one())]);
    let class = claim.metadata.annotations.get("volume.beta.kubernetes.io/storage-class");
    let class = class.or(claim.spec.storage_class_name.as_ref()).filter(|c| !c.is_empty());
    let prefix = class.map(|c| format!("{c}.storageclass.storage.k8s.io/"));
    if let Some(prefix) = &prefix {
        usage.insert(format!("{prefix}{plain}"), one());
    }
    let storage =
        claim.spec.resources.pointer("/requests/storage").and_then(|v| Quantity::from_value(v).ok());
    if let Some(storage) = storage {
        usage.insert("requests.storage".into(), storage.clone());
        if let Some(prefix) = prefix {
            usage.insert(format!("{prefix}requests.storage"), storage);
        }
    }
    usage
}

/// Whether a quota's scopes take a pod in.
pub fn in_scope(quota: &ResourceQuota, pod: &Pod) -> bool {
    let exists = |scope: &String| ScopeRequirement {
        scope_name: scope.clone(),
        operator: "Exists".into(),
        values: vec![],
    };
    let plain = quota.spec.scopes.iter().map(exists);
    let selected = quota.spec.scope_selector.iter().flat_map(|s| s.match_expressions.iter().cloned());
    plain.chain(selected).all(|requirement| scope_matches(&requirement, pod))
}

/// Whether a quota is limited to a scope at all; only pods have scopes.
pub fn scoped(quota: &ResourceQuota) -> bool {
    let selector = quota.spec.scope_selector.as_ref();
    !quota.spec.scopes.is_empty() || selector.is_some_and(|s| !s.match_expressions.is_empty())
}

fn scope_matches(requirement: &ScopeRequirement, pod: &Pod) -> bool {
    let terminating = || pod.spec.active_deadline_seconds.is_some_and(|s| s >= 0);
    match requirement.scope_name.as_str() {
        "Terminating" => terminating(),
        "NotTerminating" => !terminating(),
        "BestEffort" => best_effort(pod),
        "NotBestEffort" => !best_effort(pod),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        "PriorityClass" => {
            let class = Some(&pod.spec.priority_class_name).filter(|c| !c.is_empty());
            match requirement.operator.as_str() {
                "Exists" => class.is_some(),
                "DoesNotExist" => class.is_none(),
                "In" => class.is_some_and(|c| requirement.values.contains(c)),
                "NotIn" => !class.is_some_and(|c| requirement.values.contains(c)),
                _ => false,
            }
        }
        _ => false,
    }
}

/// Whether a pod asks for nothing.
fn best_effort(pod: &Pod) -> bool {
    let nothing = |demand: &Demand| {
        !demand.requests.iter().chain(demand.limits.iter()).any(|(name, amount)| {
            matches!(name, "cpu" | "memory") && Quantity::parse(amount).is_ok_and(|q| q.sign() > 0)
        })
    };
    let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    nothing(&pod.spec.resources) && containers.map(|c| &c.resources).all(nothing)
}

fn crosses_namespaces(pod: &Pod) -> bool {
    let Some(affinity) = &pod.spec.affinity else { return false };
    let crosses = |term: &Value| {
        let named = term.get("namespaces").and_then(Value::as_array).is_some_and(|n| !n.is_empty());
        named || term.get("namespaceSelector").is_some_and(|s| !s.is_null())
    };
    ["podAffinity", "podAntiAffinity"].iter().filter_map(|kind| affinity.get(kind)).any(|a| {
        let list = |name: &str| a.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        list("requiredDuringSchedulingIgnoredDuringExecution").iter().any(crosses)
            || list("preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .filter_map(|t| t.get("podAffinityTerm"))
                .any(crosses)
    })
}

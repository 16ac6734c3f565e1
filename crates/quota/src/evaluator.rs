//! The names of a quota that an object counts for, by its resource.

use crate::{
    amounts::{Usage, number},
    claims::{self, CLASS_REQUESTS, DEVICES},
    names::{self, LOAD_BALANCERS, NODE_PORTS, STORAGE_REQUESTS},
    pods, scopes,
};
use kaji_meta::{GroupResource, object};
use serde_json::Value;
use std::collections::BTreeMap;

/// What usage depends on besides the object.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// The time: pods past their grace period use nothing.
    pub now: jiff::Timestamp,
    /// The extended resources that device classes stand for, by class.
    pub extended_resources: &'a BTreeMap<String, String>,
    /// What pods are charged that stand for claims (see [`charged_to_pod`](crate::charged_to_pod)), by the claim's name.
    pub charged_to_pods: &'a BTreeMap<String, Usage>,
}

/// How objects of a resource are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluator {
    /// Pods: as objects and by what they request.
    Pods,
    /// Services: as objects and by their type.
    Services,
    /// Volume claims: as objects and by what they request.
    Claims,
    /// Resource claims: as objects and by their devices.
    ResourceClaims,
    /// Anything else: as objects, under these names.
    Objects(Vec<String>),
}

/// Core resources that had names in quotas before all resources had.
const PLAIN: [&str; 4] = ["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];
const CLAIMS: [&str; 2] = ["persistentvolumeclaims", STORAGE_REQUESTS];

/// Whether quotas do not count a resource: what is never stored, and events.
fn ignored(gr: &GroupResource) -> bool {
    match gr.group.as_str() {
        "" => matches!(gr.resource.as_str(), "bindings" | "componentstatuses" | "events"),
        "events.k8s.io" => gr.resource == "events",
        "authentication.k8s.io" => gr.resource == "tokenreviews",
        "authorization.k8s.io" => true,
        _ => false,
    }
}

/// Whether a name is an extended resource's.
pub(crate) fn extended(name: &str) -> bool {
    (!names::is_native(name) && !name.starts_with("requests."))
        || name.starts_with("deviceclass.resource.kubernetes.io/")
}

fn pod_name(name: &str) -> bool {
    let requested =
        name.starts_with("requests.") && (!names::is_native(name) || name.starts_with(CLASS_REQUESTS));
    matches!(name, "count/pods" | "pods")
        || names::is_compute(name)
        || names::is_hugepages(name)
        || name.starts_with("requests.hugepages-")
        || requested
}

impl Evaluator {
    /// How objects of a resource are counted; `None` if they are not.
    pub fn of(gr: &GroupResource) -> Option<Evaluator> {
        if ignored(gr) {
            return None;
        }
        let counted = |plain: Option<&str>| {
            let dot = if gr.group.is_empty() { "" } else { "." };
            let name = format!("count/{}{dot}{}", gr.resource, gr.group);
            Evaluator::Objects([name].into_iter().chain(plain.map(str::to_owned)).collect())
        };
        Some(match (gr.group.as_str(), gr.resource.as_str()) {
            ("", "pods") => Evaluator::Pods,
            ("", "services") => Evaluator::Services,
            ("", "persistentvolumeclaims") => Evaluator::Claims,
            ("resource.k8s.io", "resourceclaims") => Evaluator::ResourceClaims,
            ("", plain) if PLAIN.contains(&plain) => counted(Some(plain)),
            _ => counted(None),
        })
    }

    /// Whether objects count for this name of a quota.
    pub fn tracks(&self, name: &str, cx: &Context<'_>) -> bool {
        match self {
            Evaluator::Pods => pod_name(name),
            Evaluator::Services => {
                matches!(name, "count/services" | "services" | NODE_PORTS | LOAD_BALANCERS)
            }
            Evaluator::Claims => {
                name == "count/persistentvolumeclaims"
                    || CLAIMS.contains(&name)
                    || name
                        .split_once(".storageclass.storage.k8s.io/")
                        .is_some_and(|(_, rest)| CLAIMS.contains(&rest))
            }
            Evaluator::ResourceClaims => {
                let known = |class: &str| cx.extended_resources.contains_key(class);
                let stands = |resource: &str| cx.extended_resources.values().any(|r| r == resource);
                name == "count/resourceclaims.resource.k8s.io"
                    || name.ends_with(DEVICES)
                    || name.strip_prefix(CLASS_REQUESTS).is_some_and(known)
                    || name.strip_prefix("requests.").is_some_and(stands)
            }
            Evaluator::Objects(names) => names.iter().any(|n| n == name),
        }
    }

    /// What an object uses.
    pub fn usage(&self, item: &Value, cx: &Context<'_>) -> Usage {
        match self {
            Evaluator::Pods => pods::usage(item, cx.now),
            Evaluator::Services => service(item),
            Evaluator::Claims => claims::storage(item),
            Evaluator::ResourceClaims => claims::resources(item, cx),
            Evaluator::Objects(names) => names.iter().map(|n| (n.clone(), number(1))).collect(),
        }
    }

    /// Whether an object is in the scopes of a quota.
    pub fn in_scopes(&self, quota: &Value, item: &Value) -> bool {
        scopes::in_scopes(quota, self, item)
    }

    /// Whether a write to a subresource (`""` for none) may change what an object uses. `old` is `None` on create.
    pub fn handles(&self, subresource: &str, old: Option<&Value>, new: &Value) -> bool {
        match (self, subresource) {
            (Evaluator::Pods, "") => old.is_none_or(|old| pods::terminating(old) != pods::terminating(new)),
            (Evaluator::Pods, "resize") | (Evaluator::Claims, "status") => old.is_some(),
            (Evaluator::Objects(_), "") => old.is_none(),
            (_, "") => true,
            _ => false,
        }
    }
}

/// What a service uses. Ports count by intent: numbers are not allocated yet when they are charged.
fn service(service: &Value) -> Usage {
    let ports = object::arr_at(service, &["spec", "ports"]);
    let kind = object::str_at(service, &["spec", "type"]);
    let suppressed = object::bool_at(service, &["spec", "allocateLoadBalancerNodePorts"]) == Some(false);
    let given = || ports.iter().filter(|p| p["nodePort"].as_i64().is_some_and(|n| n != 0)).count();
    let node_ports = match kind {
        "NodePort" => ports.len(),
        "LoadBalancer" if suppressed => given(),
        "LoadBalancer" => ports.len(),
        _ => 0,
    };
    Usage::from([
        ("count/services".to_owned(), number(1)),
        ("services".to_owned(), number(1)),
        (NODE_PORTS.to_owned(), number(node_ports)),
        (LOAD_BALANCERS.to_owned(), number(usize::from(kind == "LoadBalancer"))),
    ])
}

/// The resource that `count/resource.group` counts the objects of.
pub fn objects_of(name: &str) -> Option<GroupResource> {
    let rest = name.strip_prefix("count/")?;
    let (resource, group) = rest.split_once('.').unwrap_or((rest, ""));
    Some(GroupResource::new(group, resource))
}

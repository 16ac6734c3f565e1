//! Extended resources that nodes have by their devices: the claim that stands for them, which is made when the pod is bound.
//!
//! Invariants:
//! - A container has a request a resource. Containers that end before others start use the devices of those, and share one more
//!   request for what they need beyond.
//! - A claim that a former attempt has left is deleted before the pod is scheduled.
//!
//! Source: KEP-5004.

use super::ledger::LedgerSnapshot;
use crate::{
    devices::{Claim, class_of, is_backed_by_devices},
    pod_info::PodInfo,
};
use kaji_meta::Quantity;
use kaji_runtime::{
    ObjectSnapshot,
    objects::{Container, DeviceClaimSpec, DeviceClass, Node, Pod, ResourceClaim},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

/// On claims that stand for extended resources.
const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
/// What texts call the claim before it is made.
const UNNAMED: &str = "<extended-resources>";

/// What a pod asks for on nodes of one kind.
#[derive(Debug, PartialEq)]
pub struct Wanted {
    /// The requests, raw.
    requests: Vec<Value>,
    /// The same, decoded.
    spec: Arc<DeviceClaimSpec>,
    /// Which container gets which request, as the pod's status says it.
    pub mappings: Vec<Value>,
}

impl Wanted {
    /// The claim, for the search.
    pub fn claim(&self, pod: &PodInfo) -> Claim {
        Claim { name: format!("{}/{UNNAMED}", pod.namespace()), spec: self.spec.clone() }
    }

    /// The claim that is to be made.
    pub fn body(&self, pod: &Pod) -> Value {
        let meta = &pod.metadata;
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid, "controller": true});
        json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "namespace": meta.namespace,
                "generateName": format!("{}-extended-resources-", meta.name),
                "annotations": {ANNOTATION: "true"},
                "finalizers": [ResourceClaim::FINALIZER],
                "ownerReferences": [owner],
            },
            "spec": {"devices": {"requests": self.requests}},
        })
    }
}

/// What was found out for some set of resources.
type Known = (Vec<String>, Arc<Wanted>);

/// A pod's extended resources that some class stands for.
#[derive(Debug)]
pub struct Extended {
    /// Their names.
    names: Vec<String>,
    /// A claim that a former attempt has left.
    pub left: Option<Arc<ResourceClaim>>,
    known: Mutex<Vec<Known>>,
}

impl Extended {
    /// Those of a pod, if there are any.
    pub fn of(pod: &PodInfo, seen: &LedgerSnapshot) -> Option<Self> {
        if pod.request.other.is_empty() || seen.classes.is_empty() {
            return None;
        }
        let wanted = pod.request.other.iter().filter(|(_, amount)| **amount > 0).map(|(name, _)| name);
        let names: Vec<String> =
            wanted.filter(|name| class_of(name, &seen.classes).is_some()).cloned().collect();
        if names.is_empty() {
            return None;
        }
        let stands_for = |claim: &&Arc<ResourceClaim>| {
            claim.metadata.annotations.get(ANNOTATION).is_some_and(|value| value == "true")
        };
        let left = seen.claims.owned_by(pod.uid()).find(stands_for).cloned();
        Some(Extended { names, left, known: Mutex::default() })
    }

    /// What the pod asks for on a node, if its devices have some of the resources.
    pub fn wanted(
        &self,
        pod: &Pod,
        node: &Node,
        classes: &ObjectSnapshot<DeviceClass>,
    ) -> Option<Arc<Wanted>> {
        let backed = self.names.iter().filter(|name| is_backed_by_devices(name, node, classes));
        let names: Vec<String> = backed.cloned().collect();
        if names.is_empty() {
            return None;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, wanted)) = known.iter().find(|(of, _)| *of == names) {
            return Some(wanted.clone());
        }
        let wanted = Arc::new(wanted_of(pod, &names, classes));
        known.push((names, wanted.clone()));
        Some(wanted)
    }
}

/// A container's request for devices.
struct Request {
    name: String,
    count: i64,
}

fn amount(container: &Container, resource: &str) -> i64 {
    let found = container.resources.requests.iter().find(|(name, _)| *name == resource);
    found.and_then(|(_, text)| Quantity::parse(text).ok()?.as_i64()).unwrap_or_default()
}

/// What a container at a place needs beyond the requests that it may use as well, and which requests it uses.
fn requests_of(
    place: usize,
    container: &Container,
    resource: &str,
    usable: &[Option<Request>],
) -> (Option<Request>, Vec<String>) {
    let needed = amount(container, resource);
    let (mut sum, mut used) = (0, vec![]);
    if needed == 0 {
        return (None, used);
    }
    for request in usable.iter().flatten() {
        sum += request.count;
        used.push(request.name.clone());
        if sum >= needed {
            return (None, used);
        }
    }
    let all: BTreeSet<&str> = container.resources.requests.iter().map(|(name, _)| name).collect();
    let index = all.iter().position(|name| *name == resource).unwrap_or_default();
    let name = format!("container-{place}-request-{index}");
    used.push(name.clone());
    (Some(Request { name, count: needed - sum }), used)
}

/// The requests for one resource, and which container uses which.
fn requests_for(pod: &Pod, resource: &str) -> (Vec<Request>, Vec<Value>) {
    let containers: Vec<&Container> = pod.spec.init_containers.iter().chain(&pod.spec.containers).collect();
    let first_regular = pod.spec.init_containers.len();
    let ends_early = |place: usize| place < first_regular && !containers[place].sidecar();
    let mapping = |place: usize, request: &str| json!({"containerName": containers[place].name, "resourceName": resource, "requestName": request});
    let (mut lasting, mut mappings) = (vec![], vec![]);
    for (place, container) in containers.iter().enumerate() {
        let (request, used) = match ends_early(place) {
            true => (None, vec![]),
            false => requests_of(place, container, resource, &[]),
        };
        mappings.extend(used.iter().map(|name| mapping(place, name)));
        lasting.push(request);
    }
    let (mut early, mut uses) = (vec![], vec![]);
    for (place, container) in containers.iter().enumerate().filter(|(place, _)| ends_early(*place)) {
        let (request, used) = requests_of(place, container, resource, &lasting[place..]);
        early.extend(request);
        uses.extend(used.into_iter().map(|name| (place, name)));
    }
    // They run one after the other: the largest of their requests will do for all.
    let names: Vec<String> = early.iter().map(|request| request.name.clone()).collect();
    let largest = early.into_iter().rev().max_by_key(|request| request.count);
    mappings.extend(uses.iter().map(|(place, name)| match &largest {
        Some(largest) if names.contains(name) => mapping(*place, &largest.name),
        _ => mapping(*place, name),
    }));
    (largest.into_iter().chain(lasting.into_iter().flatten()).collect(), mappings)
}

fn wanted_of(pod: &Pod, resources: &[String], classes: &ObjectSnapshot<DeviceClass>) -> Wanted {
    let (mut requests, mut mappings) = (vec![], vec![]);
    for resource in resources {
        let Some(class) = class_of(resource, classes) else { continue };
        let (own, more) = requests_for(pod, resource);
        mappings.extend(more);
        requests.extend(own.into_iter().map(|request| {
            let exactly = json!({"deviceClassName": class.metadata.name, "allocationMode": "ExactCount",
                "count": request.count});
            (request.name.clone(), json!({"name": request.name, "exactly": exactly}))
        }));
    }
    requests.sort_by(|(a, _), (b, _)| a.cmp(b));
    let requests: Vec<Value> = requests.into_iter().map(|(_, request)| request).collect();
    // Of the form that was just made.
    let spec = serde_json::from_value(json!({"requests": requests})).unwrap_or_default();
    Wanted { requests, spec: Arc::new(spec), mappings }
}

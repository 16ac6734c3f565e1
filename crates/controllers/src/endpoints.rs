//! Endpoints of services with selectors, the older form of endpoint slices.
//!
//! Invariants:
//! - Endpoints carry the name of their service and at most [`CAPACITY`] addresses, all of the service's first family.
//! - Endpoints of a service without a selector, and those of no service at all, belong to users. They go when the
//!   service goes, unless they are a lock of leader election.

use crate::shared::endpoints::{
    LEADER, TRIGGER_TIME, addressable, delete, has_address, has_endpoints, hostname, keys_of_pod, map_patch,
    parse_ip, port_number, preconditions,
    subsets::{self, Address, Packer, Port, Subset},
};
use crate::{Descriptor, Start, WorkersFlag, shared::pods::namespace_terminating};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, PatchKind, Plan, Projection, Reconciler, Step, View,
    Write,
    client::Target,
    objects::{Endpoints, HEADLESS_LABEL, Pod, Service},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const CAPACITY: usize = 1000;

const COMPONENT: &str = "endpoint-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "endpoints-controller",
    components: &[COMPONENT],
    service_account: Some("endpoint-controller"),
    workers: Some(WorkersFlag { name: "concurrent-endpoint-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, config| {
        vec![controller(informers, config.loops.batches.endpoints)]
    }),
};

/// The endpoints controller. Changes of pods wait for others.
fn controller(informers: &Arc<Informers>, batch: Duration) -> Controller {
    Controller::new(Legacy, informers)
        .reads::<Service>(|change, _| vec![change.any().metadata.key()])
        .reads_after::<Pod>(batch, keys_of_pod)
        .reads::<Endpoints>(keys_of_endpoints)
}

/// Deleted Endpoints may have to be created again; managed ones may have been left behind while the controller was down.
fn keys_of_endpoints(change: &Change<Endpoints>, _: &View) -> Vec<Key> {
    let meta = &change.any().metadata;
    let ours = change.old.is_none() && meta.labels.get(MANAGED_BY).is_some_and(|m| m == MANAGER);
    if change.new.is_none() || ours { vec![meta.key()] } else { vec![] }
}

struct Legacy;

impl Reconciler for Legacy {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "endpoint"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let (services, endpoints) = (view.get::<Service>(), view.get::<Endpoints>());
        let current = endpoints.by_key(key);
        let Some(service) = services.by_key(key) else {
            return match current {
                Some(e) if !e.metadata.annotations.contains_key(LEADER) => Plan::nothing().then(delete(&**e)),
                _ => Plan::nothing(),
            };
        };
        if !has_endpoints(service)
            || current.is_none() && cx.failures.iter().any(|f| namespace_terminating(&f.error))
        {
            return Plan::nothing();
        }
        let wanted = wanted(service, view);
        match current {
            None => create(service, wanted),
            Some(current) => update(service, current, wanted),
        }
    }
}

/// What Endpoints should say.
struct Wanted {
    subsets: Vec<Subset>,
    truncated: bool,
    /// When each pod's readiness changed, by uid.
    changes: HashMap<String, jiff::Timestamp>,
}

fn wanted(service: &Service, view: &View) -> Wanted {
    let pods = view.get::<Pod>();
    let published = service.spec.publish_not_ready_addresses;
    let mut packer = Packer::default();
    let mut changes = HashMap::new();
    let selected = pods
        .in_namespace(&service.metadata.namespace)
        .filter(|p| service.spec.selector.matches(&p.metadata.labels) && addressable(p, published));
    for pod in selected {
        let ports: Vec<Port> = service
            .spec
            .ports
            .iter()
            .filter_map(|p| {
                let port = port_number(pod, p)?;
                let (name, protocol) = (p.name.clone(), p.protocol.clone());
                Some(Port { name, port, protocol, app_protocol: p.app_protocol.clone() })
            })
            .collect();
        // Only a headless service may do without ports.
        let portless = service.spec.ports.is_empty() && service.headless();
        let Some(address) = address(service, pod).filter(|_| portless || !ports.is_empty()) else { continue };
        packer.add(address, &ports, published || pod.ready());
        if let Some(at) = pod.condition("Ready").and_then(|c| c.last_transition_time) {
            changes.insert(pod.metadata.uid.clone(), at);
        }
    }
    let mut subsets = packer.pack();
    let truncated = subsets::truncate(&mut subsets, CAPACITY);
    Wanted { subsets, truncated, changes }
}

/// A pod's address of the service's first family.
fn address(service: &Service, pod: &Pod) -> Option<Address> {
    let v6 = match service.spec.ip_families.first() {
        Some(family) => family == "IPv6",
        None if has_address(service) => parse_ip(&service.spec.cluster_ip)?.is_ipv6(),
        None => parse_ip(&pod.status.pod_ip).is_some_and(|ip| ip.is_ipv6()),
    };
    let ip = pod.status.pod_ips.iter().filter_map(|ip| parse_ip(&ip.ip)).find(|ip| ip.is_ipv6() == v6)?;
    let meta = &pod.metadata;
    Some(Address {
        ip: ip.to_string(),
        hostname: hostname(pod, service).unwrap_or_default().to_owned(),
        node_name: Some(pod.spec.node_name.to_string()).filter(|n| !n.is_empty()),
        target_ref: json!({"kind": Pod::KIND, "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}),
    })
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::clone(&service.metadata.labels);
    if has_address(service) {
        labels.remove(HEADLESS_LABEL);
    } else {
        labels.insert(HEADLESS_LABEL.into(), String::new());
    }
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    labels
}

fn create(service: &Service, wanted: Wanted) -> Plan {
    let meta = &service.metadata;
    if meta.deleting() {
        return Plan::nothing();
    }
    let mut annotations = BTreeMap::new();
    if let Some(at) = meta.creation_timestamp {
        annotations.insert(TRIGGER_TIME, at.to_string());
    }
    if wanted.truncated {
        annotations.insert(OVER_CAPACITY, "truncated".into());
    }
    let mut body = json!({
        "apiVersion": Endpoints::VERSION,
        "kind": Endpoints::KIND,
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": labels(service),
            "annotations": annotations,
        },
    });
    if !wanted.subsets.is_empty() {
        body["subsets"] = json!(wanted.subsets);
    }
    let text = format!("Failed to create endpoint for service {}: {{error}}", meta.key());
    let write = Write::Create { target: Target::of::<Endpoints>(&meta.namespace, ""), body };
    step(service, write, "FailedToCreateEndpoint", text)
}

fn step(service: &Service, write: Write, reason: &str, text: String) -> Plan {
    let mut regarding = service.metadata.reference(Endpoints::VERSION, Endpoints::KIND);
    // It is about the Endpoints, which have the service's name and nothing else of it.
    for other in ["uid", "resourceVersion"] {
        regarding.as_object_mut().map(|r| r.remove(other));
    }
    let event = EventRecord::warning(regarding, reason, text);
    Plan::nothing().stage(vec![Step { write, on_success: None, on_failure: Some(event) }])
}

fn update(service: &Service, current: &Endpoints, wanted: Wanted) -> Plan {
    let meta = &current.metadata;
    let present = subsets::repack(subsets::parse(&current.subsets));
    let relabelled = map_patch(&meta.labels, &labels(service));
    let truncated = wanted.truncated.then_some("truncated");
    let annotated = meta.annotations.get(OVER_CAPACITY).map(String::as_str) == truncated;
    if present == wanted.subsets && relabelled.is_empty() && annotated {
        return Plan::nothing();
    }
    let trigger = trigger(&present, &wanted).map(|t| t.to_string());
    let mut metadata = preconditions(meta);
    let mut annotations = serde_json::Map::new();
    if meta.annotations.get(TRIGGER_TIME) != trigger.as_ref() {
        annotations.insert(TRIGGER_TIME.into(), json!(trigger));
    }
    if !annotated {
        annotations.insert(OVER_CAPACITY.into(), json!(truncated));
    }
    for (field, patch) in [("labels", relabelled), ("annotations", annotations)] {
        if !patch.is_empty() {
            metadata[field] = patch.into();
        }
    }
    let subsets = (!wanted.subsets.is_empty()).then_some(&wanted.subsets);
    let write = Write::Patch {
        target: Target::of::<Endpoints>(&meta.namespace, &meta.name),
        kind: PatchKind::Merge,
        body: json!({"metadata": metadata, "subsets": subsets}),
    };
    let text = format!("Failed to update endpoint {}: {{error}}", meta.key());
    step(service, write, "FailedToUpdateEndpoint", text)
}

/// When the earliest change of those happened that make the difference.
fn trigger(present: &[Subset], wanted: &Wanted) -> Option<jiff::Timestamp> {
    type Places<'a> = HashMap<(&'a str, &'a str), Vec<(bool, &'a [Port])>>;
    fn places(subsets: &[Subset]) -> Places<'_> {
        let mut places = Places::new();
        for subset in subsets {
            for (list, ready) in [(&subset.addresses, true), (&subset.not_ready_addresses, false)] {
                for address in list {
                    places.entry(address.identity()).or_default().push((ready, subset.ports.as_slice()));
                }
            }
        }
        places
    }
    let before = places(present);
    places(&wanted.subsets)
        .into_iter()
        .filter(|(identity, place)| before.get(identity) != Some(place))
        .filter_map(|((_, uid), _)| wanted.changes.get(uid).copied())
        .min()
}

#[cfg(test)]
mod tests;

//! What the controllers of EndpointSlices, of Endpoints and of mirrored EndpointSlices share.
//!
//! Invariants:
//! - The services of a pod are found by the index over selectors, never by a scan of all services.
//! - Every write names the uid and resourceVersion that it was decided for.
//! - No state is kept between reconciles: what upstream tracks (trigger times, expected slices) follows from the
//!   difference between what is and what should be.

pub mod subsets;

use kaji_runtime::{
    Change, Key, Meta, Metric, Moment, Plan, Projection, Step, View, Write,
    client::Target,
    objects::{ContainerPort, EndpointPort, EndpointSlice, Pod, SERVICE_NAME_LABEL, Service, ServicePort},
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

/// The time of the change that caused a write of endpoints; users measure programming latency with it.
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// The controller that manages a slice.
pub const SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Locks that older clients keep in Endpoints.
pub const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// The fields of a pod that endpoints depend on: a pod without a change in them concerns no service.
pub fn facts(pod: &Pod) -> impl PartialEq + '_ {
    (
        (&pod.metadata.labels, &pod.spec.hostname, &pod.spec.subdomain, &pod.spec.node_name),
        (&pod.metadata.uid, pod.metadata.deleting(), pod.ready(), pod.finished()),
        (&pod.status.pod_ips, &pod.status.pod_ip),
    )
}

/// The services that selected, or select, a changed pod.
pub fn keys_of_pod(change: &Change<Pod>, view: &View) -> Vec<Key> {
    if let (Some(old), Some(new)) = (&change.old, &change.new)
        && facts(old) == facts(new)
    {
        return vec![];
    }
    let services = view.get::<Service>();
    let mut keys = vec![];
    for pod in change.old.iter().chain(&change.new).map(|p| &p.metadata) {
        keys.extend(Service::selecting(&services, &pod.namespace, &pod.labels).map(|s| s.metadata.key()));
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Counts the writes of a plan when they are made, by their operation (the label of `changes`).
pub fn count_changes(plan: Plan, changes: &'static Metric) -> Plan {
    let operation = |write: &Write| match write {
        Write::Create { .. } => "create",
        Write::Update { .. } | Write::Patch { .. } => "update",
        Write::Delete { .. } => "delete",
    };
    let writes = plan.writes().map(|write| (write.target().clone(), operation(write)));
    let mut counted: Vec<(Target, &str)> = writes.collect();
    // Creations have one target, which counts each of them.
    counted.dedup();
    counted.into_iter().fold(plan, |plan, (target, operation)| {
        plan.observe(Moment::Written(target), changes.one([operation.into()]))
    })
}

/// The service, past and present, of a slice that `manager` manages or managed.
pub fn keys_of_slice(change: &Change<EndpointSlice>, manager: &str) -> Vec<Key> {
    let mut keys: Vec<Key> = change
        .old
        .iter()
        .chain(&change.new)
        .filter(|slice| managed_by(&slice.metadata, manager))
        .filter_map(|slice| {
            let service = slice.metadata.labels.get(SERVICE_NAME_LABEL)?;
            Some(Key::new(slice.metadata.namespace.as_str(), service.as_str()))
        })
        .collect();
    keys.dedup();
    keys
}

pub fn managed_by(slice: &Meta, manager: &str) -> bool {
    slice.labels.get(SLICE_MANAGED_BY).is_some_and(|m| m == manager)
}

/// Whether a service has endpoints at all.
pub fn has_endpoints(service: &Service) -> bool {
    service.spec.kind != "ExternalName" && !service.spec.selector.is_empty()
}

/// Whether a service has a cluster IP.
pub fn has_address(service: &Service) -> bool {
    !service.headless() && !service.spec.cluster_ip.is_empty()
}

/// Whether a pod can be an endpoint: not finished, with an address, and not terminating unless `terminating` ones count.
pub fn addressable(pod: &Pod, terminating: bool) -> bool {
    let addressed = !pod.status.pod_ip.is_empty() || !pod.status.pod_ips.is_empty();
    !pod.finished() && addressed && (terminating || !pod.metadata.deleting())
}

/// The DNS name of a pod below its service.
pub fn hostname<'a>(pod: &'a Pod, service: &Service) -> Option<&'a str> {
    let named = !pod.spec.hostname.is_empty() && pod.spec.subdomain == service.metadata.name;
    named.then_some(&*pod.spec.hostname)
}

/// An address in its canonical form; an IPv4-mapped IPv6 address becomes IPv4.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

/// The number of a service's port on a pod; names are looked up in its containers and sidecars.
pub fn port_number(pod: &Pod, port: &ServicePort) -> Option<i64> {
    let Some(name) = port.target_port.as_str() else {
        return Some(port.target_port.as_i64().unwrap_or(port.port));
    };
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.sidecar());
    let mut ports = pod.spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
    let protocol =
        |p: &ContainerPort| if p.protocol.is_empty() { "TCP" } else { &*p.protocol } == port.protocol;
    ports.find(|p| &*p.name == name && protocol(p)).map(|p| p.container_port)
}

/// A slice's port with defaults filled in, as the API server does.
pub fn canonical(port: &EndpointPort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        protocol: Some(port.protocol.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| "TCP".into())),
        ..port.clone()
    }
}

/// A merge patch that turns one map of labels or annotations into another.
pub fn map_patch(
    current: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> Map<String, Value> {
    let gone = current.keys().filter(|k| !wanted.contains_key(*k)).map(|k| (k.clone(), Value::Null));
    let set = wanted
        .iter()
        .filter(|(k, v)| current.get(*k) != Some(v))
        .map(|(k, v)| (k.clone(), v.as_str().into()));
    gone.chain(set).collect()
}

/// The preconditions of a patch.
pub fn preconditions(meta: &Meta) -> Value {
    json!({"uid": meta.uid, "resourceVersion": meta.resource_version})
}

/// Deletes exactly this object.
pub fn delete<T: Projection>(object: &T) -> Write {
    let meta = object.meta();
    Write::Delete {
        target: Target::of::<T>(&meta.namespace, &meta.name),
        options: json!({"preconditions": {"uid": meta.uid}}),
    }
}

/// A plan that deletes slices.
pub fn delete_all<'a>(slices: impl Iterator<Item = &'a Arc<EndpointSlice>>) -> Plan {
    let step =
        |slice: &Arc<EndpointSlice>| Step { write: delete(&**slice), on_success: None, on_failure: None };
    Plan::nothing().stage(slices.map(step).collect())
}

/// The `generateName` of the slices of a service.
pub fn slice_prefix(service: &str) -> String {
    let prefix = format!("{service}-");
    let usable = kaji_meta::validation::name_is_dns_subdomain(&prefix, true).is_empty();
    if usable { prefix } else { service.to_owned() }
}

#[cfg(test)]
mod tests;

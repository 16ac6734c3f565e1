//! Endpoint slices of services with selectors.
//!
//! Invariants:
//! - Slices of one service, address family and set of ports hold at most so many endpoints as the flag says.
//! - A service with a selector always has a slice of each of its families, if need be an empty one.
//! - Only slices that carry this controller's label are touched; they belong to the service by owner reference.

mod hints;
mod metrics;
mod notices;
mod pack;
mod topology;

use crate::shared::endpoints::{
    SLICE_MANAGED_BY, TRIGGER_TIME, addressable, canonical, delete, delete_all, has_address, has_endpoints,
    hostname, keys_of_pod, keys_of_slice, managed_by, map_patch, parse_ip, port_number, preconditions,
    slice_prefix,
};
use crate::{Descriptor, Start, WorkersFlag, shared::pods::namespace_terminating};
use hints::Preference;
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Metric, ObjectSnapshot, PatchKind, Plan, Projection,
    Reconciler, Step, View, Write,
    client::Target,
    objects::{
        Endpoint, EndpointPort, EndpointSlice, HEADLESS_LABEL, Node, Pod, SERVICE_NAME_LABEL, Service,
    },
};
use metrics::{Sizes, Tally};
use notices::Notices;
use pack::{Packed, pack};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use topology::{Candidate, Capacity};

/// This controller's value of the managed-by label.
pub const MANAGER: &str = "endpointslice-controller.k8s.io";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

const COMPONENT: &str = "endpoint-slice-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "endpointslice-controller",
    components: &[COMPONENT],
    service_account: Some("endpointslice-controller"),
    workers: Some(WorkersFlag { name: "concurrent-service-endpoint-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, config| {
        vec![controller(informers, config.loops.endpoints_per_slice, config.loops.batches.slices)]
    }),
};

/// The endpoint slice controller. Changes of pods and slices wait for others.
fn controller(informers: &Arc<Informers>, limit: usize, batch: Duration) -> Controller {
    let slices = Slices::new(limit);
    let sizes = slices.sizes.clone();
    Controller::new(slices, informers)
        .reads::<Service>(|change, _| vec![change.any().metadata.key()])
        .reads_after::<Pod>(batch, keys_of_pod)
        .reads_after::<EndpointSlice>(batch, |change, _| keys_of_slice(change, MANAGER))
        .reads::<Node>(|_, _| vec![])
        .reads::<Node>(keys_of_node)
        .gauges(move |_| sizes.gauges())
}

/// A node that comes, goes or moves to another zone concerns the services of its pods. After this, or when a node becomes ready or is
/// so no more, services are looked at too with topology-aware hints that overload a zone from now on.
fn keys_of_node(change: &Change<Node>, view: &View) -> Vec<Key> {
    let zone = |node: &Arc<Node>| node.metadata.labels.get(ZONE_LABEL).cloned();
    let present = |node: &Option<Arc<Node>>| node.as_ref().map(zone);
    let moved = present(&change.old) != present(&change.new);
    let ready = |node: &Option<Arc<Node>>| node.as_ref().is_some_and(|node| node.ready());
    if !moved && ready(&change.old) == ready(&change.new) {
        return vec![];
    }
    let services = view.get::<Service>();
    let mut keys = BTreeSet::new();
    if moved {
        let pods = view.get::<Pod>();
        for pod in pods.indexed("node", &change.any().metadata.name).map(|p| &p.metadata) {
            keys.extend(Service::selecting(&services, &pod.namespace, &pod.labels).map(|s| s.metadata.key()));
        }
    }
    let allotted: Vec<_> = services.iter().filter(|s| Preference::of(s) == Preference::Auto).collect();
    if !allotted.is_empty() {
        let (capacity, slices) = (Capacity::of(&view.get::<Node>()), view.get::<EndpointSlice>());
        keys.extend(allotted.into_iter().map(|service| service.metadata.key()).filter(|key| {
            let own = || {
                let all = slices.indexed("service", &key.to_string());
                all.filter(|slice| managed_by(&slice.metadata, MANAGER)).map(|slice| &**slice)
            };
            let overloaded = |family| capacity.overloads(own().filter(|slice| slice.address_type == family));
            overloaded("IPv4") || overloaded("IPv6")
        }));
    }
    keys.into_iter().collect()
}

struct Slices {
    /// Endpoints of one slice.
    limit: usize,
    /// Events about topology-aware hints.
    notices: Notices,
    /// For gauges.
    sizes: Arc<Sizes>,
}

impl Slices {
    fn new(limit: usize) -> Slices {
        Slices { limit, notices: Notices::default(), sizes: Arc::default() }
    }
}

impl Reconciler for Slices {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "endpoint_slice"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &metrics::METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let (services, slices) = (view.get::<Service>(), view.get::<EndpointSlice>());
        let existing = slices
            .indexed("service", &key.to_string())
            .filter(|s| managed_by(&s.metadata, MANAGER) && !s.metadata.deleting());
        let Some(service) = services.by_key(key) else {
            self.notices.forget(key);
            self.sizes.forget(key);
            // Garbage collection does the same; slices that were orphaned on purpose have lost their owner.
            return metrics::counted(delete_all(
                existing.filter(|s| s.metadata.owner_references.iter().any(|o| names(o, &key.name))),
            ));
        };
        if !has_endpoints(service) {
            self.sizes.forget(key);
            return metrics::counted(Plan::nothing());
        }
        let existing: Vec<&Arc<EndpointSlice>> = existing.collect();
        let (pods, nodes) = (view.get::<Pod>(), view.get::<Node>());
        let doomed = cx.failures.iter().any(|f| namespace_terminating(&f.error));
        let families = families(service);
        let mut changes = Changes { fresh: existing.is_empty(), ..Changes::default() };
        changes
            .delete
            .extend(existing.iter().filter(|s| !families.contains(&s.address_type.as_str())).copied());
        let capacity = (Preference::of(service) == Preference::Auto).then(|| Capacity::of(&nodes));
        for family in families {
            let of_family: Vec<_> = existing.iter().copied().filter(|s| s.address_type == family).collect();
            let wanted = Wanted::all(service, family, &pods, &nodes);
            let all = Family { service, family, wanted, limit: self.limit, capacity: capacity.as_ref() };
            let hints = all.plan(&of_family, &mut changes);
            changes.events.extend(self.notices.event(service, family, hints));
        }
        if doomed || service.metadata.deleting() {
            changes.create.clear();
        }
        self.sizes.learn(service, &changes.tallies);
        changes.into_plan(service)
    }
}

fn names(owner: &kaji_runtime::OwnerRef, service: &str) -> bool {
    owner.kind == Service::KIND && owner.api_version == Service::VERSION && owner.name == service
}

/// The address types of a service's slices.
fn families(service: &Service) -> Vec<&str> {
    let known = |f: &&String| matches!(f.as_str(), "IPv4" | "IPv6");
    let families: Vec<&str> = service.spec.ip_families.iter().filter(known).map(String::as_str).collect();
    match parse_ip(&service.spec.cluster_ip) {
        _ if !families.is_empty() => families,
        Some(ip) if ip.is_ipv6() => vec!["IPv6"],
        Some(_) => vec!["IPv4"],
        None => vec!["IPv4", "IPv6"],
    }
}

/// An endpoint as it should be; it becomes JSON only if its slice is written.
struct Wanted<'a> {
    pod: &'a Pod,
    addresses: Vec<String>,
    ready: bool,
    serving: bool,
    terminating: bool,
    hostname: Option<&'a str>,
    node: Option<&'a str>,
    zone: Option<&'a str>,
    hints: Value,
}

impl<'a> Wanted<'a> {
    /// Those of all pods that a service selects, with an address of the family, by pod name.
    fn all(
        service: &'a Service,
        family: &str,
        pods: &'a ObjectSnapshot<Pod>,
        nodes: &'a ObjectSnapshot<Node>,
    ) -> Vec<Self> {
        let preference = Preference::of(service);
        pods.in_namespace(&service.metadata.namespace)
            .filter(|pod| service.spec.selector.matches(&pod.metadata.labels))
            .filter(|pod| addressable(pod, true))
            .filter_map(|pod| Wanted::new(pod, service, family, nodes, preference))
            .collect()
    }

    fn new(
        pod: &'a Pod,
        service: &Service,
        family: &str,
        nodes: &'a ObjectSnapshot<Node>,
        preference: Preference,
    ) -> Option<Self> {
        let of_family = |ip: &std::net::IpAddr| ip.is_ipv6() == (family == "IPv6");
        let ips = pod.status.pod_ips.iter().filter_map(|ip| parse_ip(&ip.ip)).filter(of_family);
        let addresses: Vec<String> = ips.map(|ip| ip.to_string()).collect();
        let node = nodes.get("", &pod.spec.node_name);
        let published = service.spec.publish_not_ready_addresses;
        // A pod on a node that is gone waits for its deletion.
        if addresses.is_empty() || node.is_none() && !published {
            return None;
        }
        let (serving, terminating) = (pod.ready(), pod.metadata.deleting());
        let ready = published || serving && !terminating;
        let zone = node
            .and_then(|n| n.metadata.labels.get(ZONE_LABEL))
            .map(String::as_str)
            .filter(|z| !z.is_empty());
        let node = Some(pod.spec.node_name.as_str()).filter(|n| !n.is_empty());
        let hints = if ready { preference.hints(zone, node) } else { Value::Null };
        let hostname = hostname(pod, service);
        Some(Wanted { pod, addresses, ready, serving, terminating, hostname, node, zone, hints })
    }

    /// Whether an existing endpoint stands for this one.
    fn stands_for(&self, endpoint: &Endpoint) -> bool {
        let same_addresses = endpoint.addresses == self.addresses
            || endpoint.addresses.len() == self.addresses.len()
                && endpoint.addresses.iter().all(|a| self.addresses.contains(a));
        same_addresses && endpoint.hostname.as_deref().filter(|h| !h.is_empty()) == self.hostname
    }

    /// Whether an existing endpoint that stands for this one says all that it should; hints are not of it if they are `allotted`.
    fn equals(&self, endpoint: &Endpoint, allotted: bool) -> bool {
        let c = &endpoint.conditions;
        (c.ready, c.serving, c.terminating) == (Some(self.ready), Some(self.serving), Some(self.terminating))
            && endpoint.node_name.as_deref() == self.node
            && endpoint.zone.as_deref() == self.zone
            && endpoint.target_ref.get("uid").and_then(Value::as_str) == Some(&self.pod.metadata.uid)
            && endpoint.target_ref.get("kind").and_then(Value::as_str) == Some(Pod::KIND)
            && (allotted || endpoint.hints == self.hints)
    }

    fn to_value(&self) -> Value {
        let pod = &self.pod.metadata;
        let mut value = json!({
            "addresses": self.addresses,
            "conditions": {"ready": self.ready, "serving": self.serving, "terminating": self.terminating},
            "targetRef": {"kind": Pod::KIND, "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        });
        let optional = [("hostname", self.hostname), ("nodeName", self.node), ("zone", self.zone)];
        for (field, text) in optional {
            if let Some(text) = text {
                value[field] = text.into();
            }
        }
        if !self.hints.is_null() {
            value["hints"] = self.hints.clone();
        }
        value
    }
}

/// The ports of a service on one pod, in a canonical order. Named ports that the pod does not have are left out.
fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let port = |p: &kaji_runtime::objects::ServicePort| {
        let number = port_number(pod, p)?;
        Some(canonical(&EndpointPort {
            name: Some(p.name.clone()),
            port: Some(number),
            protocol: Some(p.protocol.clone()),
            app_protocol: p.app_protocol.clone(),
        }))
    };
    let mut ports: Vec<EndpointPort> = service.spec.ports.iter().filter_map(port).collect();
    ports.sort();
    ports
}

/// A slice as it should be.
struct Draft {
    family: String,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Value>,
    /// When the earliest of the changes in it happened.
    trigger: Option<jiff::Timestamp>,
}

/// What is to be written for a service.
#[derive(Default)]
struct Changes<'a> {
    /// Whether these are the first slices.
    fresh: bool,
    create: Vec<Draft>,
    update: Vec<(&'a Arc<EndpointSlice>, Draft)>,
    delete: Vec<&'a Arc<EndpointSlice>>,
    events: Vec<EventRecord>,
    /// One for each address family.
    tallies: Vec<Tally>,
}

/// One service and address family.
struct Family<'a> {
    service: &'a Service,
    family: &'a str,
    wanted: Vec<Wanted<'a>>,
    /// Endpoints of one slice.
    limit: usize,
    /// What topology-aware hints go by, if there are to be any.
    capacity: Option<&'a Capacity>,
}

impl<'a> Family<'a> {
    /// Adds what is to be written; returns what became of topology-aware hints, if there are to be any.
    fn plan<'s>(
        mut self,
        existing: &[&'s Arc<EndpointSlice>],
        all: &mut Changes<'s>,
    ) -> Option<Result<(), String>> {
        let mut changes = Changes::default();
        let mut groups: BTreeMap<Vec<EndpointPort>, Vec<&'s Arc<EndpointSlice>>> = BTreeMap::new();
        for slice in existing.iter().copied() {
            if owned(slice, self.service) {
                let mut ports: Vec<EndpointPort> = slice.ports.iter().map(canonical).collect();
                ports.sort();
                groups.entry(ports).or_default().push(slice);
            } else {
                changes.delete.push(slice);
            }
        }
        let labels = labels(self.service);
        let mut packed = self.pack(&mut groups);
        all.tallies.push(Tally::of(&packed, self.limit));
        let hints = self.capacity.map(|capacity| self.allot(capacity, &mut packed, &labels));
        for (ports, packed) in packed {
            let draft = || self.draft(&ports, &packed.members, &packed.news);
            match packed.slice {
                None => changes.create.push(draft()),
                Some(slice) if packed.vanishes() => changes.delete.push(slice),
                Some(slice) if packed.changed || *slice.metadata.labels != labels => {
                    changes.update.push((slice, draft()));
                }
                Some(_) => {}
            }
        }
        changes.delete.extend(groups.into_values().flatten());
        if existing.len() == changes.delete.len() && changes.create.is_empty() {
            self.placeholder(&labels, &mut changes);
        }
        changes.recycle(self.service);
        all.create.append(&mut changes.create);
        all.update.append(&mut changes.update);
        all.delete.append(&mut changes.delete);
        hints
    }

    /// Distributes the wanted endpoints over the slices of their ports, which are taken out of `groups`.
    fn pack<'s>(
        &self,
        groups: &mut BTreeMap<Vec<EndpointPort>, Vec<&'s Arc<EndpointSlice>>>,
    ) -> Vec<(Vec<EndpointPort>, Packed<'s>)> {
        let by_pod: HashMap<&str, usize> =
            self.wanted.iter().enumerate().map(|(i, w)| (w.pod.metadata.name.as_str(), i)).collect();
        let locate = |endpoint: &Endpoint| {
            let number = *by_pod.get(endpoint.target_ref.get("name")?.as_str()?)?;
            let wanted = &self.wanted[number];
            let same = || wanted.equals(endpoint, self.capacity.is_some());
            wanted.stands_for(endpoint).then(|| (number, same()))
        };
        let mut all = vec![];
        for (ports, members) in self.by_ports() {
            let slices = groups.remove(&ports).unwrap_or_default();
            all.extend(pack(&slices, members, self.limit, locate).into_iter().map(|p| (ports.clone(), p)));
        }
        all
    }

    /// Gives the endpoints topology-aware hints, or takes them away: slices with others are written as well.
    fn allot(
        &mut self,
        capacity: &Capacity,
        packed: &mut [(Vec<EndpointPort>, Packed<'_>)],
        labels: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let candidates: Vec<Candidate<'_>> = packed
            .iter()
            .map(|(_, packed)| {
                let same = |slice: &&Arc<EndpointSlice>| !packed.changed && *slice.metadata.labels == *labels;
                let ready = packed.members.iter().filter(|i| self.wanted[**i].ready);
                Candidate {
                    ready: ready.map(|i| (*i, self.wanted[*i].zone)).collect(),
                    unchanged: packed.slice.filter(same).map(|slice| &**slice),
                }
            })
            .collect();
        let hints = topology::hints(capacity, &candidates);
        match &hints {
            Ok(hints) => {
                hints.rewritten.iter().for_each(|i| packed[*i].1.changed = true);
                for (number, zone) in &hints.zones {
                    self.wanted[*number].hints = json!({"forZones": [{"name": zone}]});
                }
            }
            Err(_) => {
                for (_, packed) in packed {
                    let hinted =
                        |slice: &Arc<EndpointSlice>| slice.endpoints.iter().any(|e| !e.hints.is_null());
                    packed.changed |= packed.slice.is_some_and(hinted);
                }
            }
        }
        hints.map(drop)
    }

    /// The wanted endpoints by their ports.
    fn by_ports(&self) -> BTreeMap<Vec<EndpointPort>, BTreeSet<usize>> {
        let named = self.service.spec.ports.iter().any(|p| p.target_port.is_string());
        let mut groups: BTreeMap<Vec<EndpointPort>, BTreeSet<usize>> = BTreeMap::new();
        match self.wanted.first() {
            Some(first) if !named => {
                groups.insert(ports(self.service, first.pod), (0..self.wanted.len()).collect());
            }
            _ => {
                for (number, wanted) in self.wanted.iter().enumerate() {
                    groups.entry(ports(self.service, wanted.pod)).or_default().insert(number);
                }
            }
        }
        groups
    }

    fn draft(&self, ports: &[EndpointPort], members: &[usize], news: &[usize]) -> Draft {
        let changed = |i: &usize| self.wanted[*i].pod.condition("Ready").and_then(|c| c.last_transition_time);
        Draft {
            family: self.family.to_owned(),
            ports: ports.to_vec(),
            endpoints: members.iter().map(|i| self.wanted[*i].to_value()).collect(),
            trigger: news.iter().filter_map(changed).min(),
        }
    }

    /// Without any endpoint there is one empty slice.
    fn placeholder(&self, labels: &BTreeMap<String, String>, changes: &mut Changes<'_>) {
        let already = |s: &Arc<EndpointSlice>| {
            s.endpoints.is_empty()
                && s.ports.is_empty()
                && *s.metadata.labels == *labels
                && owned(s, self.service)
        };
        match changes.delete.as_slice() {
            [only] if already(only) => changes.delete.clear(),
            _ => changes.create.push(self.draft(&[], &[], &[])),
        }
    }
}

fn owned(slice: &EndpointSlice, service: &Service) -> bool {
    slice.metadata.owner_references.iter().any(|o| names(o, &o.name) && o.uid == service.metadata.uid)
}

/// The labels of a service's slices: its own, and those that are reserved.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::clone(&service.metadata.labels);
    labels.remove(HEADLESS_LABEL);
    if !has_address(service) {
        labels.insert(HEADLESS_LABEL.into(), String::new());
    }
    labels.insert(SERVICE_NAME_LABEL.into(), service.metadata.name.clone());
    labels.insert(SLICE_MANAGED_BY.into(), MANAGER.into());
    labels
}

impl Changes<'_> {
    /// Slices that would go are written anew instead of creating others.
    fn recycle(&mut self, service: &Service) {
        let (mut old, foreign): (Vec<_>, Vec<_>) = self.delete.drain(..).partition(|s| owned(s, service));
        old.reverse();
        while !old.is_empty()
            && let Some(draft) = self.create.pop()
        {
            self.update.extend(old.pop().map(|slice| (slice, draft)));
        }
        old.reverse();
        self.delete.extend(old.into_iter().chain(foreign));
    }

    /// Endpoints come before others go.
    fn into_plan(self, service: &Service) -> Plan {
        let meta = &service.metadata;
        let regarding = meta.reference(Service::VERSION, Service::KIND);
        let step = |write: Write, what: &str| {
            let about = format!("for Service {}", meta.key());
            let text = format!(
                "Error updating Endpoint Slices {about}: failed to {what} EndpointSlice {about}: {{error}}"
            );
            let event = EventRecord::warning(regarding.clone(), "FailedToUpdateEndpointSlices", text);
            Step { write, on_success: None, on_failure: Some(event) }
        };
        let labels = labels(service);
        let mut writes: Vec<Step> = self
            .create
            .into_iter()
            .map(|mut draft| {
                // The first slices of a service are due since it is there.
                if self.fresh {
                    draft.trigger = meta.creation_timestamp;
                }
                step(create(service, &labels, draft), "create")
            })
            .collect();
        let update = |(slice, draft): (&Arc<EndpointSlice>, Draft)| {
            step(update(slice, &labels, draft), &format!("update {}", slice.metadata.name))
        };
        writes.extend(self.update.into_iter().map(update));
        let deletes = self
            .delete
            .into_iter()
            .map(|s| step(delete(&**s), &format!("delete {}", s.metadata.name)))
            .collect();
        let plan = Plan::nothing().stage(writes).stage(deletes);
        let plan = self.events.into_iter().fold(plan, Plan::event);
        metrics::synced(plan, service, &self.tallies)
    }
}

fn create(service: &Service, labels: &BTreeMap<String, String>, draft: Draft) -> Write {
    let meta = &service.metadata;
    let mut metadata = json!({
        "generateName": slice_prefix(&meta.name),
        "namespace": meta.namespace,
        "labels": labels,
        "ownerReferences": [meta.controller_ref(Service::VERSION, Service::KIND)],
    });
    if let Some(trigger) = draft.trigger {
        metadata["annotations"] = json!({TRIGGER_TIME: trigger.to_string()});
    }
    Write::Create {
        target: Target::of::<EndpointSlice>(&meta.namespace, ""),
        body: json!({
            "apiVersion": EndpointSlice::api_version(),
            "kind": EndpointSlice::KIND,
            "metadata": metadata,
            "addressType": draft.family,
            "endpoints": draft.endpoints,
            "ports": draft.ports,
        }),
    }
}

fn update(slice: &EndpointSlice, labels: &BTreeMap<String, String>, draft: Draft) -> Write {
    let meta = &slice.metadata;
    let mut metadata = preconditions(meta);
    let relabelled = map_patch(&meta.labels, labels);
    if !relabelled.is_empty() {
        metadata["labels"] = relabelled.into();
    }
    let trigger = draft.trigger.map(|t| t.to_string());
    if meta.annotations.get(TRIGGER_TIME) != trigger.as_ref() {
        metadata["annotations"] = json!({TRIGGER_TIME: trigger});
    }
    Write::Patch {
        target: Target::of::<EndpointSlice>(&meta.namespace, &meta.name),
        kind: PatchKind::Merge,
        body: json!({"metadata": metadata, "endpoints": draft.endpoints, "ports": draft.ports}),
    }
}

#[cfg(test)]
mod tests;

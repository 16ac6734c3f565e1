//! Endpoint slices that mirror the Endpoints that users write for services without selectors.
//!
//! Invariants:
//! - One slice stands for the addresses of one family in one subset; at most so many as the flag says are mirrored.
//! - Nothing is mirrored for locks of leader election, for what is labelled so, or without a service; mirrors that
//!   were made before go.

mod metrics;

use crate::shared::endpoints::{
    LEADER, SLICE_MANAGED_BY, TRIGGER_TIME, canonical, delete, delete_all, keys_of_slice, managed_by,
    map_patch, parse_ip, preconditions, slice_prefix,
    subsets::{self, Address, Subset},
};
use crate::{Descriptor, Start, WorkersFlag, shared::pods::namespace_terminating};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Meta, Metric, PatchKind, Plan, Projection,
    Reconciler, Step, View, Write,
    client::Target,
    objects::{
        Endpoint, EndpointConditions, EndpointPort, EndpointSlice, Endpoints, SERVICE_NAME_LABEL, Service,
    },
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP_LABEL: &str = "endpointslice.kubernetes.io/skip-mirror";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

const COMPONENT: &str = "endpoint-slice-mirroring-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "endpointslice-mirroring-controller",
    components: &[COMPONENT],
    service_account: Some("endpointslicemirroring-controller"),
    workers: Some(WorkersFlag { name: "mirroring-concurrent-service-endpoint-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, config| {
        vec![controller(informers, config.loops.mirrored_endpoints, config.loops.batches.mirrored)]
    }),
};

/// The mirroring controller. Changes of slices wait for others.
fn controller(informers: &Arc<Informers>, limit: usize, batch: Duration) -> Controller {
    Controller::new(Mirroring { limit }, informers)
        .reads::<Service>(|change, _| {
            let bare = |s: &Arc<Service>| s.spec.selector.is_empty();
            let concerns = match (&change.old, &change.new) {
                (Some(old), Some(new)) => bare(old) != bare(new),
                _ => bare(change.any()),
            };
            if concerns { vec![change.any().metadata.key()] } else { vec![] }
        })
        .reads::<Endpoints>(keys_of_endpoints)
        .reads_after::<EndpointSlice>(batch, |change, _| keys_of_slice(change, MANAGER))
        .gauges(|view| metrics::gauges(&view.get()))
}

/// Endpoints of services with selectors are not looked at: there are many, and they change all the time.
fn keys_of_endpoints(change: &Change<Endpoints>, view: &View) -> Vec<Key> {
    let key = change.any().metadata.key();
    let selecting = view.get::<Service>().by_key(&key).is_some_and(|s| !s.spec.selector.is_empty());
    let concerns = change.old.iter().chain(&change.new).any(|e| wants_mirror(&e.metadata));
    if concerns && !selecting { vec![key] } else { vec![] }
}

fn wants_mirror(endpoints: &Meta) -> bool {
    endpoints.labels.get(SKIP_LABEL).is_none_or(|l| l != "true")
        && !endpoints.annotations.contains_key(LEADER)
}

struct Mirroring {
    /// Addresses of one subset.
    limit: usize,
}

impl Reconciler for Mirroring {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "endpoint_slice_mirroring"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &metrics::METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let (slices, endpoints) = (view.get::<EndpointSlice>(), view.get::<Endpoints>());
        let existing = slices
            .indexed("service", &key.to_string())
            .filter(|s| managed_by(&s.metadata, MANAGER) && !s.metadata.deleting());
        let bare = view.get::<Service>().by_key(key).is_some_and(|s| s.spec.selector.is_empty());
        match endpoints.by_key(key).filter(|e| bare && wants_mirror(&e.metadata)) {
            None => metrics::synced(delete_all(existing)),
            Some(endpoints) => metrics::synced(mirror(endpoints, self.limit, existing, cx)),
        }
    }
}

/// Ports and address family: what one slice has in common.
type Group = (Vec<EndpointPort>, &'static str);

fn mirror<'a>(
    endpoints: &Endpoints,
    limit: usize,
    existing: impl Iterator<Item = &'a Arc<EndpointSlice>>,
    cx: &Cx<'_>,
) -> Plan {
    let mut wanted: BTreeMap<Group, Vec<Endpoint>> = BTreeMap::new();
    let (mut invalid, mut skipped) = (0, 0);
    for subset in subsets::repack(subsets::parse(&endpoints.subsets)) {
        let (bad, left) = distribute(subset, limit, &mut wanted);
        invalid += bad;
        skipped += left;
    }
    let mut present: BTreeMap<Group, Vec<&Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing {
        let mut ports: Vec<EndpointPort> = slice.ports.iter().map(canonical).collect();
        ports.sort();
        let family = if slice.address_type == "IPv6" { "IPv6" } else { "IPv4" };
        present.entry((ports, family)).or_default().push(slice);
    }
    let totals = metrics::Totals::of(&wanted, &present, skipped);
    let (mut create, mut update, mut surplus) = (vec![], vec![], vec![]);
    for (group, members) in wanted {
        let mut slices = present.remove(&group).unwrap_or_default().into_iter();
        match slices.next() {
            None => create.push((group, members)),
            Some(slice) if right(slice, endpoints, &members) => {}
            Some(slice) => update.push((slice, group, members)),
        }
        surplus.extend(slices);
    }
    surplus.extend(present.into_values().flatten());
    // Slices that would go are written anew instead of creating others.
    create.retain(|(group, members)| match surplus.iter().position(|s| s.address_type == group.1) {
        Some(i) => {
            update.push((surplus.remove(i), group.clone(), members.clone()));
            false
        }
        None => true,
    });
    if endpoints.metadata.deleting() || cx.failures.iter().any(|f| namespace_terminating(&f.error)) {
        create.clear();
    }
    let quiet = |write| Step { write, on_success: None, on_failure: None };
    let creates = create.into_iter().map(|(group, members)| quiet(create_slice(endpoints, group, members)));
    let updates = update
        .into_iter()
        .map(|(slice, group, members)| quiet(update_slice(slice, endpoints, group, members)));
    let plan = Plan::nothing().stage(creates.chain(updates).collect());
    let plan = plan.stage(surplus.into_iter().map(|s| quiet(delete(&**s))).collect());
    complain(metrics::mirrored(plan, totals), endpoints, limit, (invalid, skipped))
}

/// Adds the addresses of a subset to their groups; says how many were no addresses, and how many were left out in all.
fn distribute(subset: Subset, limit: usize, wanted: &mut BTreeMap<Group, Vec<Endpoint>>) -> (usize, usize) {
    let mut ports: Vec<EndpointPort> = subset
        .ports
        .iter()
        .map(|p| EndpointPort {
            name: Some(p.name.clone()),
            port: Some(p.port),
            protocol: Some(p.protocol.clone()),
            app_protocol: p.app_protocol.clone(),
        })
        .collect();
    ports.sort();
    let total = subset.len();
    let ready = subset.addresses.into_iter().map(|a| (a, true));
    let (mut added, mut invalid) = (0, 0);
    for (address, ready) in ready.chain(subset.not_ready_addresses.into_iter().map(|a| (a, false))) {
        if added >= limit {
            break;
        }
        match endpoint(address, ready) {
            Some((family, endpoint)) => {
                wanted.entry((ports.clone(), family)).or_default().push(endpoint);
                added += 1;
            }
            None => invalid += 1,
        }
    }
    (invalid, total - added)
}

fn endpoint(address: Address, ready: bool) -> Option<(&'static str, Endpoint)> {
    let ip = parse_ip(&address.ip)?;
    let endpoint = Endpoint {
        addresses: vec![ip.to_string()],
        conditions: EndpointConditions { ready: Some(ready), ..EndpointConditions::default() },
        hostname: Some(address.hostname).filter(|h| !h.is_empty()),
        target_ref: address.target_ref,
        node_name: address.node_name,
        ..Endpoint::default()
    };
    Some((if ip.is_ipv6() { "IPv6" } else { "IPv4" }, endpoint))
}

/// Whether a slice mirrors what it should.
fn right(slice: &EndpointSlice, endpoints: &Endpoints, members: &[Endpoint]) -> bool {
    let meta = &slice.metadata;
    let order = |a: &&Endpoint, b: &&Endpoint| a.addresses.cmp(&b.addresses);
    let sorted = |list: &'_ [Endpoint]| {
        let mut list: Vec<Endpoint> = list.to_vec();
        list.sort_by(|a, b| order(&a, &b));
        list
    };
    let owned = meta.owner_references.iter().any(|o| o.uid == endpoints.metadata.uid);
    owned
        && *meta.labels == labels(&endpoints.metadata)
        && *meta.annotations == annotations(&endpoints.metadata)
        && slice.endpoints.len() == members.len()
        && (slice.endpoints == members || sorted(&slice.endpoints) == sorted(members))
}

fn labels(endpoints: &Meta) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::clone(&endpoints.labels);
    labels.insert(SERVICE_NAME_LABEL.into(), endpoints.name.clone());
    labels.insert(SLICE_MANAGED_BY.into(), MANAGER.into());
    labels
}

fn annotations(endpoints: &Meta) -> BTreeMap<String, String> {
    let mirrored = |key: &&String| !matches!(key.as_str(), TRIGGER_TIME | LAST_APPLIED);
    let all = &endpoints.annotations;
    all.keys().filter(mirrored).filter_map(|k| Some((k.clone(), all.get(k)?.clone()))).collect()
}

fn create_slice(endpoints: &Endpoints, (ports, family): Group, members: Vec<Endpoint>) -> Write {
    let meta = &endpoints.metadata;
    Write::Create {
        target: Target::of::<EndpointSlice>(&meta.namespace, ""),
        body: json!({
            "apiVersion": EndpointSlice::api_version(),
            "kind": EndpointSlice::KIND,
            "metadata": {
                "generateName": slice_prefix(&meta.name),
                "namespace": meta.namespace,
                "labels": labels(meta),
                "annotations": annotations(meta),
                "ownerReferences": [meta.controller_ref(Endpoints::VERSION, Endpoints::KIND)],
            },
            "addressType": family,
            "endpoints": members,
            "ports": ports,
        }),
    }
}

fn update_slice(
    slice: &EndpointSlice,
    endpoints: &Endpoints,
    (ports, _): Group,
    members: Vec<Endpoint>,
) -> Write {
    let (meta, owner) = (&slice.metadata, &endpoints.metadata);
    let mut metadata = preconditions(meta);
    metadata["ownerReferences"] = json!([owner.controller_ref(Endpoints::VERSION, Endpoints::KIND)]);
    let labels = map_patch(&meta.labels, &labels(owner));
    let annotations = map_patch(&meta.annotations, &annotations(owner));
    for (field, patch) in [("labels", labels), ("annotations", annotations)] {
        if !patch.is_empty() {
            metadata[field] = patch.into();
        }
    }
    Write::Patch {
        target: Target::of::<EndpointSlice>(&meta.namespace, &meta.name),
        kind: PatchKind::Merge,
        body: json!({"metadata": metadata, "endpoints": members, "ports": ports}),
    }
}

/// Says what was not mirrored.
fn complain(mut plan: Plan, endpoints: &Endpoints, limit: usize, (invalid, skipped): (usize, usize)) -> Plan {
    let warn = |reason: &str, text: String| {
        EventRecord::warning(endpoints.metadata.reference(Endpoints::VERSION, Endpoints::KIND), reason, text)
    };
    if invalid > 0 {
        let text = format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
        plan = plan.event(warn("InvalidIPAddress", text));
    }
    if skipped > invalid {
        let text = format!(
            "A max of {limit} addresses can be mirrored to EndpointSlices per Endpoints subset. {skipped} addresses were skipped"
        );
        plan = plan.event(warn("TooManyAddressesToMirror", text));
    }
    plan
}

#[cfg(test)]
mod tests;

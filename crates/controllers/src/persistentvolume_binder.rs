//! Binds claims to volumes, releases volumes of claims that are gone, and asks provisioners for volumes. Source: upstream's
//! `pkg/controller/volume/persistentvolume`.
//!
//! Invariants:
//! - A volume is bound to a claim by one write to the volume, which fails if the volume is not as it was when it was chosen.
//!   So no volume is ever bound to two claims; all other writes of a binding follow from that one and are repeated until
//!   they are done.
//! - A volume is released, and a claim lost, only after the API server itself has said that the other one is gone: an informer
//!   may lag behind.
//! - Keys with a namespace are claims, keys without one are volumes.

mod claims;
mod metrics;
mod volumes;
mod writes;

use crate::{Descriptor, Start};
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, Metric, Moment, ObjectSnapshot, Plan, Projection, Reconciler,
    Target, View,
    objects::{CLAIM_REF, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, UNBOUND, VOLUME},
};
use metrics::Operations;
use std::sync::Arc;

const COMPONENT: &str = "persistentvolume-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "persistentvolume-binder-controller",
    components: &[COMPONENT],
    service_account: Some("persistent-volume-binder"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        vec![controller(informers, config.loops.volumes.dynamic_provisioning)]
    }),
};

fn controller(informers: &Arc<Informers>, provisions: bool) -> Controller {
    Controller::new(Binder { provisions, operations: Operations::default() }, informers)
        .reads::<PersistentVolumeClaim>(|_, _| vec![])
        .reads::<PersistentVolume>(keys_of_volume)
        .reads::<PersistentVolumeClaim>(keys_of_claim)
        .reads::<StorageClass>(|_, view| unbound_claims(view, |_| true))
        .reads::<Pod>(keys_of_pod)
        .gauges(|view| metrics::gauges(&view.get(), &view.get()))
}

/// The claims that may have waited for a change of something else.
fn unbound_claims(view: &View, concerned: impl Fn(&PersistentVolumeClaim) -> bool) -> Vec<Key> {
    let claims = view.get::<PersistentVolumeClaim>();
    let unbound = claims.indexed(UNBOUND, "").filter(|claim| concerned(claim));
    unbound.map(|claim| claim.metadata.key()).collect()
}

/// The volume, its claim, the claims that name it, and, if it is free, those of its class that have no volume.
fn keys_of_volume(change: &Change<PersistentVolume>, view: &View) -> Vec<Key> {
    let volume = change.any();
    let mut keys = vec![volume.metadata.key()];
    let sides = change.old.iter().chain(&change.new);
    let references = sides.filter_map(|side| side.spec.claim_ref.as_ref());
    keys.extend(references.map(|r| Key::new(r.namespace.as_str(), r.name.as_str())));
    let claims = view.get::<PersistentVolumeClaim>();
    keys.extend(claims.indexed(VOLUME, &volume.metadata.name).map(|claim| claim.metadata.key()));
    if change.new.as_ref().is_some_and(|new| new.spec.claim_ref.is_none()) {
        keys.extend(unbound_claims(view, |claim| claim.class() == volume.class()));
    }
    keys.sort();
    keys.dedup();
    keys
}

/// The claim, its volume, and the volumes that are bound to it or reserved for it.
fn keys_of_claim(change: &Change<PersistentVolumeClaim>, view: &View) -> Vec<Key> {
    let meta = &change.any().metadata;
    let mut keys = vec![meta.key()];
    let sides = change.old.iter().chain(&change.new);
    let named = sides.map(|side| &side.spec.volume_name).filter(|name| !name.is_empty());
    keys.extend(named.map(|name| Key::new("", name.as_str())));
    let volumes = view.get::<PersistentVolume>();
    let reference = format!("{}/{}", meta.namespace, meta.name);
    keys.extend(volumes.indexed(CLAIM_REF, &reference).map(|volume| volume.metadata.key()));
    keys.sort();
    keys.dedup();
    keys
}

/// The claims of a pod that waits to be scheduled: their events name it.
fn keys_of_pod(change: &Change<Pod>, view: &View) -> Vec<Key> {
    let (None, Some(pod)) = (&change.old, &change.new) else { return vec![] };
    if !pod.spec.node_name.is_empty() {
        return vec![];
    }
    let claims = view.get::<PersistentVolumeClaim>();
    let keys = pod.claims().map(|(name, _)| Key::new(pod.metadata.namespace.as_str(), name));
    keys.filter(|key| claims.by_key(key).is_some_and(|claim| claim.spec.volume_name.is_empty())).collect()
}

struct Binder {
    /// Whether provisioners are asked for volumes.
    provisions: bool,
    operations: Operations,
}

impl Reconciler for Binder {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "claims"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &metrics::METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let state = BinderState {
            claims: view.get(),
            volumes: view.get(),
            classes: view.get(),
            pods: view.get(),
            provisions: self.provisions,
            operations: &self.operations,
            cx,
        };
        if key.namespace.is_empty() {
            let gone = || self.operations.ended(Plan::nothing(), key, Moment::Decided, cx.now);
            return state.volumes.by_key(key).map_or_else(gone, |volume| state.volume(volume));
        }
        let claim = state.claims.by_key(key);
        if claim.is_none_or(|claim| !claim.spec.volume_name.is_empty()) {
            self.operations.forget(key);
        }
        claim.map_or_else(Plan::nothing, |claim| state.claim(claim))
    }
}

/// What a decision is made from.
struct BinderState<'a> {
    claims: ObjectSnapshot<PersistentVolumeClaim>,
    volumes: ObjectSnapshot<PersistentVolume>,
    classes: ObjectSnapshot<StorageClass>,
    pods: ObjectSnapshot<Pod>,
    provisions: bool,
    operations: &'a Operations,
    cx: &'a Cx<'a>,
}

impl BinderState<'_> {
    /// Whether the API server has said that an object with this uid is not there any more: the plan before this one asked,
    /// by a patch that changes nothing.
    fn gone<T: Projection>(&self, namespace: &str, name: &str) -> bool {
        let asked = Target::of::<T>(namespace, name);
        let absent = |f: &&kaji_runtime::Failure| f.error.not_found() || f.error.conflict();
        self.cx.failures.iter().filter(absent).any(|failure| failure.target == asked)
    }
}

#[cfg(test)]
mod measured_tests;
#[cfg(test)]
mod tests;

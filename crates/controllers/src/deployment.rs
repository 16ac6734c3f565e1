//! Deployments: replica sets one after another, by rolling update or recreation.
//!
//! Invariants:
//! - One reconcile plans one write per replica set and one of the status; each names uid and resourceVersion.
//! - The newest replica set is the oldest with a template equal to the deployment's, so going back to a former template
//!   goes back to its replica set.
//! - At no time are more than `replicas + maxSurge` pods wanted, or fewer than `replicas - maxUnavailable` kept available.

mod rollback;
mod rollout;
mod sets;
mod status;

use crate::{
    Descriptor, Start, WorkersFlag,
    shared::{
        controller_ref::{claim, controller_key, labels_differ, owner_keys, unchanged},
        pods::{namespace_terminating, status_patch},
        template_hash::{HASH_LABEL, equal_ignoring_hash, template_hash},
    },
};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Plan, Projection, Reconciler, View, Write,
    objects::{Deployment, Pod, ReplicaSet},
};
use rollout::Rollout;
use serde_json::json;
use std::sync::Arc;

const API_VERSION: &str = "apps/v1";

const COMPONENT: &str = "deployment-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "deployment-controller",
    components: &[COMPONENT],
    service_account: Some("deployment-controller"),
    workers: Some(WorkersFlag { name: "concurrent-deployment-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The deployment controller.
fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Deployments, informers)
        .reads::<Deployment>(|change, _| vec![change.any().metadata.key()])
        .reads::<ReplicaSet>(|change, view| {
            owner_keys::<Deployment, ReplicaSet>(change, view, selects, labels_differ)
        })
        .reads::<Pod>(keys_of_pod)
}

/// A recreated deployment goes on when its last pod is gone.
fn keys_of_pod(change: &Change<Pod>, view: &View) -> Vec<Key> {
    let (None, Some(pod)) = (&change.new, &change.old) else { return vec![] };
    let Some(reference) = pod.metadata.controller().filter(|o| o.kind == ReplicaSet::KIND) else {
        return vec![];
    };
    let sets = view.get::<ReplicaSet>();
    let set = sets.get(&pod.metadata.namespace, &reference.name).filter(|s| s.metadata.uid == reference.uid);
    let Some(key) = set.and_then(|s| controller_key::<Deployment>(&s.metadata)) else { return vec![] };
    let deployments = view.get::<Deployment>();
    match deployments.by_key(&key) {
        Some(d) if d.spec.strategy.kind == "Recreate" => vec![key],
        _ => vec![],
    }
}

/// A selector that is empty selects nothing here.
fn selects(d: &Deployment, meta: &kaji_runtime::Meta) -> bool {
    !d.spec.selector.parsed.is_everything() && d.spec.selector.matches(&meta.labels)
}

struct Deployments;

impl Reconciler for Deployments {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "deployment"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let deployments = view.get::<Deployment>();
        let Some(d) = deployments.by_key(key) else { return Plan::nothing() };
        if d.spec.selector.parsed.is_everything() {
            return selects_all(d);
        }
        let meta = &d.metadata;
        let sets = view.get::<ReplicaSet>();
        let candidates = sets.owned_by(&meta.uid).chain(sets.orphans(&meta.namespace)).cloned();
        let reference = meta.controller_ref(API_VERSION, Deployment::KIND);
        let claimed = claim(meta, &reference, |m| selects(d, m), candidates);
        let (owned, plan) = claimed.into_plan(unchanged::<Deployment>(meta));
        if cx.failures.iter().any(|f| namespace_terminating(&f.error)) {
            return plan;
        }
        if let Some(write) = creation_failure(d, &sets, &owned, cx) {
            return plan.then(write);
        }
        let mut rollout = Rollout::new(d, owned, cx.now);
        rollout.decide(|uids| old_pods_running(view, uids));
        rollout.into_plan(plan)
    }
}

/// A deployment that would select every pod is left alone, with a warning.
fn selects_all(d: &Deployment) -> Plan {
    let regarding = d.metadata.reference(API_VERSION, Deployment::KIND);
    let text = "This deployment is selecting all pods. A non-empty selector is required.";
    let plan = Plan::nothing().event(EventRecord::warning(regarding, "SelectingAll", text));
    if d.status.observed_generation < d.metadata.generation {
        let status = json!({"observedGeneration": d.metadata.generation});
        return plan.then(status_patch::<Deployment>(&d.metadata, status));
    }
    plan
}

/// What the status has to say about a replica set that could not be created: a collision is counted, anything else is
/// reported. `None` when it is said already, or nothing failed.
fn creation_failure(
    d: &Deployment,
    sets: &kaji_runtime::ObjectSnapshot<ReplicaSet>,
    owned: &[Arc<ReplicaSet>],
    cx: &Cx<'_>,
) -> Option<Write> {
    let failed =
        |f: &&kaji_runtime::Failure| f.target.resource == ReplicaSet::RESOURCE && f.target.name.is_empty();
    let failure = cx.failures.iter().find(failed)?;
    // The informer may have shown it by now.
    if owned.iter().any(|s| equal_ignoring_hash(&s.spec.template, &d.spec.template)) {
        return None;
    }
    let name =
        rollout::set_name(&d.metadata.name, &template_hash(&d.spec.template, d.status.collision_count));
    if failure.error.reason() == "AlreadyExists" {
        sets.get(&d.metadata.namespace, &name)?;
        let count = d.status.collision_count.unwrap_or(0) + 1;
        return Some(status_patch::<Deployment>(&d.metadata, json!({"collisionCount": count})));
    }
    status::deadline(d)?;
    let text = format!("Failed to create new replica set \"{name}\": {}", failure.error);
    let mut conditions = d.status.conditions.clone();
    let failed = status::condition(status::PROGRESSING, "False", rollout::CREATE_ERROR, text, cx.now);
    crate::shared::conditions::set(&mut conditions, failed);
    (conditions != d.status.conditions)
        .then(|| status_patch::<Deployment>(&d.metadata, json!({"conditions": conditions})))
}

/// Whether any of these sets still has pods that are not over.
fn old_pods_running(view: &View, old: &[&str]) -> bool {
    let pods = view.get::<Pod>();
    old.iter().any(|uid| pods.owned_by(uid).any(|pod| !pod.finished()))
}

#[cfg(test)]
mod tests;

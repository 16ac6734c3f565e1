//! Replica sets and replication controllers: as many pods as wanted.
//!
//! Invariants:
//! - Pods are created in batches that double (1, 2, 4, …) and stop at the first failure, at most [`BURST`] a plan.
//! - Pods to delete are chosen by [`pods_to_delete`]; each delete names the uid.
//! - The failure of the last plan's creates or deletes is in the `ReplicaFailure` condition before new ones are tried.

use crate::{
    Descriptor, Start, WorkersFlag,
    shared::{
        conditions,
        controller_ref::{claim, labels_differ, owner_keys, unchanged},
        pods::{delete_pod_step, namespace_terminating, pod_from_template, pods_to_delete, status_patch},
    },
};
use kaji_runtime::{
    Buckets, Change, Controller, Cx, EventRecord, Informers, Key, Meta, Metric, Moment, Plan, Projection,
    Reconciler, Step, View, Write,
    client::Target,
    objects::{Condition, Pod, ReplicaSet, ReplicaStatus, Workload},
};
use serde_json::{Value, json};
use std::{marker::PhantomData, sync::Arc, time::Duration};

/// Creates or deletes of one plan.
const BURST: usize = 500;
const FAILURE: &str = "ReplicaFailure";

static DELETION_AGE_RATIO: Metric = Metric::histogram(
    "replicaset_controller_sorting_deletion_age_ratio",
    "[ALPHA] The ratio of chosen deleted pod's ages to the current youngest pod's age (at the time). Should be <2. The intent of this metric is to measure the rough efficacy of the LogarithmicScaleDown feature gate's effect on the sorting (and deletion) of pods when a replicaset scales down. This only considers Ready pods when calculating and reporting.",
    &[],
    Buckets::exponential(0.25, 2.0, 6),
);
/// The metrics of the controller. `stale_sync_skips_total` is not here: no sync is skipped, since a worker waits for its own writes.
pub static METRICS: [&Metric; 1] = [&DELETION_AGE_RATIO];

/// What replica sets and replication controllers have in common.
pub trait Replicated: Projection {
    /// The controller's name.
    const COMPONENT: &'static str;
    /// The name of its queue in metrics.
    const QUEUE: &'static str;
    /// Whether `status.terminatingReplicas` exists.
    const TERMINATING: bool;
    /// Pods wanted.
    fn wanted(&self) -> usize;
    /// Whether the selector matches.
    fn selects(&self, meta: &Meta) -> bool;
    /// The pod template.
    fn template(&self) -> &Value;
    /// `spec.minReadySeconds`
    fn min_ready_seconds(&self) -> i64;
    /// The status so far.
    fn status(&self) -> &ReplicaStatus;
}

impl Replicated for ReplicaSet {
    const COMPONENT: &'static str = COMPONENT;
    const QUEUE: &'static str = "replicaset";
    const TERMINATING: bool = true;
    fn wanted(&self) -> usize {
        usize::try_from(self.replicas()).unwrap_or(0)
    }
    fn selects(&self, meta: &Meta) -> bool {
        self.spec.selector.matches(&meta.labels)
    }
    fn template(&self) -> &Value {
        &self.spec.template
    }
    fn min_ready_seconds(&self) -> i64 {
        self.spec.min_ready_seconds
    }
    fn status(&self) -> &ReplicaStatus {
        &self.status
    }
}

const COMPONENT: &str = "replicaset-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "replicaset-controller",
    components: &[COMPONENT],
    service_account: Some("replicaset-controller"),
    workers: Some(WorkersFlag { name: "concurrent-replicaset-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, _| vec![controller::<ReplicaSet>(informers)]),
};

/// The controller of `T`.
pub fn controller<T: Replicated>(informers: &Arc<Informers>) -> Controller {
    Controller::new(ReplicaSets::<T>(PhantomData), informers)
        .reads::<T>(|change, _| vec![change.any().meta().key()])
        .reads::<Pod>(keys_of_pod::<T>)
}

/// The owners of a changed pod, and for an orphan those that may adopt it.
fn keys_of_pod<T: Replicated>(change: &Change<Pod>, view: &View) -> Vec<Key> {
    owner_keys::<T, Pod>(change, view, |set, meta| set.selects(meta), labels_differ)
}

struct ReplicaSets<T>(PhantomData<fn() -> T>);

impl<T: Replicated> Reconciler for ReplicaSets<T> {
    fn name(&self) -> &'static str {
        T::COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        T::QUEUE
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let sets = view.get::<T>();
        let Some(set) = sets.by_key(key) else { return Plan::nothing() };
        let meta = set.meta();
        let pods = view.get::<Pod>();
        let owned = pods.owned_by(&meta.uid);
        let candidates = owned.chain(pods.orphans(&meta.namespace)).filter(|p| p.active()).cloned();
        let reference = meta.controller_ref(&T::api_version(), T::KIND);
        let claimed = claim(meta, &reference, |m| set.selects(m), candidates);
        let (active, plan) = claimed.into_plan(unchanged::<T>(meta));

        let terminating = pods
            .owned_by(&meta.uid)
            .filter(|p| p.metadata.deleting() && !p.finished() && set.selects(&p.metadata))
            .count();
        let failure = failure(cx, set.wanted(), active.len());
        let status = status(&**set, &active, terminating, failure.as_ref(), cx.now);
        let status = status.map(|s| status_patch::<T>(meta, s));
        let doomed = cx.failures.iter().any(|f| namespace_terminating(&f.error));
        let manage = |plan: Plan| match active.len() {
            _ if meta.deleting() || doomed => plan,
            have if have == set.wanted() => plan,
            have if have < set.wanted() => create(plan, &**set, &reference, set.wanted() - have),
            have => delete(plan, view, &**set, active.clone(), have - set.wanted(), cx),
        };
        // What went wrong must be seen before it is tried again, what goes well must not wait for the status.
        let plan = match status {
            Some(write) if failure.is_some() => manage(plan.then(write)),
            Some(write) => manage(plan).then(write),
            None => manage(plan),
        };
        match next_available(&active, set.min_ready_seconds(), cx.now) {
            Some(wait) => plan.again_after(wait),
            None => plan,
        }
    }
}

/// Reason and text of what failed last time.
fn failure(cx: &Cx<'_>, wanted: usize, active: usize) -> Option<(&'static str, String)> {
    let reason = match active.cmp(&wanted) {
        std::cmp::Ordering::Less => "FailedCreate",
        std::cmp::Ordering::Greater => "FailedDelete",
        std::cmp::Ordering::Equal => return None,
    };
    let creates = reason == "FailedCreate";
    let relevant = cx.failures.iter().find(|f| {
        f.target.resource == Pod::RESOURCE
            && f.target.name.is_empty() == creates
            && !f.error.conflict()
            && !namespace_terminating(&f.error)
    })?;
    let text = relevant.error.to_string();
    Some((reason, if creates { text } else { format!("unable to delete pods: {text}") }))
}

fn create<T: Replicated>(mut plan: Plan, set: &T, reference: &Value, missing: usize) -> Plan {
    let meta = set.meta();
    let regarding = meta.reference(&T::api_version(), T::KIND);
    let body = pod_from_template(set.template(), meta, reference);
    let step = || Step {
        write: Write::Create { target: Target::of::<Pod>(&meta.namespace, ""), body: body.clone() },
        on_success: Some(EventRecord::normal(regarding.clone(), "SuccessfulCreate", "Created pod: {name}")),
        on_failure: Some(EventRecord::warning(regarding.clone(), "FailedCreate", "Error creating: {error}")),
    };
    let (mut left, mut batch) = (missing.min(BURST), 1);
    while left > 0 {
        let size = batch.min(left);
        plan = plan.stage((0..size).map(|_| step()).collect());
        left -= size;
        batch *= 2;
    }
    plan
}

fn delete<T: Replicated>(
    plan: Plan,
    view: &View,
    set: &T,
    active: Vec<Arc<Pod>>,
    surplus: usize,
    cx: &Cx<'_>,
) -> Plan {
    let meta = set.meta();
    let regarding = meta.reference(&T::api_version(), T::KIND);
    let pods = view.get::<Pod>();
    // Replica sets of one owner (a deployment's old and new one) share the nodes.
    let siblings: Vec<String> = match meta.controller() {
        Some(owner) => view.get::<T>().owned_by(&owner.uid).map(|s| s.meta().uid.clone()).collect(),
        None => vec![meta.uid.clone()],
    };
    let related = siblings.iter().flat_map(|uid| pods.owned_by(uid));
    let ages = |pods: &[Arc<Pod>]| -> Vec<f64> {
        let created = pods.iter().filter(|pod| pod.ready()).filter_map(|pod| pod.metadata.creation_timestamp);
        created.map(|created| cx.now.duration_since(created).as_secs_f64()).collect()
    };
    // Where all go, none is chosen.
    let (some_stay, all) = (surplus.min(BURST) < active.len(), ages(&active));
    let doomed = pods_to_delete(active, related, surplus.min(BURST), cx.now);
    let chosen = if some_stay { ages(&doomed) } else { vec![] };
    let steps = doomed.iter().map(|pod| delete_pod_step(pod, &regarding));
    let plan = plan.stage(steps.collect());
    match all.into_iter().reduce(f64::min).filter(|youngest| *youngest > 0.0) {
        Some(youngest) => chosen.into_iter().fold(plan, |plan, age| {
            plan.observe(Moment::Decided, DELETION_AGE_RATIO.sample([], age / youngest))
        }),
        None => plan,
    }
}

/// The status to write, or `None` when it is right already.
fn status<T: Replicated>(
    set: &T,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<&(&'static str, String)>,
    now: jiff::Timestamp,
) -> Option<Value> {
    let labels = set.template().pointer("/metadata/labels").and_then(Value::as_object);
    let labelled = |pod: &&Arc<Pod>| {
        labels.is_none_or(|l| {
            l.iter().all(|(k, v)| pod.metadata.labels.get(k).map(String::as_str) == v.as_str())
        })
    };
    let old = set.status();
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let mut new = ReplicaStatus {
        replicas: count(active.len()),
        fully_labeled_replicas: count(active.iter().filter(labelled).count()),
        ready_replicas: count(active.iter().filter(|p| p.ready()).count()),
        available_replicas: count(
            active.iter().filter(|p| p.available(set.min_ready_seconds(), now)).count(),
        ),
        terminating_replicas: T::TERMINATING.then(|| count(terminating)),
        observed_generation: set.meta().generation.max(old.observed_generation),
        conditions: old.conditions.clone(),
    };
    match failure {
        Some((reason, message)) if conditions::get(&old.conditions, FAILURE).is_none() => {
            conditions::set(
                &mut new.conditions,
                Condition {
                    kind: FAILURE.into(),
                    status: "True".into(),
                    last_update_time: None,
                    last_transition_time: Some(conditions::seconds(now)),
                    reason: (*reason).into(),
                    message: message.clone(),
                },
            );
        }
        None => conditions::remove(&mut new.conditions, FAILURE),
        Some(_) => {}
    }
    (new != *old).then(|| {
        let some = |n: i64| (n != 0).then_some(n);
        json!({
            "replicas": new.replicas,
            "fullyLabeledReplicas": some(new.fully_labeled_replicas),
            "readyReplicas": some(new.ready_replicas),
            "availableReplicas": some(new.available_replicas),
            "terminatingReplicas": new.terminating_replicas,
            "observedGeneration": some(new.observed_generation),
            "conditions": (!new.conditions.is_empty()).then_some(new.conditions),
        })
    })
}

/// How long until the next ready pod becomes available.
fn next_available(active: &[Arc<Pod>], min_ready_seconds: i64, now: jiff::Timestamp) -> Option<Duration> {
    if min_ready_seconds <= 0 {
        return None;
    }
    let due = |pod: &Arc<Pod>| {
        let ready = pod.condition("Ready").filter(|c| c.status == "True")?.last_transition_time?;
        let at = jiff::Timestamp::from_second(ready.as_second() + min_ready_seconds).ok()?;
        Duration::try_from(at.duration_since(now)).ok().filter(|d| !d.is_zero())
    };
    active.iter().filter_map(due).min()
}

#[cfg(test)]
mod tests;

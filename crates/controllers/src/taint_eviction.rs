//! Deletes the pods of nodes with `NoExecute` taints: at once where a taint is not tolerated, else when the shortest of the
//! tolerations that match ends.
//!
//! Invariants:
//! - A pod is marked as the target of a disruption before it is deleted, and the delete names its uid.
//! - The time of a toleration runs from when its pod was first seen here on the tainted node. A deletion keeps its time until
//!   it is cancelled; a restarted process counts anew, as upstream's does.

use crate::{
    Descriptor, Start,
    shared::{
        controller_ref::quiet,
        pods::{DELETION_BUCKETS, delete_pod, disruption_target},
        tolerations::tolerates,
    },
};
use jiff::{SignedDuration, Timestamp};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Metric, Moment, PatchKind, Plan, Projection,
    Reconciler, View, Write,
    client::Target,
    objects::{Node, Pod, Taint, Toleration},
};
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const COMPONENT: &str = "taint-eviction-controller";
const NO_EXECUTE: &str = "NoExecute";
const REASON: &str = "DeletionByTaintManager";
/// The longest wait without another look, so that no toleration overflows the timers.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

static DELETIONS: Metric = Metric::counter(
    "taint_eviction_controller_pod_deletions_total",
    "[ALPHA] Total number of Pods deleted by TaintEvictionController since its start.",
    &[],
);
static DELETION_DURATION: Metric = Metric::histogram(
    "taint_eviction_controller_pod_deletion_duration_seconds",
    "[ALPHA] Latency, in seconds, between the time when a taint effect has been activated for the Pod and its deletion via TaintEvictionController.",
    &[],
    DELETION_BUCKETS,
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 2] = [&DELETIONS, &DELETION_DURATION];

/// The controller's line in the table. It has the account of the node lifecycle controller, as upstream's.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "taint-eviction-controller",
    components: &[COMPONENT],
    service_account: Some("node-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The controller. Pods of nodes without taints cost nothing.
fn controller(informers: &Arc<Informers>) -> Controller {
    let scheduled = Scheduled::default();
    let known = scheduled.clone();
    Controller::new(Eviction { scheduled }, informers)
        .reads::<Node>(|_, _| vec![])
        .reads::<Pod>(move |change, view| keys_of_pod(change, view, &known))
        .reads::<Node>(keys_of_node)
}

/// A pod is looked at when it comes, goes, is bound, or its tolerations change.
fn keys_of_pod(change: &Change<Pod>, view: &View, scheduled: &Scheduled) -> Vec<Key> {
    let facts = |p: &Arc<Pod>| (p.spec.node_name.clone(), p.spec.tolerations.clone());
    if change.old.is_some() && change.old.as_ref().map(facts) == change.new.as_ref().map(facts) {
        return vec![];
    }
    let pod = change.any();
    let tainted = || {
        let nodes = view.get::<Node>();
        nodes.get("", &pod.spec.node_name).is_some_and(|node| no_execute(node).next().is_some())
    };
    let key = pod.metadata.key();
    let due = scheduled.lock().contains_key(&key) || (change.new.is_some() && tainted());
    due.then_some(key).into_iter().collect()
}

/// The pods of a node are looked at when its `NoExecute` taints change.
fn keys_of_node(change: &Change<Node>, view: &View) -> Vec<Key> {
    let taints = |node: &Option<Arc<Node>>| -> Vec<Taint> {
        node.iter().flat_map(|node| no_execute(node).cloned()).collect()
    };
    if taints(&change.old) == taints(&change.new) {
        return vec![];
    }
    let pods = view.get::<Pod>();
    pods.indexed("node", &change.any().metadata.name).map(|pod| pod.metadata.key()).collect()
}

fn no_execute(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.taints.iter().filter(|taint| taint.effect == NO_EXECUTE)
}

/// The deletion of a pod at the end of a toleration.
struct Deletion {
    uid: String,
    at: Timestamp,
    /// Whether it was requested: then it can not be cancelled, but the request may have to be repeated.
    requested: bool,
}

/// What will be deleted; entries go with their pods.
#[derive(Clone, Default)]
struct Scheduled(Arc<Mutex<HashMap<Key, Deletion>>>);

impl Scheduled {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Deletion>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a pod may stay on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    Forever,
    /// Zero for a pod that has to go at once.
    For(Duration),
}

/// How long tolerations let a pod stay in spite of taints: of each taint the first toleration that matches counts.
fn stay<'a>(taints: impl IntoIterator<Item = &'a Taint>, tolerations: &[Toleration]) -> Stay {
    let mut shortest = Stay::Forever;
    for taint in taints {
        let Some(used) = tolerations.iter().find(|toleration| tolerates(toleration, taint)) else {
            return Stay::For(Duration::ZERO);
        };
        let Some(limit) = used.toleration_seconds else { continue };
        let limit = Duration::from_secs(u64::try_from(limit).unwrap_or(0));
        shortest = match shortest {
            Stay::Forever => Stay::For(limit),
            Stay::For(other) => Stay::For(other.min(limit)),
        };
    }
    shortest
}

struct Eviction {
    scheduled: Scheduled,
}

impl Eviction {
    /// Forgets about the deletion of a pod, if there was to be one.
    fn cancel(&self, key: &Key) -> Plan {
        match self.scheduled.lock().remove(key) {
            Some(deletion) if !deletion.requested => {
                Plan::nothing().event(event(key, "Cancelling deletion of"))
            }
            _ => Plan::nothing(),
        }
    }

    /// How long until a pod's deletion, which is at the end of `limit` unless it is scheduled already. One that is due was to
    /// be before now.
    fn schedule(&self, key: &Key, uid: &str, limit: Duration, now: Timestamp) -> SignedDuration {
        let mut scheduled = self.scheduled.lock();
        // The entry of a former pod of this name says nothing of this one.
        if scheduled.get(key).is_none_or(|deletion| deletion.uid != uid) {
            let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
            let at = now.saturating_add(limit).unwrap_or(Timestamp::MAX);
            scheduled.insert(key.clone(), Deletion { uid: uid.to_owned(), at, requested: false });
        }
        let Some(deletion) = scheduled.get_mut(key) else { return SignedDuration::ZERO };
        let left = deletion.at.duration_since(now);
        deletion.requested |= !left.is_positive();
        left
    }
}

impl Reconciler for Eviction {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "noexec_taint_pod"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let (pods, nodes) = (view.get::<Pod>(), view.get::<Node>());
        // The deletion of this pod was requested before.
        let Some(pod) = pods.by_key(key).filter(|pod| !pod.metadata.deleting()) else {
            return self.cancel(key);
        };
        // The pods of a node that is gone are the pod garbage collector's.
        let Some(node) = nodes.get("", &pod.spec.node_name) else { return self.cancel(key) };
        let limit = match stay(no_execute(node), &pod.spec.tolerations) {
            Stay::Forever => return self.cancel(key),
            Stay::For(limit) => limit,
        };
        if limit.is_zero() {
            let cancelled = self.cancel(key);
            return delete(cancelled, pod, key, cx, SignedDuration::ZERO);
        }
        let left = self.schedule(key, &pod.metadata.uid, limit, cx.now);
        match Duration::try_from(left).ok().filter(|left| !left.is_zero()) {
            Some(left) => Plan::nothing().again_after(left.min(LONGEST_WAIT)),
            None => delete(Plan::nothing(), pod, key, cx, left),
        }
    }
}

fn event(key: &Key, what: &str) -> EventRecord {
    let pod = json!({
        "apiVersion": Pod::api_version(),
        "kind": Pod::KIND,
        "name": key.name,
        "namespace": key.namespace,
    });
    EventRecord::normal(pod, "TaintManagerEviction", format!("{what} Pod {key}"))
}

/// Marks the pod and deletes it; `left` until then is nothing, or less.
fn delete(mut plan: Plan, pod: &Pod, key: &Key, cx: &Cx<'_>, left: SignedDuration) -> Plan {
    if cx.failures.is_empty() {
        plan = plan.event(event(key, "Marking for deletion"));
    }
    let marked = pod.condition("DisruptionTarget").is_some_and(|c| c.status == "True" && c.reason == REASON);
    if !marked {
        plan = plan.stage(vec![quiet(mark(pod, cx.now))]);
    }
    let write = delete_pod(pod);
    let deleted = Moment::Written(write.target().clone());
    plan.stage(vec![quiet(write)])
        .observe(deleted.clone(), DELETIONS.one([]))
        .observe_elapsed(deleted, DELETION_DURATION.sample([], left.abs().as_secs_f64()))
}

fn mark(pod: &Pod, now: Timestamp) -> Write {
    let meta = &pod.metadata;
    let message = "Taint manager: deleting due to NoExecute taint";
    let condition = disruption_target(meta, true, Some(REASON), Some(message), now);
    Write::Patch {
        target: Target::of::<Pod>(&meta.namespace, &meta.name).subresource("status"),
        kind: PatchKind::Strategic,
        body: json!({"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}),
    }
}

#[cfg(test)]
mod tests;

//! What must hold of a cluster at every revision, and what it must have reached when faults have ended.
//!
//! A control loop may act on what it saw a while ago, as upstream's do: bounds that a user changes count for [`WINDOW_MILLIS`]
//! after the change.
//!
//! Invariant: a law is checked on the store's events alone, in the order of their revisions.

pub mod reached;
#[cfg(test)]
mod tests;

use crate::objects::{
    BUDGETS, DEPLOYMENTS, JOBS, Objects, PODS, QUOTAS, REPLICA_SETS, STATEFUL_SETS, at, controller,
    is_condition_true, is_deleting, is_finished, number, text, uid,
};
use kaji_store::{Event, EventKind};
use serde_json::Value;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// For so long a bound that was changed may still be acted on: the longest wait of a call and its retries.
pub const WINDOW_MILLIS: u64 = 120_000;

/// For so long before a restart of the loops a write of the former ones may have been sent, and for so long after it may be carried
/// out: the longest call.
const IN_FLIGHT_MILLIS: u64 = 10_000;

/// A bound and its former values.
#[derive(Debug, Default)]
struct Bound(VecDeque<(u64, i64)>);

impl Bound {
    fn set(&mut self, now: u64, value: i64) {
        if self.0.back().is_none_or(|(_, last)| *last != value) {
            self.0.push_back((now, value));
        }
        // The value that held when the window began stays.
        while self.0.get(1).is_some_and(|(since, _)| since + WINDOW_MILLIS < now) {
            self.0.pop_front();
        }
    }

    fn max(&self) -> i64 {
        self.0.iter().map(|(_, value)| *value).max().unwrap_or(0)
    }
}

/// Checks events.
#[derive(Debug, Default)]
pub struct Laws {
    objects: Objects,
    /// The most pods of a replica set or running pods of a job, and of a deployment's replica sets together, by uid.
    bounds: BTreeMap<String, Bound>,
    /// Owners that are deleted in the foreground, and since when, by uid.
    foreground: BTreeMap<String, u64>,
    /// When an object with owners was created, by uid.
    created_at: BTreeMap<String, u64>,
    /// When a pod was last ready, by namespace and name.
    ready_at: BTreeMap<(String, String), u64>,
    /// When the loops were last restarted.
    restarted: Option<u64>,
}

impl Laws {
    /// The state after the last event.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// The loops end between any two of their writes, and begin anew. Upstream's do not know either of a pod that was created when
    /// they began, by a request of the former ones.
    pub fn loops_restarted(&mut self, now: u64) {
        self.restarted = Some(now);
    }

    /// Whether loops may not have known of a pod when they were restarted, and may not have seen it since.
    fn may_be_unseen(&self, now: u64, pod: &Value) -> bool {
        let Some(restarted) = self.restarted.filter(|at| now <= at + WINDOW_MILLIS) else { return false };
        let created = self.created_at.get(uid(pod));
        created.is_some_and(|created| created.abs_diff(restarted) <= IN_FLIGHT_MILLIS)
    }

    /// Applies an event; the object after it, and the laws that it breaks.
    pub fn apply(&mut self, now: u64, event: &Event) -> (Option<Arc<Value>>, Vec<String>) {
        let (before, after) = self.objects.apply(event);
        let mut broken = vec![];
        let key = &*event.kv.key;
        match (&before, &after) {
            (Some(before), None) => self.deleted(key, before, &mut broken),
            (before, Some(after)) => self.changed(now, key, before.as_deref(), after, &mut broken),
            (None, None) => {}
        }
        let created = event.kind == EventKind::Put && event.kv.version == 1;
        if let Some(object) = after.as_deref().filter(|_| created)
            && !at(object, &["metadata", "ownerReferences"]).is_null()
        {
            self.created_at.insert(uid(object).to_owned(), now);
        }
        if let Some(pod) = after.as_deref().filter(|_| created && key.starts_with(PODS)) {
            self.pod_created(now, pod, &mut broken);
        }
        (after, broken)
    }

    fn changed(
        &mut self,
        now: u64,
        key: &str,
        before: Option<&Value>,
        after: &Value,
        broken: &mut Vec<String>,
    ) {
        if is_deleting(after) && has_finalizer(after, "foregroundDeletion") {
            self.foreground.entry(uid(after).to_owned()).or_insert(now);
        }
        if key.starts_with(PODS) {
            self.pod_changed(now, key, before, after, broken);
        } else if key.starts_with(REPLICA_SETS) {
            self.bound(now, after, number(after, &["spec", "replicas"]));
            self.replica_set_changed(before, after, broken);
        } else if key.starts_with(JOBS) {
            self.bound(now, after, number(after, &["spec", "parallelism"]));
        } else if key.starts_with(DEPLOYMENTS) {
            let replicas = number(after, &["spec", "replicas"]);
            let strategy = at(after, &["spec", "strategy", "rollingUpdate"]);
            self.bound(now, after, replicas + share(&strategy["maxSurge"], replicas));
        } else if key.starts_with(QUOTAS) {
            let hard = number_of_text(text(after, &["status", "hard", "pods"]));
            let used = number_of_text(text(after, &["status", "used", "pods"]));
            if used > hard {
                broken.push(format!("{key}: {used} pods are used of a quota of {hard}"));
            }
        }
    }

    fn bound(&mut self, now: u64, object: &Value, value: i64) {
        self.bounds.entry(uid(object).to_owned()).or_default().set(now, value);
    }

    fn pod_changed(
        &mut self,
        now: u64,
        key: &str,
        before: Option<&Value>,
        after: &Value,
        broken: &mut Vec<String>,
    ) {
        let node = text(after, &["spec", "nodeName"]);
        let identity = || {
            (
                text(after, &["metadata", "namespace"]).to_owned(),
                text(after, &["metadata", "name"]).to_owned(),
            )
        };
        if is_condition_true(after, "Ready") {
            self.ready_at.insert(identity(), now);
        }
        let Some(before) = before.filter(|before| uid(before) == uid(after)) else { return };
        let former = text(before, &["spec", "nodeName"]);
        if !former.is_empty() && former != node {
            broken.push(format!("{key}: bound to {former}, and then to {node}"));
        }
        if is_condition_true(before, "Ready") {
            // It was ready until now.
            self.ready_at.insert(identity(), now);
        }
        if is_finished(before) && text(before, &["status", "phase"]) != text(after, &["status", "phase"]) {
            broken.push(format!(
                "{key}: its phase was {}, and is {}",
                text(before, &["status", "phase"]),
                text(after, &["status", "phase"])
            ));
        }
        if is_deleting(after) && !is_deleting(before) {
            self.evicted(key, before, after, broken);
        }
    }

    /// An eviction leaves as many healthy pods as the budgets ask for.
    fn evicted(&self, key: &str, before: &Value, after: &Value, broken: &mut Vec<String>) {
        let by_eviction = at(after, &["status", "conditions"])
            .as_array()
            .is_some_and(|all| all.iter().any(|condition| condition["reason"] == "EvictionByEvictionAPI"));
        if !by_eviction || !is_condition_true(before, "Ready") {
            return;
        }
        for budget in self.objects.of(BUDGETS) {
            let (selector, least) = (&budget["spec"]["selector"], &budget["spec"]["minAvailable"]);
            // Percentages and expressions are not looked at.
            let Some(least) = least.as_i64().filter(|_| !selector["matchExpressions"].is_array()) else {
                continue;
            };
            let covers = |pod: &Value| covers(budget, selector, pod);
            if !covers(after) {
                continue;
            }
            let healthy = self
                .objects
                .of(PODS)
                .filter(|pod| covers(pod) && !is_deleting(pod) && is_condition_true(pod, "Ready"));
            let healthy = i64::try_from(healthy.count()).unwrap_or(i64::MAX);
            if healthy < least {
                broken.push(format!(
                    "{key}: its eviction leaves {healthy} healthy pods, and the budget asks for {least}"
                ));
            }
        }
    }

    /// The replica sets of a deployment together stay below its surge.
    fn replica_set_changed(&self, before: Option<&Value>, after: &Value, broken: &mut Vec<String>) {
        let (owner, replicas) = (controller(after), number(after, &["spec", "replicas"]));
        let former = before.map_or(0, |before| number(before, &["spec", "replicas"]));
        let Some(bound) = self.bounds.get(owner).filter(|_| replicas > former) else { return };
        let sets = self.objects.of(REPLICA_SETS).filter(|set| controller(set) == owner);
        let total: i64 = sets.map(|set| number(set, &["spec", "replicas"])).sum();
        if total > bound.max() {
            let name = text(after, &["metadata", "name"]);
            broken.push(format!(
                "replica set {name}: with {replicas} replicas its deployment has {total}, and may have {}",
                bound.max()
            ));
        }
    }

    fn pod_created(&mut self, now: u64, pod: &Value, broken: &mut Vec<String>) {
        let (owner, name) = (controller(pod), text(pod, &["metadata", "name"]));
        if let Some(bound) = self.bounds.get(owner) {
            let active = self
                .objects
                .pods_of(owner)
                .filter(|pod| !is_finished(pod) && !is_deleting(pod) && !self.may_be_unseen(now, pod));
            let active = i64::try_from(active.count()).unwrap_or(i64::MAX);
            if active > bound.max() {
                broken.push(format!(
                    "pod {name}: the {active}th of its controller, which may have {}",
                    bound.max()
                ));
            }
        }
        self.in_order(now, pod, broken);
    }

    /// Pods of an ordered stateful set follow pods that were ready.
    fn in_order(&self, now: u64, pod: &Value, broken: &mut Vec<String>) {
        let owner = controller(pod);
        let Some(set) = self.objects.of(STATEFUL_SETS).find(|set| uid(set) == owner) else { return };
        if text(set, &["spec", "podManagementPolicy"]) == "Parallel" {
            return;
        }
        let (namespace, name) = (text(pod, &["metadata", "namespace"]), text(pod, &["metadata", "name"]));
        let Some((base, ordinal)) = name.rsplit_once('-') else { return };
        for former in 0..ordinal.parse().unwrap_or(0_u32) {
            let former = format!("{base}-{former}");
            let is_former = |pod: &&Arc<Value>| text(pod, &["metadata", "name"]) == former;
            if self.objects.pods_of(owner).find(is_former).is_some_and(|pod| is_condition_true(pod, "Ready"))
            {
                continue;
            }
            let ready = self.ready_at.get(&(namespace.to_owned(), former.clone()));
            if ready.is_none_or(|at| at + WINDOW_MILLIS < now) {
                broken.push(format!("pod {name}: created before {former} was ready"));
            }
        }
    }

    /// An owner that is deleted in the foreground outlives what blocks it, but for what a loop has added since that does not see the
    /// deletion yet.
    fn deleted(&mut self, key: &str, before: &Value, broken: &mut Vec<String>) {
        self.created_at.remove(uid(before));
        let Some(since) = self.foreground.remove(uid(before)) else { return };
        let blocks = |object: &Value| {
            if self.created_at.get(uid(object)).is_some_and(|created| *created > since) {
                return false;
            }
            let owners = at(object, &["metadata", "ownerReferences"]).as_array().cloned().unwrap_or_default();
            owners
                .iter()
                .any(|owner| text(owner, &["uid"]) == uid(before) && owner["blockOwnerDeletion"] == true)
        };
        if let Some((dependent, _)) = self.objects.all().find(|(_, object)| blocks(object)) {
            broken.push(format!("{key}: deleted in the foreground before {dependent}"));
        }
    }
}

/// Whether a budget's selector of labels matches a pod.
fn covers(budget: &Value, selector: &Value, pod: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object();
    budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
        && wanted.is_some_and(|all| all.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value))
}

fn has_finalizer(object: &Value, name: &str) -> bool {
    at(object, &["metadata", "finalizers"]).as_array().is_some_and(|all| all.iter().any(|f| f == name))
}

/// A count, or a percentage of `whole` rounded up.
fn share(value: &Value, whole: i64) -> i64 {
    match value.as_str().and_then(|text| text.strip_suffix('%')) {
        Some(percent) => (whole * percent.parse::<i64>().unwrap_or(0) + 99) / 100,
        None => value.as_i64().unwrap_or(0),
    }
}

fn number_of_text(text: &str) -> i64 {
    text.parse().unwrap_or(0)
}

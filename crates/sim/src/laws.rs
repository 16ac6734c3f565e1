//! What must hold of a cluster at every revision, and what it must have reached when faults have ended.
//!
//! A control loop may act on what it saw a while ago, as upstream's do: bounds that a user changes count for [`WINDOW_MILLIS`]
//! after the change.
//!
//! Invariant: a law is checked on the store's events alone, in the order of their revisions.

mod availability;
mod bounds;
mod budgets;
mod placement;
pub mod reached;
mod restarts;
#[cfg(test)]
mod tests;

use crate::objects::{
    DEPLOYMENTS, JOBS, NODES, Objects, PODS, QUOTAS, REPLICA_SETS, STATEFUL_SETS, at, controller,
    is_condition_true, is_deleting, is_finished, number, text, uid,
};
use availability::Availability;
use bounds::{Bounds, share_up};
use kaji_store::{Event, EventKind};
use placement::Placement;
use restarts::Restarts;
use serde_json::Value;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// For so long a bound that was changed may still be acted on: the longest wait of a call and its retries.
pub const WINDOW_MILLIS: u64 = 120_000;

/// For so long a pod counts for its quota again: a second, and the time until the quota is counted.
const HASTENED_MILLIS: u64 = 5_000;

/// Checks events.
#[derive(Debug, Default)]
pub struct Laws {
    objects: Objects,
    /// The most pods of a replica set or running pods of a job, and of a deployment's replica sets together, by uid.
    bounds: Bounds,
    /// How many replicas a deployment, a replica set and a stateful set asked for lately, by uid.
    scales: Bounds,
    availability: Availability,
    placement: Placement,
    /// Owners that are deleted in the foreground, and since when, by uid.
    foreground: BTreeMap<String, u64>,
    /// When an object with owners was created, by uid.
    created_at: BTreeMap<String, u64>,
    /// When a pod was last ready, by namespace and name.
    ready_at: BTreeMap<(String, String), u64>,
    restarts: Restarts,
    clock_went_back: bool,
    /// When the deletion of a pod was shortened to nothing.
    hastened: VecDeque<u64>,
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
        self.restarts.add_all(now);
    }

    /// The same of one controller.
    pub fn loop_killed(&mut self, now: u64) {
        self.restarts.add(now);
    }

    /// The store's disk has room again only then: what loops write meanwhile fails, and is tried again after ever longer waits.
    pub fn disk_full_until(&mut self, at: u64) {
        self.availability.disk_full_until(at);
    }

    /// The clock shows an earlier time than before. A pod counts for no quota once its deletion is overdue, and then it counts again,
    /// as upstream's.
    pub fn clock_stepped_back(&mut self) {
        self.clock_went_back = true;
    }

    /// Whether loops may not have known of a pod when they were restarted, and may not have seen it since.
    fn may_be_unseen(&self, now: u64, pod: &Value) -> bool {
        self.created_at.get(uid(pod)).is_some_and(|created| self.restarts.may_be_unseen(now, *created))
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
        if key.starts_with(PODS) {
            let step = availability::Step { now, key, before: before.as_deref(), after: after.as_deref() };
            let known = (&self.objects, &self.scales, &self.restarts);
            broken.extend(self.availability.follow(known, &step));
            let unsure = self.restarts.may_miss_bindings(now);
            broken.extend(self.placement.follow(&self.objects, &step, unsure));
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
        } else if key.starts_with(NODES) {
            self.availability.follow_node(now, before, after);
        } else if key.starts_with(REPLICA_SETS) {
            self.bound(now, after, number(after, &["spec", "replicas"]));
            self.scaled(now, after);
            self.replica_set_changed(before, after, broken);
        } else if key.starts_with(JOBS) {
            self.bound(now, after, number(after, &["spec", "parallelism"]));
        } else if key.starts_with(DEPLOYMENTS) {
            let replicas = number(after, &["spec", "replicas"]);
            let strategy = at(after, &["spec", "strategy", "rollingUpdate"]);
            self.bound(now, after, replicas + share_up(&strategy["maxSurge"], replicas));
            self.scaled(now, after);
        } else if key.starts_with(STATEFUL_SETS) {
            self.scaled(now, after);
        } else if key.starts_with(QUOTAS) {
            let hard = number_of_text(text(after, &["status", "hard", "pods"]));
            let used = number_of_text(text(after, &["status", "used", "pods"]));
            let again = match self.clock_went_back {
                true => self.objects.of(PODS).filter(|pod| is_deleting(pod)).count(),
                false => self.hastened.iter().filter(|at| *at + HASTENED_MILLIS >= now).count(),
            };
            if used - i64::try_from(again).unwrap_or(i64::MAX) > hard {
                broken.push(format!("{key}: {used} pods are used of a quota of {hard}"));
            }
        }
    }

    fn bound(&mut self, now: u64, object: &Value, value: i64) {
        self.bounds.set(now, uid(object), value);
    }

    fn scaled(&mut self, now: u64, object: &Value) {
        self.scales.set(now, uid(object), number(object, &["spec", "replicas"]));
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
        let grace = |pod: &Value| at(pod, &["metadata", "deletionGracePeriodSeconds"]).as_i64();
        if grace(after) == Some(0) && grace(before).is_some_and(|before| before > 0) {
            // As upstream, its deletion is due now, and no longer overdue.
            self.hastened.retain(|at| at + HASTENED_MILLIS >= now);
            self.hastened.push_back(now);
        }
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
            let lost: Vec<&Value> = self.availability.lost_without_eviction(now).collect();
            let scales = (&self.scales, now);
            broken.extend(budgets::evicted(&self.objects, scales, key, (before, after), &lost));
        }
    }

    /// The replica sets of a deployment together stay below its surge.
    fn replica_set_changed(&self, before: Option<&Value>, after: &Value, broken: &mut Vec<String>) {
        let (owner, replicas) = (controller(after), number(after, &["spec", "replicas"]));
        let former = before.map_or(0, |before| number(before, &["spec", "replicas"]));
        let Some(most) = self.bounds.max(owner).filter(|_| replicas > former) else { return };
        let sets = self.objects.of_controller(REPLICA_SETS, owner);
        let total: i64 = sets.map(|set| number(set, &["spec", "replicas"])).sum();
        if total > most {
            let name = text(after, &["metadata", "name"]);
            broken.push(format!(
                "replica set {name}: with {replicas} replicas its deployment has {total}, and may have {most}"
            ));
        }
    }

    fn pod_created(&mut self, now: u64, pod: &Value, broken: &mut Vec<String>) {
        let (owner, name) = (controller(pod), text(pod, &["metadata", "name"]));
        if let Some(most) = self.bounds.max(owner) {
            let active = self
                .objects
                .pods_of(owner)
                .filter(|pod| !is_finished(pod) && !is_deleting(pod) && !self.may_be_unseen(now, pod));
            let active = i64::try_from(active.count()).unwrap_or(i64::MAX);
            if active > most {
                broken.push(format!("pod {name}: the {active}th of its controller, which may have {most}"));
            }
        }
        self.in_order(now, pod, broken);
    }

    /// Pods of an ordered stateful set follow pods that were ready.
    fn in_order(&self, now: u64, pod: &Value, broken: &mut Vec<String>) {
        let owner = controller(pod);
        let set = self.objects.by_uid(owner).filter(|(key, _)| key.starts_with(STATEFUL_SETS));
        let Some((_, set)) = set else { return };
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
        self.bounds.forget(uid(before));
        self.scales.forget(uid(before));
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

fn has_finalizer(object: &Value, name: &str) -> bool {
    at(object, &["metadata", "finalizers"]).as_array().is_some_and(|all| all.iter().any(|f| f == name))
}

fn number_of_text(text: &str) -> i64 {
    text.parse().unwrap_or(0)
}

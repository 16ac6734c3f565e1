//! Controllers take no available pods away beyond what `maxUnavailable` allows: deployments that roll, stateful sets and daemon sets.
//!
//! The law is about the deletions of controllers. What nodes, evictions, preemption and taints take is not theirs, but counts as
//! available until controllers must have seen it; a pod that has become ready a moment ago may be deleted as one that is not
//! ready, as upstream's do.
//!
//! Invariants:
//! - A deletion is a controller's if the pod has no `DisruptionTarget` condition, and all its owners stay.
//! - Nothing is checked while a full disk delays the statuses by which controllers count.
//! - Sets with `minReadySeconds` are not looked at: here available means ready.

use super::{
    WINDOW_MILLIS,
    bounds::{Bounds, share_down, share_up},
    budgets::is_eviction,
    restarts::Restarts,
};
use crate::objects::{
    DAEMON_SETS, DEPLOYMENTS, NODES, Objects, STATEFUL_SETS, at, is_condition_true, is_deleting, number,
    text, uid,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A pod that has become ready counts as such for all controllers after this time: a held back event, slow calls and their repetitions.
const SEEN_READY_MILLIS: u64 = 60_000;
/// After a full disk statuses are late for so long: the wait before the next try doubles with each that fails.
const LATE_STATUS_MILLIS: u64 = 240_000;

/// A change of a pod.
pub struct Step<'a> {
    /// Milliseconds since the start.
    pub now: u64,
    /// The pod's key.
    pub key: &'a str,
    /// Before it; `None` for a creation.
    pub before: Option<&'a Value>,
    /// After it; `None` for a removal.
    pub after: Option<&'a Value>,
}

/// Which pods are ready, and which were lost.
#[derive(Debug, Default)]
pub struct Availability {
    /// Since when pods are ready, by uid.
    ready_since: BTreeMap<String, u64>,
    /// Pods that were available until lately, by uid.
    lost: BTreeMap<String, Lost>,
    /// When a node had taints last, by name.
    tainted_at: BTreeMap<String, u64>,
    disk_full_until: Option<u64>,
}

/// The objects, what they asked for lately, and when loops were restarted.
type Known<'a> = (&'a Objects, &'a Bounds, &'a Restarts);

/// Why a pod is not available any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Eviction,
    /// A controller deleted it. One that began anew since may not know.
    Controller,
    /// Nodes, preemption, taints.
    Other,
}

#[derive(Debug)]
struct Lost {
    at: u64,
    cause: Cause,
    /// The uid of what scales it.
    root: String,
    /// Its metadata, and its node.
    pod: Value,
}

fn is_available(pod: &Value) -> bool {
    !is_deleting(pod) && is_condition_true(pod, "Ready")
}

impl Availability {
    /// See [`super::Laws::disk_full_until`].
    pub fn disk_full_until(&mut self, at: u64) {
        self.disk_full_until = Some(at);
    }

    /// Follows a change of a node.
    pub fn follow_node(&mut self, now: u64, before: Option<&Value>, after: &Value) {
        if before.is_some_and(is_tainted) || is_tainted(after) {
            self.tainted_at.insert(text(after, &["metadata", "name"]).to_owned(), now);
        }
    }

    /// The nodes on which daemon sets must have pods: those without taints, which as upstream's controller has it keep pods away that
    /// do not tolerate a node that is not ready, for as long as a controller may not have seen that they are gone.
    fn settled_nodes<'a>(&'a self, objects: &'a Objects, now: u64) -> impl Iterator<Item = &'a str> {
        let untainted = objects.of(NODES).filter(|node| !is_tainted(node));
        let names = untainted.map(|node| text(node, &["metadata", "name"]));
        names.filter(move |name| self.tainted_at.get(*name).is_none_or(|at| at + WINDOW_MILLIS < now))
    }

    /// Pods that were available until lately, and were not evicted.
    pub fn lost_without_eviction(&self, now: u64) -> impl Iterator<Item = &Value> {
        let lost = self.lost.values().filter(move |lost| lost.at + WINDOW_MILLIS >= now);
        lost.filter(|lost| lost.cause != Cause::Eviction).map(|lost| &lost.pod)
    }

    /// Follows a change of a pod; what it breaks.
    pub fn follow(&mut self, known: Known<'_>, step: &Step<'_>) -> Option<String> {
        let (objects, now) = (known.0, step.now);
        let (was, is) =
            (step.before.filter(|pod| is_available(pod)), step.after.filter(|pod| is_available(pod)));
        if let Some(pod) = is {
            self.ready_since.entry(uid(pod).to_owned()).or_insert(now);
            self.lost.remove(uid(pod));
        }
        let pod = was.filter(|before| is.is_none_or(|after| uid(after) != uid(before)))?;
        let since = self.ready_since.remove(uid(pod)).unwrap_or(now);
        let root = objects.root(pod);
        let taken = is_taken_by_controller(pod, step.after);
        let broken = match root {
            Some(root) if taken && since + SEEN_READY_MILLIS < now && !self.is_disk_late(now) => {
                self.check(known, now, root, pod)
            }
            _ => None,
        };
        let cause = match step.after {
            _ if taken => Cause::Controller,
            Some(pod) if is_eviction(pod) => Cause::Eviction,
            _ => Cause::Other,
        };
        let root = root.map(|(_, root)| uid(root).to_owned()).unwrap_or_default();
        self.lost.retain(|_, lost| lost.at + WINDOW_MILLIS >= now);
        let kept = json!({"metadata": pod["metadata"], "spec": {"nodeName": node_of(pod)}});
        self.lost.insert(uid(pod).to_owned(), Lost { at: now, cause, root, pod: kept });
        broken.map(|text| format!("{}: {text}", step.key))
    }

    fn is_disk_late(&self, now: u64) -> bool {
        self.disk_full_until.is_some_and(|until| now < until + LATE_STATUS_MILLIS)
    }

    /// Pods that their controllers may count as available.
    fn lost_of<'a>(
        &'a self,
        now: u64,
        root: &'a str,
        restarts: &'a Restarts,
    ) -> impl Iterator<Item = &'a Value> {
        let lost = self.lost.values().filter(move |lost| lost.root == root && lost.at + WINDOW_MILLIS >= now);
        let counts =
            move |lost: &&Lost| lost.cause != Cause::Controller || restarts.may_be_unseen(now, lost.at);
        lost.filter(counts).map(|lost| &lost.pod)
    }

    fn check(&self, known: Known<'_>, now: u64, (key, root): (&str, &Value), pod: &Value) -> Option<String> {
        let (objects, scales, restarts) = known;
        if number(root, &["spec", "minReadySeconds"]) > 0 {
            return None;
        }
        let replicas = scales.min(now, uid(root)).unwrap_or(0);
        if key.starts_with(STATEFUL_SETS) {
            return self.check_ordinals(known, now, (root, replicas), pod);
        }
        let least = if key.starts_with(DEPLOYMENTS) {
            least_of_deployment(root, replicas)?
        } else if key.starts_with(DAEMON_SETS) {
            if daemon_set_surges(root) {
                return self.check_surge(known, now, root, pod);
            }
            let count = |nodes: usize| i64::try_from(nodes).unwrap_or(0);
            let settled = count(self.settled_nodes(objects, now).count());
            least_of_daemon_set(root, count(objects.of(NODES).count()), settled)?
        } else {
            return None;
        };
        let available = objects.pods_below(uid(root)).filter(|pod| is_available(pod)).count();
        let available =
            i64::try_from(available + self.lost_of(now, uid(root), restarts).count()).unwrap_or(i64::MAX);
        let name = text(root, &["metadata", "name"]);
        (available < least)
            .then(|| format!("its deletion leaves {name} {available} available pods, and {least} must stay"))
    }

    /// A daemon set that surges takes a pod when its node has another one, whatever other nodes have.
    fn check_surge(
        &self,
        (objects, _, restarts): Known<'_>,
        now: u64,
        set: &Value,
        pod: &Value,
    ) -> Option<String> {
        let node = node_of(pod);
        let mut others = objects
            .pods_of(uid(set))
            .filter(|other| is_available(other))
            .map(|other| &**other)
            .chain(self.lost_of(now, uid(set), restarts));
        let is_alone = !others.any(|other| node_of(other) == node);
        // Pods of a node that is gone, or not ready, go as well.
        let is_node = self.settled_nodes(objects, now).any(|known| known == node);
        let name = text(set, &["metadata", "name"]);
        (is_alone && is_node)
            .then(|| format!("its deletion leaves {node} without an available pod of {name}"))
    }

    /// In a stateful set a pod goes only if the others are available, but for `maxUnavailable`. In parallel without that, those before
    /// it are not looked at.
    fn check_ordinals(
        &self,
        (objects, scales, restarts): Known<'_>,
        now: u64,
        (set, replicas): (&Value, i64),
        pod: &Value,
    ) -> Option<String> {
        let strategy = at(set, &["spec", "updateStrategy"]);
        let most = &strategy["rollingUpdate"]["maxUnavailable"];
        let ordinal = ordinal(text(pod, &["metadata", "name"]))?;
        let start = number(set, &["spec", "ordinals", "start"]);
        if strategy["type"] == "OnDelete" || ordinal >= start + replicas {
            return None;
        }
        let parallel = text(set, &["spec", "podManagementPolicy"]) == "Parallel" && most.is_null();
        let first = if parallel { ordinal + 1 } else { start };
        let names: Vec<&str> = objects
            .pods_of(uid(set))
            .filter(|pod| is_available(pod))
            .map(|pod| &**pod)
            .chain(self.lost_of(now, uid(set), restarts))
            .map(|pod| text(pod, &["metadata", "name"]))
            .collect();
        let name = text(set, &["metadata", "name"]);
        let missing: Vec<String> = (first..start + replicas)
            .filter(|other| *other != ordinal)
            .map(|other| format!("{name}-{other}"))
            .filter(|other| !names.contains(&&**other))
            .collect();
        // A share is of as many replicas as the controller may have seen.
        let whole = scales.max(uid(set)).unwrap_or(replicas);
        let most = if most.is_null() { 1 } else { share_down(most, whole).max(1) };
        (i64::try_from(missing.len()).unwrap_or(i64::MAX) >= most)
            .then(|| format!("deleted while {missing:?} are not available, and {most} may not be"))
    }
}

/// Whether a controller has deleted the pod, to have fewer or another one.
fn is_taken_by_controller(before: &Value, after: Option<&Value>) -> bool {
    let disrupted = |pod: &Value| is_condition_true(pod, "DisruptionTarget");
    after.is_none_or(is_deleting) && !disrupted(before) && !after.is_some_and(disrupted)
}

fn ordinal(name: &str) -> Option<i64> {
    name.rsplit_once('-')?.1.parse().ok()
}

/// How many available pods the rollout of a deployment leaves.
fn least_of_deployment(deployment: &Value, replicas: i64) -> Option<i64> {
    let strategy = at(deployment, &["spec", "strategy"]);
    if strategy["type"] != "RollingUpdate" {
        return None;
    }
    let surge = share_up(&strategy["rollingUpdate"]["maxSurge"], replicas);
    let unavailable = share_down(&strategy["rollingUpdate"]["maxUnavailable"], replicas);
    // Of both none, nothing could be rolled.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    Some(replicas - unavailable.min(replicas))
}

/// Whether the rollout of a daemon set puts new pods beside old ones.
fn daemon_set_surges(set: &Value) -> bool {
    let strategy = at(set, &["spec", "updateStrategy"]);
    // Any count or percentage of some nodes is at least one.
    strategy["type"] == "RollingUpdate" && share_up(&strategy["rollingUpdate"]["maxSurge"], 1) > 0
}

/// How many available pods the rollout of a daemon set leaves that does not surge.
fn is_tainted(node: &Value) -> bool {
    at(node, &["spec", "taints"]).as_array().is_some_and(|taints| !taints.is_empty())
}

fn least_of_daemon_set(set: &Value, nodes: i64, settled: i64) -> Option<i64> {
    let strategy = at(set, &["spec", "updateStrategy"]);
    if strategy["type"] != "RollingUpdate" {
        return None;
    }
    Some(settled - share_up(&strategy["rollingUpdate"]["maxUnavailable"], nodes).max(1))
}

fn node_of(pod: &Value) -> &str {
    text(pod, &["spec", "nodeName"])
}

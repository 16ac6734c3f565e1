//! What each pod of the node was granted, and the resizes that wait. Upstream's `allocation_manager.go`.
//!
//! Invariant: resizes are checked against what the other pods were granted; those that ask for no more go first, then those of
//! higher priority, then those of guaranteed pods.

use crate::pods::allocation::{self, Allocation};
use crate::pods::context::NodeContext;
use crate::pods::core::{Node, Pod};
use crate::pods::model::{self, Qos};
use crate::pods::worker::PendingResize;
use crate::pods::{admission, worker::ShownAs};
use kaji_runtime::EventRecord;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

/// The file of what a pod was granted, in its directory.
const FILE: &str = "allocated_resources.json";

struct Granted {
    allocation: Allocation,
    /// Why what the pod asks for now is not granted.
    pending: Option<PendingResize>,
}

/// All grants of a node.
#[derive(Default)]
pub(super) struct Allocations {
    pods: HashMap<String, Granted>,
}

/// What a look at the node's pods has found.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Resizes that wait, by uid.
    pub(super) pending: HashMap<String, PendingResize>,
    /// Pods that were granted something else than before.
    pub(super) changed: HashSet<String>,
}

fn file(cx: &NodeContext, uid: &str) -> PathBuf {
    cx.config.pod_dir(uid).join(FILE)
}

fn save(cx: &NodeContext, pod: &Pod, allocation: &Allocation) -> bool {
    let saved = allocation::save(&file(cx, model::uid(pod)), allocation);
    if let Err(error) = &saved {
        tracing::warn!(pod = model::display(pod), %error, "the resources allocated to the pod cannot be checkpointed");
    }
    saved.is_ok()
}

impl Allocations {
    /// Replaces pods by what they were granted, after judging what they ask for.
    pub(super) fn apply(&mut self, cx: &NodeContext, pods: &mut [(Arc<Pod>, ShownAs)]) -> Applied {
        let shown: HashSet<&str> = pods.iter().map(|(pod, _)| model::uid(pod)).collect();
        self.pods.retain(|uid, _| shown.contains(uid.as_str()));
        let desired: Vec<Arc<Pod>> = pods.iter().map(|(pod, _)| pod.clone()).collect();
        for pod in desired.iter().filter(|p| !model::is_terminal(p) && !model::deleting(p)) {
            self.pods.entry(model::uid(pod).to_owned()).or_insert_with(|| {
                let allocation = allocation::load(&file(cx, model::uid(pod))).unwrap_or_else(|| {
                    let first = Allocation::of(pod);
                    save(cx, pod, &first);
                    first
                });
                Granted { allocation, pending: None }
            });
        }
        let changed =
            cx.facts.node().map(|node| self.retry_pending_resizes(cx, &desired, &node)).unwrap_or_default();
        for (pod, _) in pods.iter_mut() {
            if let Some(granted) = self.pods.get(model::uid(pod)) {
                *pod = granted.allocation.apply(pod);
            }
        }
        let waits = |(uid, granted): (&String, &Granted)| Some((uid.clone(), granted.pending.clone()?));
        Applied { pending: self.pods.iter().filter_map(waits).collect(), changed }
    }

    /// Grants what can be granted. The pods that were granted something.
    fn retry_pending_resizes(
        &mut self,
        cx: &NodeContext,
        desired: &[Arc<Pod>],
        node: &Node,
    ) -> HashSet<String> {
        let mut changed = HashSet::new();
        let mut resizes: Vec<&Arc<Pod>> = vec![];
        for pod in desired {
            let Some(granted) = self.pods.get_mut(model::uid(pod)) else { continue };
            if granted.allocation.is_of(pod) {
                granted.pending = None;
            } else if !model::deleting(pod) && !model::is_terminal(pod) {
                resizes.push(pod);
            }
        }
        resizes.sort_by_key(|pod| {
            let more = self.pods.get(model::uid(pod)).is_some_and(|g| asks_for_more(pod, &g.allocation));
            let priority = model::spec(pod).priority.unwrap_or(0);
            (more, std::cmp::Reverse(priority), model::qos(pod) != Qos::Guaranteed)
        });
        for pod in resizes {
            let uid = model::uid(pod);
            let others: Vec<Arc<Pod>> = desired
                .iter()
                .filter(|other| model::uid(other) != uid && !model::is_terminal(other))
                .map(|other| {
                    self.pods.get(model::uid(other)).map_or(other.clone(), |g| g.allocation.apply(other))
                })
                .collect();
            let others: Vec<&Pod> = others.iter().map(|p| &**p).collect();
            let granted_now = self.pods.get(uid).map(|g| g.allocation.apply(pod));
            let admitted = match granted_now.and_then(|now| infeasible(cx, pod, &now)) {
                Some(message) => Err(("Infeasible", message)),
                None => allocation::can_resize(pod, &others, node).map_err(|message| ("Deferred", message)),
            };
            let Some(granted) = self.pods.get_mut(uid) else { continue };
            let generation = pod.metadata.generation.unwrap_or(0);
            match admitted {
                Ok(()) => {
                    let allocation = Allocation::of(pod);
                    // It has no effect before it is on disk.
                    if save(cx, pod, &allocation) {
                        *granted = Granted { allocation, pending: None };
                        changed.insert(uid.to_owned());
                        let message = allocation::event("Pod resize started", pod, "");
                        cx.api.record(EventRecord::normal(model::reference(pod), "ResizeStarted", message));
                    }
                }
                Err((reason, message)) => {
                    let pending = PendingResize { reason: reason.to_owned(), message, generation };
                    if granted.pending.as_ref() != Some(&pending) {
                        let text = allocation::event(&format!("Pod resize {reason}"), pod, &pending.message);
                        let event = format!("Resize{reason}");
                        cx.api.record(EventRecord::warning(model::reference(pod), &event, text));
                        granted.pending = Some(pending);
                    }
                }
            }
        }
        changed
    }
}

/// Why static managers of the node never grant a resize. More than the whole node has is refused by admission
/// (`PodResizeValidator`); what does not fit beside other pods is deferred (`can_resize`).
fn infeasible(cx: &NodeContext, pod: &Pod, granted: &Pod) -> Option<String> {
    let all = |pod: &Pod, resource: &str| -> Vec<Option<i64>> {
        let containers = model::init_containers(pod).iter().chain(model::containers(pod));
        containers.map(|c| model::milli(model::requests(c.resources.as_ref()), resource)).collect()
    };
    let changes = |resource: &str| all(pod, resource) != all(granted, resource);
    let managers = [
        (cx.managers.pins(), "cpu", "CPU Manager policy \"static\""),
        (cx.managers.binds_memory(), "memory", "Memory Manager policy \"Static\""),
    ];
    let manager = managers.into_iter().find(|(is_static, resource, _)| *is_static && changes(resource))?.2;
    (model::qos(pod) == Qos::Guaranteed)
        .then(|| format!("Resize is infeasible for Guaranteed Pods alongside {manager}"))
}

fn asks_for_more(pod: &Arc<Pod>, granted: &Allocation) -> bool {
    let (wanted, now) = (admission::pod_requests(pod), admission::pod_requests(&granted.apply(pod)));
    ["cpu", "memory"].iter().any(|name| wanted.get(*name).unwrap_or(&0) > now.get(*name).unwrap_or(&0))
}

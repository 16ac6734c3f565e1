//! Victims that need not be deleted: what they take is only reserved, and their bindings end.

use super::Scheduler;
use crate::{framework::Status, pod_info::PodInfo, preemption::preempted, scheduling_queue::Popped};
use std::sync::Arc;

impl Scheduler {
    /// Ends the bindings of victims that are not bound yet, which are scheduled again. The other victims.
    pub(super) fn end_bindings(
        &mut self,
        popped: &Popped,
        node: &str,
        mut victims: Vec<Arc<PodInfo>>,
    ) -> Vec<Arc<PodInfo>> {
        victims.retain(|victim| {
            let Some(hold) = self.bindings.get(victim.uid()) else { return true };
            let ended = !victim.pod.metadata.deleting()
                && hold.end(Status::error("preempted by DefaultPreemption").by("DefaultPreemption"));
            if ended {
                let event = preempted(victim, &popped.info, node, " (in kube-scheduler memory).");
                self.recorders[popped.profile].record(event);
            }
            !ended
        });
        victims
    }

    /// A pod is gone, or about to go, while it is being bound: what it took is free at once.
    pub(super) fn end_binding(&self, uid: &str) {
        if let Some(hold) = self.bindings.get(uid) {
            hold.end(Status::error("the pod is deleted"));
        }
    }
}

//! Detaching: when it is safe, and when it is done all the same.

use super::{AttachDetach, Attached, NodeAttachments, Report, Wanted, metrics};
use jiff::{SignedDuration, Timestamp};
use kaji_runtime::{Plan, Step, Target, Write, objects::VolumeAttachment};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

/// Upstream's `attachDetachReconcileMaxWaitForUnmountDuration`.
const LONGEST_UNMOUNT: SignedDuration = SignedDuration::from_mins(6);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The attachments to be deleted, and when to check again.
#[derive(Default)]
pub(super) struct Detached {
    steps: Vec<Step>,
    /// Those that are deleted though it may not be safe, and why.
    forced: Vec<(Target, &'static str)>,
    again: Option<Duration>,
}

impl Detached {
    /// Adds the deletions to a plan that first takes the volumes off the Node's list.
    pub(super) fn after(self, plan: Plan) -> Plan {
        let plan = metrics::forced(plan.stage(self.steps), self.forced);
        match self.again {
            Some(wait) => plan.again_after(wait),
            None => plan,
        }
    }
}

impl NodeAttachments {
    /// Decides on the attachments that no pod needs.
    pub(super) fn detach(
        &self,
        controller: &AttachDetach,
        wanted: &BTreeMap<String, Wanted>,
        attached: &BTreeMap<String, Attached>,
        now: Timestamp,
        report: &mut Report,
    ) -> Detached {
        let mut requests = controller.requests.lock();
        requests.retain(|(node, name), _| {
            *node != self.name || (attached.contains_key(name) && !wanted.contains_key(name))
        });
        let mut detached = Detached::default();
        for (name, present) in attached.iter().filter(|(name, _)| !wanted.contains_key(*name)) {
            if present.object.metadata.deleting() {
                continue;
            }
            let since = *requests.entry((self.name.clone(), name.clone())).or_insert(now);
            let left = LONGEST_UNMOUNT - now.duration_since(since);
            let unique = present.unique_name();
            let force = self.force(controller.force_on_timeout && left <= SignedDuration::ZERO);
            if self.uses(&unique) && force.is_none() {
                // A node that becomes unhealthy later is looked at then.
                if !self.healthy() && controller.force_on_timeout {
                    let wait = Duration::try_from(left).unwrap_or_default();
                    detached.again = Some(detached.again.map_or(wait, |again| again.min(wait)));
                }
                continue;
            }
            report.checked |= force.is_none();
            report.leaving.push(unique);
            let meta = &present.object.metadata;
            let target = Target::of::<VolumeAttachment>("", &meta.name);
            detached.forced.extend(force.map(|reason| (target.clone(), reason)));
            detached.steps.push(Step {
                write: Write::Delete { target, options: json!({"preconditions": {"uid": meta.uid}}) },
                on_success: None,
                on_failure: None,
            });
        }
        detached
    }

    /// Why a volume is detached though the kubelet may use it, if it is. `late`: the kubelet has had the time for it.
    fn force(&self, late: bool) -> Option<&'static str> {
        if late && !self.healthy() {
            return Some(metrics::TIMEOUT);
        }
        self.out_of_service().then_some(metrics::OUT_OF_SERVICE)
    }

    /// Whether the kubelet says that it uses a volume. What a node that is gone said last is not known: it may.
    fn uses(&self, unique: &str) -> bool {
        self.node.as_ref().is_none_or(|node| node.status.volumes_in_use.iter().any(|name| name == unique))
    }

    fn healthy(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.ready())
    }

    fn out_of_service(&self) -> bool {
        let taints = self.node.iter().flat_map(|node| &node.spec.taints);
        taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
    }
}

//! Attaching: the objects, and the events of pods that wait for them.

use super::{Attached, NodeAttachments, Report, Wanted, unique_name};
use kaji_runtime::{
    EventRecord, Plan, Projection, Step, Target, Write,
    objects::{AttachedVolume, PersistentVolume, Pod, VolumeAttachment},
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

const FAILED: &str = "FailedAttachVolume";

fn warn(plan: Plan, pod: &Pod, message: String) -> Plan {
    plan.event(EventRecord::warning(pod.metadata.reference(&Pod::api_version(), Pod::KIND), FAILED, message))
}

/// Whether a volume may be attached to several nodes at once. Without a mode nothing is known, and the driver decides.
fn shared(volume: &PersistentVolume) -> bool {
    let modes = &volume.spec.access_modes;
    modes.is_empty() || modes.iter().any(|mode| matches!(mode.as_str(), "ReadWriteMany" | "ReadOnlyMany"))
}

impl NodeAttachments {
    /// Attaches what is wanted and is not attached, and says why what waits does.
    pub(super) fn attach(
        &self,
        wanted: &BTreeMap<String, Wanted>,
        attached: &BTreeMap<String, Attached>,
    ) -> Plan {
        let (mut plan, mut steps) = (Plan::nothing(), vec![]);
        for (name, Wanted { volume, pods }) in wanted {
            if let Some(present) = attached.get(name) {
                let error = present.object.status.attach_error.as_ref();
                if let Some(error) = error.filter(|_| !present.object.status.attached) {
                    let (volume, why) = (&volume.metadata.name, &error.message);
                    for pod in pods {
                        let message = format!("AttachVolume.Attach failed for volume {volume:?} : {why}");
                        plan = warn(plan, pod, message);
                    }
                }
                continue;
            }
            if !shared(volume) && self.attached_to_another(volume) {
                plan = self.multi_attach(plan, volume, pods);
                continue;
            }
            steps.extend(self.create(name, volume));
        }
        plan.stage(steps)
    }

    fn attached_to_another(&self, volume: &PersistentVolume) -> bool {
        let all = self.attachments.indexed(VolumeAttachment::VOLUME, &volume.metadata.name);
        all.into_iter().any(|attachment| attachment.spec.node_name != self.name)
    }

    fn create(&self, name: &str, volume: &PersistentVolume) -> Option<Step> {
        let body = json!({
            "apiVersion": VolumeAttachment::api_version(),
            "kind": VolumeAttachment::KIND,
            "metadata": {"name": name},
            "spec": {
                "attacher": volume.spec.csi.as_ref()?.driver,
                "nodeName": self.name,
                "source": {"persistentVolumeName": volume.metadata.name},
            },
        });
        let target = Target::of::<VolumeAttachment>("", "");
        Some(Step { write: Write::Create { target, body }, on_success: None, on_failure: None })
    }

    /// Says that another node has the volume; only pods of their own namespace are named to users.
    fn multi_attach(&self, mut plan: Plan, volume: &PersistentVolume, pods: &[Arc<Pod>]) -> Plan {
        let (name, users) = (&volume.metadata.name, self.users_on_others(volume));
        for pod in pods {
            let same = |user: &&Arc<Pod>| user.metadata.namespace == pod.metadata.namespace;
            let named: Vec<&str> =
                users.iter().filter(same).map(|user| user.metadata.name.as_str()).collect();
            let others = users.len() - named.len();
            let detail = match (named.is_empty(), others) {
                (true, 0) => {
                    "Volume is already exclusively attached to one node and can't be attached to another"
                        .to_owned()
                }
                (true, others) => {
                    format!("Volume is already used by {others} pod(s) in different namespaces")
                }
                (false, 0) => format!("Volume is already used by pod(s) {}", named.join(", ")),
                (false, others) => format!(
                    "Volume is already used by pod(s) {} and {others} pod(s) in different namespaces",
                    named.join(", ")
                ),
            };
            plan = warn(plan, pod, format!("Multi-Attach error for volume {name:?} {detail}"));
        }
        plan
    }
}

/// Says of volumes that the Node's status lists from now on that they are attached.
pub(super) fn succeeded(
    mut plan: Plan,
    shown: &[AttachedVolume],
    report: &Report,
    wanted: &BTreeMap<String, Wanted>,
) -> Plan {
    for Wanted { volume, pods } in wanted.values() {
        let unique = volume.spec.csi.as_ref().map(|csi| unique_name(csi)).unwrap_or_default();
        if !report.attached.contains_key(&unique) || shown.iter().any(|v| v.name == unique) {
            continue;
        }
        for pod in pods {
            let message = format!("AttachVolume.Attach succeeded for volume {:?} ", volume.metadata.name);
            let about = pod.metadata.reference(&Pod::api_version(), Pod::KIND);
            plan = plan.event(EventRecord::normal(about, "SuccessfulAttachVolume", message));
        }
    }
    plan
}

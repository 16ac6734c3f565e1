//! Carries preemption out: victims get the `DisruptionTarget` condition and are deleted; the loop gets a message when that is done.
//!
//! Invariant: a victim is the pod that was chosen: another one of the same name is neither patched nor deleted.

use crate::pod_info::PodInfo;
use futures_util::future::join_all;
use kaji_runtime::{Client, Error, EventRecord, PatchKind, Recorder, Target, objects::Pod};
use serde_json::json;
use std::sync::Arc;

/// Pods to be deleted for another one.
pub struct Preemption {
    /// The pod that needs the room.
    pub preemptor: Arc<PodInfo>,
    /// Where.
    pub node: String,
    /// The pods to be deleted.
    pub victims: Vec<Arc<PodInfo>>,
    /// For the condition's time.
    pub now: jiff::Timestamp,
}

/// The event of a victim.
pub fn preempted(victim: &PodInfo, preemptor: &PodInfo, node: &str, how: &str) -> EventRecord {
    let text = format!("Preempted by pod {} on node {node}{how}", preemptor.uid());
    EventRecord::normal(victim.pod.metadata.reference("v1", "Pod"), "Preempted", text)
}

impl Preemption {
    /// Deletes the victims. True if every one is deleted, or being deleted.
    pub async fn carry_out(&self, client: &Client, recorder: &Recorder) -> bool {
        let victims = self.victims.iter().filter(|victim| !victim.pod.metadata.deleting());
        let all = victims.map(|victim| async {
            match self.delete(client, victim).await {
                Ok(()) => {
                    recorder.record(preempted(victim, &self.preemptor, &self.node, ""));
                    true
                }
                Err(error) if error.not_found() || error.conflict() => true,
                Err(error) => {
                    tracing::warn!(victim = %victim.key(), %error, "failed to delete a pod for a more important one");
                    false
                }
            }
        });
        join_all(all).await.into_iter().all(|deleted| deleted)
    }

    async fn delete(&self, client: &Client, victim: &PodInfo) -> Result<(), Error> {
        let meta = &victim.pod.metadata;
        let scheduler = match self.preemptor.pod.spec.scheduler_name.as_str() {
            "" => "default-scheduler",
            name => name,
        };
        let patch = json!({"metadata": {"uid": meta.uid}, "status": {"conditions": [{
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": format!("{scheduler}: preempting to accommodate a higher priority pod"),
            "observedGeneration": meta.generation,
            "lastTransitionTime": kaji_meta::time::Time::new(self.now).to_string(),
        }]}});
        let target = Target::of::<Pod>(&meta.namespace, &meta.name);
        let kind = PatchKind::Strategic.content_type();
        client.patch(&target.clone().subresource("status"), kind, "", &patch).await?;
        let options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": meta.uid}});
        client.delete(&target, &options).await.map(drop)
    }
}

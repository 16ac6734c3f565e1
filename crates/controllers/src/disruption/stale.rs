//! Pods that were to be disrupted, and were not: after a while their condition `DisruptionTarget` says so no more.
//!
//! Invariant: pods that are being deleted, that have finished, and those that their kubelet ends keep the condition.
//!
//! Source: upstream's `syncStalePodDisruption`.

use super::COMPONENT;
use crate::shared::pods::disruption_target;
use jiff::{SignedDuration, Timestamp};
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, PatchKind, Plan, Reconciler, View, Write, client::Target,
    objects::Pod,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

const CONDITION: &str = "DisruptionTarget";
/// The reason of a kubelet, which may take its time.
const BY_KUBELET: &str = "TerminationByKubelet";
/// How long the condition may stand without a deletion.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// The controller.
pub fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Stale, informers).workers(1).reads::<Pod>(keys)
}

/// Since when a pod is to be disrupted, although nothing disrupts it yet.
fn since(pod: &Pod) -> Option<Timestamp> {
    let condition = pod.condition(CONDITION).filter(|c| c.status == "True" && c.reason != BY_KUBELET)?;
    let waits = !pod.metadata.deleting() && !pod.finished();
    waits.then(|| condition.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH))
}

fn keys(change: &Change<Pod>, _: &View) -> Vec<Key> {
    let marked = change.new.as_ref().filter(|pod| since(pod).is_some());
    marked.map(|pod| pod.metadata.key()).into_iter().collect()
}

struct Stale;

impl Reconciler for Stale {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "stale_pod_disruption"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let pods = view.get::<Pod>();
        let Some(pod) = pods.by_key(key) else { return Plan::nothing() };
        let Some(since) = since(pod) else { return Plan::nothing() };
        let left = DELETION_TIMEOUT.saturating_sub(cx.now.duration_since(since));
        if let Some(left) = Duration::try_from(left).ok().filter(|left| !left.is_zero()) {
            return Plan::nothing().again_after(left);
        }
        let meta = &pod.metadata;
        let condition = disruption_target(meta, false, None, None, cx.now);
        Plan::nothing().then(Write::Patch {
            target: Target::of::<Pod>(&meta.namespace, &meta.name).subresource("status"),
            kind: PatchKind::Strategic,
            body: json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
                "status": {"conditions": [condition]}}),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use serde_json::Value;

    fn plan(seconds: i64, change: impl FnOnce(&mut Value)) -> String {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "5", "generation": 2},
            "status": {"phase": "Running", "conditions": [
                {"type": CONDITION, "status": "True", "reason": "EvictionByEvictionAPI", "lastTransitionTime": ago(seconds)}]},
        });
        change(&mut pod);
        let view = View::default().with(snapshot::<Pod>([pod]));
        text(&reconcile(&Stale, &view, "ns", "p", &[]))
    }

    #[test]
    fn a_condition_is_taken_back_after_a_while() {
        assert_eq!(plan(30, |_| ()), "again after 90s\n");
        expect_test::expect![[r#"
            strategic /api/v1/namespaces/ns/pods/p/status {"metadata":{"resourceVersion":"5","uid":"u"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":null,"observedGeneration":2,"reason":null,"status":"False","type":"DisruptionTarget"}]}}
        "#]]
        .assert_eq(&plan(120, |_| ()));
    }

    #[test]
    fn pods_that_go_keep_it() {
        let kept: [fn(&mut Value); 4] = [
            |pod| pod["metadata"]["deletionTimestamp"] = ago(1).into(),
            |pod| pod["status"]["phase"] = "Failed".into(),
            |pod| pod["status"]["conditions"][0]["reason"] = BY_KUBELET.into(),
            |pod| pod["status"]["conditions"][0]["status"] = "False".into(),
        ];
        for change in kept {
            assert_eq!(plan(500, change), "");
        }
    }
}

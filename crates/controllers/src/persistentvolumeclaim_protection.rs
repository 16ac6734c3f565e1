//! Persistent volume claims in use by pods are protected from deletion by a finalizer, and bound ones have the condition `Unused`,
//! which says since when no pod names them.
//!
//! Invariants:
//! - A claim is in use while a pod that is bound to a node names it: a kubelet that has seen the pod waits for its
//!   claims. A pod that its kubelet is done with, or that was deleted by force, uses none, even while finalizers keep it: else it could
//!   wait for a claim that it owns (a stateful set's, deleted in the foreground), and the claim for it. Upstream does so for ephemeral
//!   volumes only.
//! - A claim is unused once no pod that is not over names it, bound or not. The condition is written when that changes.

use crate::{
    Descriptor, Start,
    shared::{
        conditions::seconds,
        protection::{Protected, Protection, concerned},
    },
};
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, PatchKind, View, Write,
    client::Target,
    objects::{PersistentVolumeClaim, Pod},
};
use serde_json::json;
use std::{collections::BTreeSet, marker::PhantomData, sync::Arc, time::Duration};

/// Time for a pod that was bound before the deletion to be observed.
const SETTLED: Duration = Duration::from_secs(1);
const COMPONENT: &str = "pvc-protection-controller";
/// The condition of claims that no pod names.
const UNUSED: &str = "Unused";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "persistentvolumeclaim-protection-controller",
    components: &[COMPONENT],
    service_account: Some("pvc-protection-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Protection::<PersistentVolumeClaim>(PhantomData), informers)
        .reads::<PersistentVolumeClaim>(keys_of_claim)
        .reads::<Pod>(keys_of_pod)
}

/// Whether a pod still has to do with its volumes.
fn holds(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() || pod.metadata.deletion_grace_period_seconds != Some(0)
}

/// A claim that waits for its finalizer or its end, or that lacks the condition.
fn keys_of_claim(change: &Change<PersistentVolumeClaim>, _: &View) -> Vec<Key> {
    let lacking =
        change.new.as_ref().filter(|claim| tracked(claim) && claim.status.condition(UNUSED).is_none());
    match lacking {
        Some(claim) => vec![claim.metadata.key()],
        None => concerned::<PersistentVolumeClaim>(change),
    }
}

/// Whether a claim has the condition: the binder alone writes the statuses of those that wait for a volume.
fn tracked(claim: &PersistentVolumeClaim) -> bool {
    !claim.metadata.deleting() && claim.status.phase == "Bound"
}

/// The claims that a pod may have begun or ceased to use.
fn keys_of_pod(change: &Change<Pod>, _: &View) -> Vec<Key> {
    let state = |pod: &Arc<Pod>| (pod.metadata.uid.clone(), holds(pod), !pod.terminated());
    match (&change.old, &change.new) {
        (Some(old), Some(new)) if state(old) == state(new) => return vec![],
        (None, Some(new)) if new.terminated() => return vec![],
        _ => {}
    }
    let pods = change.old.iter().chain(&change.new);
    let claims = pods.flat_map(|pod| pod.claims().map(|(name, _)| (pod.metadata.namespace.clone(), name)));
    let claims: BTreeSet<_> = claims.collect();
    claims.into_iter().map(|(namespace, name)| Key::new(namespace, name)).collect()
}

/// Whether a pod names a claim: as one of its own, or as one that was made for it.
fn names(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let meta = &claim.metadata;
    let made_for = || meta.owner_references.iter().any(|o| o.controller && o.uid == pod.metadata.uid);
    pod.claims().any(|(name, own)| name == meta.name && (!own || made_for()))
}

impl Protected for PersistentVolumeClaim {
    const FINALIZER: &'static str = "kubernetes.io/pvc-protection";
    const COMPONENT: &'static str = COMPONENT;
    const QUEUE: &'static str = "pvcprotection";
    const WAIT: Duration = SETTLED;

    fn used(&self, view: &View) -> bool {
        let index = format!("{}/{}", self.metadata.namespace, self.metadata.name);
        view.get::<Pod>().indexed(Pod::CLAIM, &index).any(|pod| holds(pod) && names(pod, self))
    }

    fn upkeep(&self, view: &View, cx: &Cx<'_>) -> Option<Write> {
        if !tracked(self) {
            return None;
        }
        let meta = &self.metadata;
        let index = format!("{}/{}", meta.namespace, meta.name);
        let pods = view.get::<Pod>();
        let mut all = pods.indexed(Pod::CLAIM, &index).chain(pods.indexed(Pod::WAITING_CLAIM, &index));
        let (status, reason, message) = match all.any(|pod| !pod.terminated() && names(pod, self)) {
            true => ("False", "PodUsingPVC", "A pod is currently referencing this PVC"),
            false => ("True", "NoPodsUsingPVC", "No pods are currently referencing this PVC"),
        };
        let settled = match (self.status.condition(UNUSED), status) {
            (None, _) => false,
            (Some(current), "True") => current == "True",
            // As upstream, which leaves what is not true alone.
            (Some(current), _) => current != "True",
        };
        if settled {
            return None;
        }
        let condition = json!({"type": UNUSED, "status": status, "lastTransitionTime": seconds(cx.now),
            "reason": reason, "message": message});
        Some(Write::Patch {
            target: Target::of::<PersistentVolumeClaim>(&meta.namespace, &meta.name).subresource("status"),
            kind: PatchKind::Strategic,
            body: json!({
                "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
                "status": {"conditions": [condition]},
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, object, reconcile, snapshot, text};
    use expect_test::expect;
    use serde_json::Value;

    fn claim(name: &str, deleted: Option<i64>, more: Value) -> Value {
        let mut meta = json!({"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7",
            "finalizers": ["a", PersistentVolumeClaim::FINALIZER], "deletionTimestamp": deleted.map(ago)});
        for (k, v) in more.as_object().unwrap() {
            meta[k] = v.clone();
        }
        json!({"metadata": meta})
    }

    fn pod(name: &str, node: &str, volumes: Value, more: Value) -> Value {
        let mut meta = json!({"name": name, "namespace": "ns", "uid": name});
        for (k, v) in more.as_object().unwrap() {
            meta[k] = v.clone();
        }
        json!({"metadata": meta, "spec": {"nodeName": node, "volumes": volumes}})
    }

    #[test]
    fn protects_claims_of_bound_pods() {
        let named = |claim: &str| json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}, {"name": "t", "projected": {}}]);
        let owned = |pod: &str| json!({"ownerReferences": [{"kind": "Pod", "uid": pod, "controller": true}]});
        let claims = [
            claim("used", Some(9), json!({})),
            claim("unbound", Some(9), json!({})),
            claim("done", Some(9), json!({})),
            claim("fresh", Some(0), json!({})),
            claim("own-v", Some(9), owned("own")),
            claim("gone-v", Some(9), owned("gone")),
            claim("other-v", Some(9), owned("unrelated")),
            claim("plain", None, json!({"finalizers": []})),
            claim("kept", None, json!({})),
        ];
        let ephemeral = || json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]);
        let pods = [
            pod("a", "n", named("used"), json!({})),
            pod("b", "", named("unbound"), json!({})),
            pod(
                "waiting",
                "n",
                named("done"),
                json!({"deletionTimestamp": ago(1), "deletionGracePeriodSeconds": 0, "finalizers": ["foregroundDeletion"]}),
            ),
            pod("own", "n", ephemeral(), json!({})),
            pod(
                "gone",
                "n",
                ephemeral(),
                json!({"deletionTimestamp": ago(1), "deletionGracePeriodSeconds": 0}),
            ),
            pod("other", "n", ephemeral(), json!({})),
        ];
        let names = ["used", "unbound", "done", "fresh", "own-v", "gone-v", "other-v", "plain", "kept"];
        let view =
            View::default().with(snapshot::<PersistentVolumeClaim>(claims)).with(snapshot::<Pod>(pods));
        let reconciler = Protection::<PersistentVolumeClaim>(PhantomData);
        let all: Vec<String> =
            names.iter().map(|n| text(&reconcile(&reconciler, &view, "ns", n, &[]))).collect();
        expect![[r#"
            merge /api/v1/namespaces/ns/persistentvolumeclaims/unbound {"metadata":{"finalizers":["a"],"resourceVersion":"7","uid":"unbound"}}
            merge /api/v1/namespaces/ns/persistentvolumeclaims/done {"metadata":{"finalizers":["a"],"resourceVersion":"7","uid":"done"}}
            again after 1s
            merge /api/v1/namespaces/ns/persistentvolumeclaims/gone-v {"metadata":{"finalizers":["a"],"resourceVersion":"7","uid":"gone-v"}}
            merge /api/v1/namespaces/ns/persistentvolumeclaims/other-v {"metadata":{"finalizers":["a"],"resourceVersion":"7","uid":"other-v"}}
            merge /api/v1/namespaces/ns/persistentvolumeclaims/plain {"metadata":{"finalizers":["kubernetes.io/pvc-protection"],"resourceVersion":"7","uid":"plain"}}
        "#]].assert_eq(&all.concat());
    }

    fn named(claim: &str) -> Value {
        json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}])
    }

    #[test]
    fn says_since_when_no_pod_names_a_bound_claim() {
        let bound = |name: &str, unused: Option<&str>, more: Value| {
            let mut claim = claim(name, None, more);
            let condition = unused.map(|status| json!({"type": "Unused", "status": status}));
            let other = json!({"type": "FileSystemResizePending", "status": "True"});
            let conditions: Vec<Value> = [Some(other), condition].into_iter().flatten().collect();
            claim["status"] = json!({"phase": "Bound", "conditions": conditions});
            claim
        };
        let mut pending = claim("pending", None, json!({}));
        pending["status"] = json!({"phase": "Pending"});
        let mut leaving = bound("leaving", None, json!({}));
        leaving["metadata"]["deletionTimestamp"] = json!(ago(0));
        let claims = [
            bound("free", None, json!({})),
            bound("still-free", Some("True"), json!({})),
            bound("freed", Some("False"), json!({})),
            bound("waited-for", None, json!({})),
            bound("taken", Some("True"), json!({})),
            bound("still-taken", Some("False"), json!({"finalizers": []})),
            bound("over", Some("False"), json!({})),
            bound("foreign-v", Some("True"), json!({})),
            pending,
            leaving,
        ];
        let mut over = pod("over", "n", named("over"), json!({}));
        over["status"] = json!({"phase": "Succeeded"});
        let pods = [
            pod("a", "", named("waited-for"), json!({})),
            pod("b", "n", named("taken"), json!({})),
            pod("c", "n", named("still-taken"), json!({})),
            pod("foreign", "n", json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]), json!({})),
            over,
        ];
        let names = claims.each_ref().map(|claim| claim["metadata"]["name"].as_str().unwrap().to_owned());
        let view =
            View::default().with(snapshot::<PersistentVolumeClaim>(claims)).with(snapshot::<Pod>(pods));
        let reconciler = Protection::<PersistentVolumeClaim>(PhantomData);
        let all: Vec<String> =
            names.iter().map(|n| text(&reconcile(&reconciler, &view, "ns", n, &[]))).collect();
        expect![[r#"
            strategic /api/v1/namespaces/ns/persistentvolumeclaims/free/status {"metadata":{"resourceVersion":"7","uid":"free"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"No pods are currently referencing this PVC","reason":"NoPodsUsingPVC","status":"True","type":"Unused"}]}}
            strategic /api/v1/namespaces/ns/persistentvolumeclaims/freed/status {"metadata":{"resourceVersion":"7","uid":"freed"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"No pods are currently referencing this PVC","reason":"NoPodsUsingPVC","status":"True","type":"Unused"}]}}
            strategic /api/v1/namespaces/ns/persistentvolumeclaims/waited-for/status {"metadata":{"resourceVersion":"7","uid":"waited-for"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"A pod is currently referencing this PVC","reason":"PodUsingPVC","status":"False","type":"Unused"}]}}
            strategic /api/v1/namespaces/ns/persistentvolumeclaims/taken/status {"metadata":{"resourceVersion":"7","uid":"taken"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"A pod is currently referencing this PVC","reason":"PodUsingPVC","status":"False","type":"Unused"}]}}
            merge /api/v1/namespaces/ns/persistentvolumeclaims/still-taken {"metadata":{"finalizers":["kubernetes.io/pvc-protection"],"resourceVersion":"7","uid":"still-taken"}}
            strategic /api/v1/namespaces/ns/persistentvolumeclaims/over/status {"metadata":{"resourceVersion":"7","uid":"over"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"No pods are currently referencing this PVC","reason":"NoPodsUsingPVC","status":"True","type":"Unused"}]}}
            again after 1s
        "#]]
        .assert_eq(&all.concat());
    }

    #[test]
    fn a_pod_concerns_its_claims_when_it_comes_or_ends() {
        let state = |phase: &str, deleted: bool, running: bool| {
            let more = if deleted {
                json!({"deletionTimestamp": ago(1), "deletionGracePeriodSeconds": 30})
            } else {
                json!({})
            };
            let mut pod = pod("a", "n", named("c"), more);
            let state = if running { json!({"running": {}}) } else { json!({"waiting": {}}) };
            pod["status"] = json!({"phase": phase, "containerStatuses": [{"name": "x", "state": state}]});
            Some(Arc::new(object::<Pod>(pod)))
        };
        let keys = |old: &Option<Arc<Pod>>, new: &Option<Arc<Pod>>| {
            keys_of_pod(&Change { old: old.clone(), new: new.clone() }, &View::default()).len()
        };
        let (starting, running) = (state("Pending", false, false), state("Running", false, true));
        let (ending, ended) = (state("Running", true, true), state("Running", true, false));
        let done = state("Succeeded", false, false);
        for (old, new, count) in [
            (&None, &starting, 1),
            (&starting, &running, 0),
            (&running, &ending, 0),
            (&ending, &ended, 1),
            (&running, &done, 1),
            (&ended, &None, 1),
            (&None, &done, 0),
        ] {
            assert_eq!(keys(old, new), count, "{old:?} {new:?}");
        }
    }

    #[test]
    fn a_bound_claim_without_the_condition_is_looked_at() {
        let keys = |status: Value| {
            let mut claim = claim("c", None, json!({}));
            claim["status"] = status;
            let new = Some(Arc::new(object::<PersistentVolumeClaim>(claim)));
            keys_of_claim(&Change { old: None, new }, &View::default()).len()
        };
        assert_eq!(keys(json!({"phase": "Bound"})), 1);
        assert_eq!(keys(json!({"phase": "Pending"})), 0);
        assert_eq!(keys(json!({"phase": "Bound", "conditions": [{"type": "Unused", "status": "True"}]})), 0);
    }
}

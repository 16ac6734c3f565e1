//! Persistent volume claims in use by pods are protected from deletion by a finalizer.
//!
//! Invariant: a claim is in use while a pod that is bound to a node names it: a kubelet that has seen the pod waits for its
//! claims. A pod that its kubelet is done with, or that was deleted by force, uses none, even while finalizers keep it: else it could
//! wait for a claim that it owns (a stateful set's, deleted in the foreground), and the claim for it. Upstream does so for ephemeral
//! volumes only.

use crate::{
    Descriptor, Start,
    shared::protection::{Protected, Protection, concerned},
};
use kaji_runtime::{
    Change, Controller, Informers, Key, View,
    objects::{PersistentVolumeClaim, Pod},
};
use std::{marker::PhantomData, sync::Arc, time::Duration};

/// Time for a pod that was bound before the deletion to be observed.
const SETTLED: Duration = Duration::from_secs(1);
const COMPONENT: &str = "pvc-protection-controller";

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
        .reads::<PersistentVolumeClaim>(|change, _| concerned::<PersistentVolumeClaim>(change))
        .reads::<Pod>(keys_of_pod)
}

/// Whether a pod still has to do with its volumes.
fn holds(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() || pod.metadata.deletion_grace_period_seconds != Some(0)
}

/// The claims that a pod may have ceased to use.
fn keys_of_pod(change: &Change<Pod>, _: &View) -> Vec<Key> {
    let still = |pod: &Arc<Pod>| holds(pod) && !pod.finished();
    let same = |old: &Arc<Pod>, new: &Arc<Pod>| old.metadata.uid == new.metadata.uid && still(new);
    match (&change.old, &change.new) {
        (Some(old), Some(new)) if same(old, new) => vec![],
        (None, Some(_)) => vec![],
        _ => change
            .old
            .iter()
            .flat_map(|pod| pod.claims().map(|(name, _)| Key::new(pod.metadata.namespace.as_str(), name)))
            .collect(),
    }
}

impl Protected for PersistentVolumeClaim {
    const FINALIZER: &'static str = "kubernetes.io/pvc-protection";
    const COMPONENT: &'static str = COMPONENT;
    const QUEUE: &'static str = "pvcprotection";
    const WAIT: Duration = SETTLED;

    fn used(&self, view: &View) -> bool {
        let meta = &self.metadata;
        let pods = view.get::<Pod>();
        let uses = |pod: &Pod| {
            pod.claims().any(|(name, own)| {
                let made_for =
                    || meta.owner_references.iter().any(|o| o.controller && o.uid == pod.metadata.uid);
                name == meta.name && holds(pod) && (!own || made_for())
            })
        };
        pods.indexed(Pod::CLAIM, &format!("{}/{}", meta.namespace, meta.name)).any(|pod| uses(pod))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use expect_test::expect;
    use serde_json::{Value, json};

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
}

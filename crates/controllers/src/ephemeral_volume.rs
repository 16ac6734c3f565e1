//! Makes the claims of generic ephemeral volumes: `POD-VOLUME`, owned by the pod. Source: upstream's
//! `pkg/controller/volume/ephemeral`.
//!
//! Invariant: a claim of that name that is not the pod's own is left alone; the pod waits, and an event says why.

use crate::{Descriptor, Start, WorkersFlag};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Metric, Moment, Plan, Projection, Reconciler, Step,
    Target, View, Write,
    objects::{PersistentVolumeClaim, Pod},
};
use serde_json::{Value, json};
use std::sync::Arc;

const COMPONENT: &str = "ephemeral_volume";
const REASON: &str = "FailedBinding";

static CREATIONS: Metric = Metric::counter(
    "ephemeral_volume_controller_create_total",
    "[ALPHA] Number of PersistentVolumeClaim creation requests",
    &[],
);
static CREATION_FAILURES: Metric = Metric::counter(
    "ephemeral_volume_controller_create_failures_total",
    "[ALPHA] Number of PersistentVolumeClaim creation requests",
    &[],
);
/// The metrics of the controller.
pub static METRICS: [&Metric; 2] = [&CREATIONS, &CREATION_FAILURES];

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "ephemeral-volume-controller",
    components: &[COMPONENT],
    service_account: Some("ephemeral-volume-controller"),
    workers: Some(WorkersFlag { name: "concurrent-ephemeralvolume-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(EphemeralVolumes, informers)
        .reads::<Pod>(keys_of_pod)
        .reads::<PersistentVolumeClaim>(keys_of_claim)
}

fn concerned(pod: &Pod) -> bool {
    !pod.metadata.deleting() && !pod.spec.volumes.templates.is_empty()
}

/// A pod's volumes never change: it is looked at when it comes.
fn keys_of_pod(change: &Change<Pod>, _: &View) -> Vec<Key> {
    let new = change.new.iter().filter(|pod| change.old.is_none() && concerned(pod));
    new.map(|pod| pod.metadata.key()).collect()
}

/// The pods that lose their claim, or may have it now that another one is gone.
fn keys_of_claim(change: &Change<PersistentVolumeClaim>, view: &View) -> Vec<Key> {
    let (Some(old), None) = (&change.old, &change.new) else { return vec![] };
    let (pods, index) = (view.get::<Pod>(), format!("{}/{}", old.metadata.namespace, old.metadata.name));
    let users = [Pod::CLAIM, Pod::WAITING_CLAIM].into_iter().flat_map(|name| pods.indexed(name, &index));
    users.filter(|pod| concerned(pod)).map(|pod| pod.metadata.key()).collect()
}

struct EphemeralVolumes;

impl Reconciler for EphemeralVolumes {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let (pods, claims) = (view.get::<Pod>(), view.get::<PersistentVolumeClaim>());
        let Some(pod) = pods.by_key(key).filter(|pod| concerned(pod)) else { return Plan::nothing() };
        let (namespace, mut plan, mut steps) = (&pod.metadata.namespace, Plan::nothing(), vec![]);
        for (volume, template) in &pod.spec.volumes.templates {
            let name = format!("{}-{volume}", pod.metadata.name);
            let failed = |reason: String| {
                let about = pod.metadata.reference(&Pod::api_version(), Pod::KIND);
                EventRecord::warning(about, REASON, format!("ephemeral volume {volume}: {reason}"))
            };
            match claims.get(namespace, &name) {
                None => steps.push(Step {
                    write: claim(pod, &name, template),
                    on_success: None,
                    on_failure: Some(failed(format!("create PVC {name}: {{error}}"))),
                }),
                Some(claim) if claim.metadata.controller().is_some_and(|o| o.uid == pod.metadata.uid) => {}
                Some(_) => {
                    let pod = &pod.metadata.name;
                    let reason = format!(
                        "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
                    );
                    plan = plan.event(failed(reason));
                }
            }
        }
        let claims = Target::of::<PersistentVolumeClaim>(namespace, "");
        match steps.is_empty() {
            true => plan,
            false => plan
                .stage(steps)
                .observe(Moment::Written(claims.clone()), CREATIONS.one([]))
                .observe(Moment::NotWritten(claims.clone()), CREATIONS.one([]))
                .observe(Moment::NotWritten(claims), CREATION_FAILURES.one([])),
        }
    }
}

fn claim(pod: &Pod, name: &str, template: &Value) -> Write {
    let mut metadata = json!({
        "name": name,
        "ownerReferences": [pod.metadata.controller_ref(&Pod::api_version(), Pod::KIND)],
    });
    for field in ["annotations", "labels"] {
        if let Some(given) = template.pointer(&format!("/metadata/{field}")) {
            metadata[field] = given.clone();
        }
    }
    let body = json!({
        "apiVersion": PersistentVolumeClaim::api_version(),
        "kind": PersistentVolumeClaim::KIND,
        "metadata": metadata,
        "spec": template.get("spec"),
    });
    Write::Create { target: Target::of::<PersistentVolumeClaim>(&pod.metadata.namespace, ""), body }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, object, observed, reconcile, snapshot, text};
    use expect_test::expect;

    fn pod(name: &str, deleted: bool) -> Value {
        let volume = |name: &str| {
            json!({"name": name, "ephemeral": {"volumeClaimTemplate": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}})
        };
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
            "spec": {"volumes": [volume("made"), volume("new"), volume("taken"), {"name": "other", "emptyDir": {}}]},
        });
        if deleted {
            pod["metadata"]["deletionTimestamp"] = ago(1).into();
        }
        pod
    }

    fn claim(name: &str, owner: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns",
            "ownerReferences": [{"kind": "Pod", "uid": owner, "controller": true}]}})
    }

    #[test]
    fn makes_the_claims_of_pods() {
        let view = View::default()
            .with(snapshot::<Pod>([pod("p", false), pod("gone", true)]))
            .with(snapshot::<PersistentVolumeClaim>([claim("p-made", "uid-p"), claim("p-taken", "another")]));
        expect![[r#"
            create /api/v1/namespaces/ns/persistentvolumeclaims {"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"labels":{"app":"a"},"name":"p-new","ownerReferences":[{"apiVersion":"v1","blockOwnerDeletion":true,"controller":true,"kind":"Pod","name":"p","uid":"uid-p"}]},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}
                failed: Warning FailedBinding: ephemeral volume new: create PVC p-new: {error}
            event: Warning FailedBinding: ephemeral volume taken: PVC ns/p-taken was not created for pod ns/p (pod is not owner)
        "#]].assert_eq(&text(&reconcile(&EphemeralVolumes, &view, "ns", "p", &[])));
        assert_eq!(text(&reconcile(&EphemeralVolumes, &view, "ns", "gone", &[])), "");
        expect![[r#"
            written /api/v1/namespaces/ns/persistentvolumeclaims: ephemeral_volume_controller_create_total = 1
            not written /api/v1/namespaces/ns/persistentvolumeclaims: ephemeral_volume_controller_create_total = 1
            not written /api/v1/namespaces/ns/persistentvolumeclaims: ephemeral_volume_controller_create_failures_total = 1
        "#]]
        .assert_eq(&observed(&reconcile(&EphemeralVolumes, &view, "ns", "p", &[])));
        let lost =
            Change::<PersistentVolumeClaim> { old: Some(Arc::new(object(claim("p-taken", "x")))), new: None };
        assert_eq!(keys_of_claim(&lost, &view), [Key::new("ns", "p")]);
    }
}

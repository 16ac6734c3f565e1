//! Volumes, claims and classes of attributes stay while something uses them: a finalizer, which admission adds, goes when
//! nothing does.
//!
//! Invariants:
//! - A claim counts as used by pods that are bound to a node: a kubelet that sees the pod waits for its claims.
//! - A claim is let go only when its deletion is [`SETTLED`] old, so that pods that were bound before it have been seen.
//! - Every write names the uid and resourceVersion that it was decided for.

use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, Meta, PatchKind, Plan, Projection, Reconciler, View, Write,
    client::Target,
    objects::{ATTRIBUTES_CLASS, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttributesClass},
};
use serde_json::json;
use std::{marker::PhantomData, sync::Arc, time::Duration};

const SETTLED: Duration = Duration::from_secs(1);

/// The controller of claims.
pub fn claims(informers: &Arc<Informers>) -> Controller {
    Controller::new(Protection::<PersistentVolumeClaim>(PhantomData), informers)
        .reads::<PersistentVolumeClaim>(|change, _| concerned::<PersistentVolumeClaim>(change))
        .reads::<Pod>(keys_of_pod)
}

/// The controller of volumes.
pub fn volumes(informers: &Arc<Informers>) -> Controller {
    Controller::new(Protection::<PersistentVolume>(PhantomData), informers)
        .reads::<PersistentVolume>(|change, _| concerned::<PersistentVolume>(change))
}

/// The controller of classes of attributes.
pub fn classes(informers: &Arc<Informers>) -> Controller {
    Controller::new(Protection::<VolumeAttributesClass>(PhantomData), informers)
        .reads::<VolumeAttributesClass>(|change, _| concerned::<VolumeAttributesClass>(change))
        .reads::<PersistentVolumeClaim>(|change, _| {
            let old = change.old.iter().flat_map(|claim| claim.attributes_classes());
            old.map(|class| Key::new("", class)).collect()
        })
        .reads::<PersistentVolume>(|change, _| {
            let old = change.old.iter().filter_map(|v| v.spec.volume_attributes_class_name.as_deref());
            old.map(|class| Key::new("", class)).collect()
        })
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

/// What is protected, and by what.
trait Protected: Projection {
    const FINALIZER: &'static str;
    const CONTROLLER: &'static str;
    /// How old a deletion must be before the view is believed.
    const WAIT: Duration = Duration::ZERO;
    fn used(&self, view: &View) -> bool;
}

impl Protected for PersistentVolumeClaim {
    const FINALIZER: &'static str = "kubernetes.io/pvc-protection";
    const CONTROLLER: &'static str = "pvc-protection-controller";
    const WAIT: Duration = SETTLED;

    fn used(&self, view: &View) -> bool {
        let meta = &self.metadata;
        let pods = view.get::<Pod>();
        let uses = |pod: &Pod| {
            pod.claims().any(|(name, own)| {
                let made_for =
                    || meta.owner_references.iter().any(|o| o.controller && o.uid == pod.metadata.uid);
                name == meta.name && (!own || holds(pod) && made_for())
            })
        };
        pods.indexed(Pod::CLAIM, &format!("{}/{}", meta.namespace, meta.name)).any(|pod| uses(pod))
    }
}

impl Protected for PersistentVolume {
    const FINALIZER: &'static str = "kubernetes.io/pv-protection";
    const CONTROLLER: &'static str = "pv-protection-controller";

    fn used(&self, _: &View) -> bool {
        self.status.phase == "Bound"
    }
}

impl Protected for VolumeAttributesClass {
    const FINALIZER: &'static str = "kubernetes.io/vac-protection";
    const CONTROLLER: &'static str = "vac-protection-controller";
    const WAIT: Duration = SETTLED;

    fn used(&self, view: &View) -> bool {
        let name = &self.metadata.name;
        view.get::<PersistentVolumeClaim>().indexed(ATTRIBUTES_CLASS, name).next().is_some()
            || view.get::<PersistentVolume>().indexed(ATTRIBUTES_CLASS, name).next().is_some()
    }
}

/// What waits for its finalizer to go, or lacks it.
fn concerned<T: Protected>(change: &Change<T>) -> Vec<Key> {
    let meta = change.any().meta();
    let has = meta.finalizers.iter().any(|f| f == T::FINALIZER);
    if change.new.is_some() && meta.deleting() == has { vec![meta.key()] } else { vec![] }
}

struct Protection<T>(PhantomData<T>);

impl<T: Protected> Reconciler for Protection<T> {
    fn name(&self) -> &'static str {
        T::CONTROLLER
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let objects = view.get::<T>();
        let Some(object) = objects.by_key(key) else { return Plan::nothing() };
        let meta = object.meta();
        let has = meta.finalizers.iter().any(|f| f == T::FINALIZER);
        let mut finalizers = meta.finalizers.clone();
        match meta.deletion_timestamp {
            Some(_) if !has || object.used(view) => return Plan::nothing(),
            Some(since) => {
                let age = cx.now.duration_since(since);
                if age < jiff::SignedDuration::try_from(T::WAIT).unwrap_or_default() {
                    return Plan::nothing().again_after(T::WAIT);
                }
                finalizers.retain(|f| f != T::FINALIZER);
            }
            None if has => return Plan::nothing(),
            // Older than the admission plugin.
            None => finalizers.push(T::FINALIZER.into()),
        }
        Plan::nothing().then(patch::<T>(meta, &finalizers))
    }
}

fn patch<T: Projection>(meta: &Meta, finalizers: &[String]) -> Write {
    Write::Patch {
        target: Target::of::<T>(&meta.namespace, &meta.name),
        kind: PatchKind::Merge,
        body: json!({"metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        }}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
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
    fn claims_stay_while_bound_pods_use_them() {
        let named = |claim: &str| json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}, {"name": "t", "projected": {}}]);
        let owned = |pod: &str| json!({"ownerReferences": [{"kind": "Pod", "uid": pod, "controller": true}]});
        let claims = [
            claim("used", Some(9), json!({})),
            claim("unbound", Some(9), json!({})),
            claim("fresh", Some(0), json!({})),
            claim("own-v", Some(9), owned("own")),
            claim("gone-v", Some(9), owned("gone")),
            claim("other-v", Some(9), owned("somebody")),
            claim("plain", None, json!({"finalizers": []})),
            claim("kept", None, json!({})),
        ];
        let ephemeral = || json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]);
        let pods = [
            pod("a", "n", named("used"), json!({})),
            pod("b", "", named("unbound"), json!({})),
            pod("own", "n", ephemeral(), json!({})),
            pod(
                "gone",
                "n",
                ephemeral(),
                json!({"deletionTimestamp": ago(1), "deletionGracePeriodSeconds": 0}),
            ),
            pod("other", "n", ephemeral(), json!({})),
        ];
        let names = ["used", "unbound", "fresh", "own-v", "gone-v", "other-v", "plain", "kept"];
        let view =
            View::default().with(snapshot::<PersistentVolumeClaim>(claims)).with(snapshot::<Pod>(pods));
        let reconciler = Protection::<PersistentVolumeClaim>(PhantomData);
        let all: Vec<String> =
            names.iter().map(|n| text(&reconcile(&reconciler, &view, "ns", n, &[]))).collect();
        expect![[r#"
            merge /api/v1/namespaces/ns/persistentvolumeclaims/unbound {"metadata":{"finalizers":["a"],"resourceVersion":"7","uid":"unbound"}}
            again after 1s
            merge /api/v1/namespaces/ns/persistentvolumeclaims/gone-v {"metadata":{"finalizers":["a"],"resourceVersion":"7","uid":"gone-v"}}
            merge /api/v1/namespaces/ns/persistentvolumeclaims/other-v {"metadata":{"finalizers":["a"],"resourceVersion":"7","uid":"other-v"}}
            merge /api/v1/namespaces/ns/persistentvolumeclaims/plain {"metadata":{"finalizers":["kubernetes.io/pvc-protection"],"resourceVersion":"7","uid":"plain"}}
        "#]].assert_eq(&all.concat());
    }

    #[test]
    fn volumes_stay_while_bound_and_classes_while_named() {
        let object = |name: &str, finalizer: &str| {
            json!({"metadata": {"name": name, "uid": name, "resourceVersion": "7",
            "finalizers": [finalizer], "deletionTimestamp": ago(9)}})
        };
        let volume = |name: &str, phase: &str, class: &str| {
            let mut volume = object(name, PersistentVolume::FINALIZER);
            volume["status"] = json!({"phase": phase});
            volume["spec"] = json!({"volumeAttributesClassName": class});
            volume
        };
        let class = |name: &str| object(name, VolumeAttributesClass::FINALIZER);
        let claim = json!({"metadata": {"name": "c", "namespace": "ns"}, "status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "slow"}}});
        let view = View::default()
            .with(snapshot::<PersistentVolume>([
                volume("bound", "Bound", "fast"),
                volume("free", "Released", ""),
            ]))
            .with(snapshot::<PersistentVolumeClaim>([claim]))
            .with(snapshot::<VolumeAttributesClass>([class("fast"), class("slow"), class("none")]));
        let volumes = Protection::<PersistentVolume>(PhantomData);
        let classes = Protection::<VolumeAttributesClass>(PhantomData);
        let mut all = String::new();
        for name in ["bound", "free"] {
            all += &text(&reconcile(&volumes, &view, "", name, &[]));
        }
        for name in ["fast", "slow", "none"] {
            all += &text(&reconcile(&classes, &view, "", name, &[]));
        }
        expect![[r#"
            merge /api/v1/persistentvolumes/free {"metadata":{"finalizers":[],"resourceVersion":"7","uid":"free"}}
            merge /apis/storage.k8s.io/v1/volumeattributesclasses/none {"metadata":{"finalizers":[],"resourceVersion":"7","uid":"none"}}
        "#]].assert_eq(&all);
    }
}

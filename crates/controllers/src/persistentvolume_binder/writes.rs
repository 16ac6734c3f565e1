//! The writes of the binder: phases, bindings and their removal.
//!
//! Invariant: what chooses between a claim's or a volume's partners names the resourceVersion that it was decided for; what
//! follows from such a choice names the uid.

use crate::shared::controller_ref::quiet;
use kaji_meta::quantity::Quantity;
use kaji_runtime::{
    EventRecord, Meta, PatchKind, Plan, Projection, Step, Target, Write,
    objects::{PersistentVolume, PersistentVolumeClaim},
    volume_binding::{BIND_COMPLETED, BOUND_BY_CONTROLLER, bind_patch},
};
use serde_json::{Map, Value, json};

/// On a volume with a file system that has to grow: what it had before.
const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

pub(super) fn patch<T: Projection>(meta: &Meta, body: Value) -> Write {
    Write::Patch { target: Target::of::<T>(&meta.namespace, &meta.name), kind: PatchKind::Merge, body }
}

pub(super) fn patch_status<T: Projection>(meta: &Meta, status: Value) -> Write {
    Write::Patch {
        target: Target::of::<T>(&meta.namespace, &meta.name).subresource("status"),
        kind: PatchKind::Merge,
        body: json!({"metadata": {"uid": meta.uid}, "status": status}),
    }
}

/// Uid and resourceVersion, as preconditions.
pub(super) fn seen(meta: &Meta) -> Value {
    json!({"uid": meta.uid, "resourceVersion": meta.resource_version})
}

/// A patch that changes nothing, and fails if the object is not there with this uid.
pub(super) fn still_there<T: Projection>(namespace: &str, name: &str, uid: &str) -> Write {
    Write::Patch {
        target: Target::of::<T>(namespace, name),
        kind: PatchKind::Merge,
        body: if uid.is_empty() { json!({}) } else { json!({"metadata": {"uid": uid}}) },
    }
}

pub(super) fn of_claim(claim: &PersistentVolumeClaim) -> Value {
    claim.metadata.reference("v1", PersistentVolumeClaim::KIND)
}

pub(super) fn of_volume(volume: &PersistentVolume) -> Value {
    volume.metadata.reference("v1", PersistentVolume::KIND)
}

/// Gives a volume a phase, if it has another one.
pub(super) fn volume_phase(volume: &PersistentVolume, phase: &str, event: Option<EventRecord>) -> Vec<Step> {
    if volume.status.phase == phase {
        return vec![];
    }
    let write = patch_status::<PersistentVolume>(&volume.metadata, json!({"phase": phase, "message": null}));
    vec![Step { write, on_success: event, on_failure: None }]
}

/// Gives a claim a phase, and what its volume has; nothing if all of it is there already.
pub(super) fn claim_status(
    claim: &PersistentVolumeClaim,
    phase: &str,
    volume: Option<&PersistentVolume>,
) -> Option<Write> {
    let (mut status, was) = (Map::new(), &claim.status);
    if was.phase != phase {
        status.insert("phase".into(), phase.into());
    }
    match volume {
        None => {
            if !was.access_modes.is_empty() {
                status.insert("accessModes".into(), Value::Null);
            }
            if was.capacity.iter().next().is_some() {
                status.insert("capacity".into(), Value::Null);
            }
            if was.current_volume_attributes_class_name.is_some() {
                status.insert("currentVolumeAttributesClassName".into(), Value::Null);
            }
        }
        Some(volume) => {
            if was.access_modes != volume.spec.access_modes {
                status.insert("accessModes".into(), json!(volume.spec.access_modes));
            }
            // Later changes of the capacity are those of expansion.
            if was.phase != phase {
                status.extend(capacity(claim, volume).map(|c| ("capacity".to_owned(), c)));
            }
            let class = &volume.spec.volume_attributes_class_name;
            if matches!(was.phase.as_str(), "" | "Pending")
                && was.current_volume_attributes_class_name != *class
            {
                status.insert("currentVolumeAttributesClassName".into(), json!(class));
            }
        }
    }
    (!status.is_empty()).then(|| patch_status::<PersistentVolumeClaim>(&claim.metadata, status.into()))
}

/// The capacity of a claim that is being bound, if it differs.
fn capacity(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Value> {
    let before = volume.metadata.annotations.get(PRE_RESIZE_CAPACITY);
    if let Some(before) = before.filter(|amount| Quantity::parse(amount).is_ok()) {
        return Some(json!({"storage": before}));
    }
    let amounts: Map<String, Value> =
        volume.spec.capacity.iter().map(|(name, amount)| (name.to_owned(), amount.into())).collect();
    (before.is_some() || claim.status.storage() != volume.storage()).then_some(amounts.into())
}

/// Binds a volume and a claim to each other, whatever of it is missing.
pub(super) fn bind(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Plan {
    let reserve =
        bind_patch(volume, claim).map(|body| quiet(patch::<PersistentVolume>(&volume.metadata, body)));
    let mut both = volume_phase(volume, "Bound", None);
    both.extend(name_volume(claim, &volume.metadata.name).map(quiet));
    let status = claim_status(claim, "Bound", Some(volume)).map(quiet);
    Plan::nothing().stage(reserve.into_iter().collect()).stage(both).stage(status.into_iter().collect())
}

/// Names the volume in the claim, and says that the binding is complete.
fn name_volume(claim: &PersistentVolumeClaim, volume: &str) -> Option<Write> {
    let meta = &claim.metadata;
    let (mut annotations, mut body) = (Map::new(), json!({"metadata": seen(meta)}));
    if claim.spec.volume_name != volume {
        body["spec"] = json!({"volumeName": volume});
        if !meta.annotations.contains_key(BOUND_BY_CONTROLLER) {
            annotations.insert(BOUND_BY_CONTROLLER.into(), "yes".into());
        }
    }
    if !meta.annotations.contains_key(BIND_COMPLETED) {
        annotations.insert(BIND_COMPLETED.into(), "yes".into());
    }
    if annotations.is_empty() && body.get("spec").is_none() {
        return None;
    }
    body["metadata"]["annotations"] = annotations.into();
    Some(patch::<PersistentVolumeClaim>(meta, body))
}

/// Frees a volume. One that a user reserved stays reserved for a claim of that name.
pub(super) fn unbind(volume: &PersistentVolume) -> Plan {
    let meta = &volume.metadata;
    let mut body = json!({"metadata": seen(meta)});
    if meta.annotations.contains_key(BOUND_BY_CONTROLLER) {
        body["spec"] = json!({"claimRef": null});
        body["metadata"]["annotations"] = json!({BOUND_BY_CONTROLLER: null});
    } else {
        body["spec"] = json!({"claimRef": {"uid": null, "resourceVersion": null}});
    }
    Plan::nothing().then(patch::<PersistentVolume>(meta, body)).stage(volume_phase(volume, "Available", None))
}

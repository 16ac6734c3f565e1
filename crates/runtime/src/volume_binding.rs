//! What the controller that binds claims to volumes and the scheduler share: the annotations of claims and volumes, which
//! volume is the best for a claim, and how a volume is bound. Source: Kubernetes' `component-helpers/storage/volume`.
//!
//! Invariants:
//! - A volume that is reserved for a claim, by a user or a provisioner, comes before all others for it, and for no other claim.
//! - Of those that nothing is reserved for, the smallest that fits is chosen.

use crate::{
    Meta,
    objects::{PersistentVolume, PersistentVolumeClaim, StorageClass},
    view::{ObjectSnapshot, Projection},
};
use serde_json::{Value, json};
use std::{collections::HashSet, sync::Arc};

/// On a claim: its binding has been completed.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a claim or volume: a controller chose the other one, not a user.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a claim: the node that the scheduler chose; a volume is to be made for it.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a volume: the provisioner that made it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a volume: the CSI driver that has taken over from a former plugin.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// On a claim: the provisioner that is to make its volume.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The same, by its former name.
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The provisioner of classes with volumes that are made by hand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Whether a claim is bound when a pod that uses it is scheduled.
pub fn delays_binding(claim: &PersistentVolumeClaim, classes: &ObjectSnapshot<StorageClass>) -> bool {
    classes.get("", claim.class()).is_some_and(|class| class.delays_binding())
}

/// Whether a claim's volume is bound for good.
pub fn fully_bound(claim: &PersistentVolumeClaim) -> bool {
    !claim.spec.volume_name.is_empty() && claim.metadata.annotations.contains_key(BIND_COMPLETED)
}

/// The best of `volumes` for a claim. The scheduler names the node on which the claim's pod is to run, and volumes that other
/// claims of the pod get; the controller names none, and for claims that wait for their pod (`delayed`) it takes only a
/// volume that is reserved for them.
pub fn find_matching<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a Arc<PersistentVolume>>,
    node: Option<&Meta>,
    excluded: &HashSet<String>,
    delayed: bool,
) -> Option<&'a Arc<PersistentVolume>> {
    let request = claim.spec.request();
    let mut smallest: Option<(&Arc<PersistentVolume>, _)> = None;
    for volume in volumes {
        if excluded.contains(&volume.metadata.name) {
            continue;
        }
        let reserved = volume.bound_to(claim);
        let size = volume.storage().unwrap_or_default();
        if (volume.spec.claim_ref.is_some() && !reserved) || size < request || !same_kind(volume, claim) {
            continue;
        }
        let reached = node.is_none_or(|node| volume.reaches(node));
        if reserved {
            return reached.then_some(volume);
        }
        let free = volume.status.phase == "Available"
            && claim.spec.selector.as_ref().is_none_or(|s| s.matches(&volume.metadata.labels))
            && volume.class() == claim.class();
        let allowed = node.is_none() || volume.allows(claim);
        let left_to_scheduler = node.is_none() && delayed;
        if left_to_scheduler || !free || !reached || !allowed {
            continue;
        }
        if smallest.as_ref().is_none_or(|(_, least)| *least > size) {
            smallest = Some((volume, size));
        }
    }
    smallest.map(|(volume, _)| volume)
}

fn same_kind(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let class = |class: &Option<String>| class.clone().unwrap_or_default();
    volume.same_mode(claim)
        && class(&volume.spec.volume_attributes_class_name) == class(&claim.spec.volume_attributes_class_name)
        && !volume.metadata.deleting()
}

/// The merge patch that binds a volume to a claim; none if it is bound already. It fails if the volume is not as it is here.
pub fn bind_patch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<Value> {
    let meta = &volume.metadata;
    let chosen = !volume.bound_to(claim) && !meta.annotations.contains_key(BOUND_BY_CONTROLLER);
    let reference = volume.spec.claim_ref.as_ref();
    let bound = reference.is_some_and(|r| r.uid == claim.metadata.uid) && volume.bound_to(claim);
    if bound {
        return None;
    }
    let reference =
        claim.metadata.reference(&PersistentVolumeClaim::api_version(), PersistentVolumeClaim::KIND);
    let mut patch = json!({
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "spec": {"claimRef": reference},
    });
    if chosen {
        patch["metadata"]["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
    }
    Some(patch)
}

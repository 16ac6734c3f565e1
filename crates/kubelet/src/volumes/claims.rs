//! From a pod's claim to its volume: what upstream's `desiredStateOfWorldPopulator` checks before anything is mounted, with
//! its texts.

use super::kinds::Used;
use crate::pods::context::NodeContext;
use crate::pods::core::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use crate::pods::model;
use kaji_runtime::Target;
use serde::de::DeserializeOwned;

const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// A claim of a pod, and the volume that it is bound to.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    pub(super) claim: PersistentVolumeClaim,
    pub(super) volume: PersistentVolume,
    /// The pod asks for it read-only.
    pub(super) read_only: bool,
    /// It is a device.
    pub(super) block: bool,
}

/// Reads an object; `None` where there is none.
pub(super) async fn read<T: DeserializeOwned>(
    cx: &NodeContext,
    (group, resource): (&str, &str),
    namespace: &str,
    name: &str,
) -> Result<Option<T>, String> {
    let target = Target {
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: String::new(),
    };
    match cx.sources.object(&target).await? {
        None => Ok(None),
        Some(value) => kaji_meta::json::from_value(&value).map(Some).map_err(|e| e.to_string()),
    }
}

/// The name of a volume's claim.
pub(super) fn claim_name(pod: &Pod, volume: &Volume) -> String {
    match &volume.persistent_volume_claim {
        Some(source) => source.claim_name.clone(),
        // The claim of a generic ephemeral volume.
        None => format!("{}-{}", model::name(pod), volume.name),
    }
}

/// The volume that a pod's claim is bound to.
///
/// # Errors
/// Why it cannot be mounted (yet).
pub(super) async fn resolve(
    cx: &NodeContext,
    pod: &Pod,
    volume: &Volume,
    used: &Used<'_>,
) -> Result<Claimed, String> {
    let namespace = model::namespace(pod);
    let name = claim_name(pod, volume);
    let failed = |error: String| format!("error processing PVC {namespace}/{name}: {error}");
    let claim = bound_claim(cx, namespace, &name).await.map_err(failed)?;
    if volume.ephemeral.is_some() && !owns(pod, &claim) {
        let shown = model::name(pod);
        return Err(format!(
            "PVC {namespace}/{name} was not created for pod {namespace}/{shown} (pod is not owner)"
        ));
    }
    let read_only = volume.persistent_volume_claim.as_ref().and_then(|s| s.read_only).unwrap_or(false);
    let bound = bound_volume(cx, &claim).await.map_err(failed)?;
    let mode = bound.spec.as_ref().and_then(|s| s.volume_mode.as_deref()).unwrap_or("Filesystem");
    if used.mounts.contains(volume.name.as_str()) && mode != "Filesystem" {
        return Err(format!(
            "volume {} has volumeMode {mode}, but is specified in volumeMounts",
            volume.name
        ));
    }
    if used.devices.contains(volume.name.as_str()) && mode != "Block" {
        return Err(format!(
            "volume {} has volumeMode {mode}, but is specified in volumeDevices",
            volume.name
        ));
    }
    let block = mode == "Block";
    Ok(Claimed { claim, volume: bound, read_only, block })
}

fn owns(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let owners = claim.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|o| o.controller == Some(true) && o.uid == model::uid(pod))
}

async fn bound_claim(cx: &NodeContext, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, String> {
    let resource = ("", "persistentvolumeclaims");
    let found: Option<PersistentVolumeClaim> = read(cx, resource, namespace, name)
        .await
        .map_err(|error| format!("failed to fetch PVC from API server: {error}"))?;
    let absent =
        || format!("failed to fetch PVC from API server: persistentvolumeclaims \"{name}\" not found");
    let claim = found.ok_or_else(absent)?;
    let protected = claim.metadata.finalizers.iter().flatten().any(|f| f == PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() && !protected {
        return Err("PVC is being deleted".to_owned());
    }
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
        return Err("PVC is not bound".to_owned());
    }
    Ok(claim)
}

async fn bound_volume(cx: &NodeContext, claim: &PersistentVolumeClaim) -> Result<PersistentVolume, String> {
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|n| !n.is_empty());
    let name = name.ok_or("PVC has empty pvc.Spec.VolumeName")?;
    let found: Option<PersistentVolume> = read(cx, ("", "persistentvolumes"), "", name)
        .await
        .map_err(|error| format!("failed to fetch PV {name} from API server: {error}"))?;
    let absent =
        || format!("failed to fetch PV {name} from API server: persistentvolumes \"{name}\" not found");
    let volume = found.ok_or_else(absent)?;
    let unbound = || {
        format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        )
    };
    let bound = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()).ok_or_else(unbound)?;
    let (uid, expected) =
        (bound.uid.as_deref().unwrap_or_default(), claim.metadata.uid.as_deref().unwrap_or_default());
    if uid != expected {
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {uid} does not point to claim.UID {expected}"
        ));
    }
    Ok(volume)
}

//! The claims of a pod. Texts are upstream's.

use kaji_runtime::{
    ObjectSnapshot,
    objects::{DeviceResult, DeviceState, Pod, ResourceClaim},
};
use std::{sync::Arc, time::Duration};

/// The claims of a pod that it needs, in the order of its spec.
///
/// # Errors
/// One is missing, is being deleted, or was made for another pod.
pub fn of_pod(pod: &Pod, claims: &ObjectSnapshot<ResourceClaim>) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let meta = &pod.metadata;
    let (namespace, name) = (&meta.namespace, &meta.name);
    let mut found = vec![];
    for wanted in &pod.spec.resource_claims {
        let made = wanted.resource_claim_name.is_none();
        if made && wanted.resource_claim_template_name.is_none() {
            return Err(format!(
                "pod \"{namespace}/{name}\", spec.resourceClaim {:?}: none of the supported fields are set",
                wanted.name
            ));
        }
        let Some(claim) = pod.device_claim(wanted) else {
            return Err(format!("pod \"{namespace}/{name}\": ResourceClaim not created yet"));
        };
        // The pod does not need this one.
        let Some(claim) = claim else { continue };
        let Some(claim) = claims.get(namespace, claim) else {
            return Err(format!("could not find ResourceClaim \"{namespace}/{claim}\""));
        };
        if claim.metadata.deleting() {
            return Err(format!("resourceclaim {:?} is being deleted", claim.metadata.name));
        }
        let owned = || claim.metadata.controller().is_some_and(|owner| owner.uid == meta.uid);
        if made && !owned() {
            return Err(format!(
                "ResourceClaim {namespace}/{} was not created for Pod {namespace}/{name} (Pod is not owner)",
                claim.metadata.name
            ));
        }
        found.push(claim.clone());
    }
    Ok(found)
}

/// Whether a claim is reserved for a pod.
pub fn is_reserved(claim: &ResourceClaim, pod: &str) -> bool {
    claim.status.reserved_for.iter().any(|consumer| consumer.uid == pod)
}

fn allocated(claim: &ResourceClaim) -> &[DeviceResult] {
    claim.status.allocation.as_ref().map_or(&[], |allocation| &allocation.devices.results)
}

/// Whether some device of a claim has to be prepared before a pod is bound.
pub fn has_binding_conditions(claim: &ResourceClaim) -> bool {
    allocated(claim).iter().any(|device| !device.binding_conditions.is_empty())
}

fn state<'a>(claim: &'a ResourceClaim, device: &DeviceResult) -> Option<&'a DeviceState> {
    let same =
        |s: &&DeviceState| s.driver == device.driver && s.pool == device.pool && s.device == device.device;
    claim.status.devices.iter().find(same)
}

/// Whether the devices of a claim are prepared; those without conditions are.
///
/// # Errors
/// One cannot be prepared.
pub fn ready_for_binding(claim: &ResourceClaim) -> Result<bool, String> {
    if claim.status.allocation.is_none() {
        return Ok(false);
    }
    for device in allocated(claim).iter().filter(|device| !device.binding_conditions.is_empty()) {
        let Some(state) = state(claim, device) else { return Ok(false) };
        let is_true = |kind: &str| state.conditions.iter().find(|c| &*c.kind == kind && &*c.status == "True");
        if let Some(failure) = device.binding_failure_conditions.iter().find_map(|kind| is_true(kind)) {
            return Err(format!(
                "device binding failed: claim={}, reason={}, message={:?}",
                claim.metadata.name, failure.reason, failure.message
            ));
        }
        if !device.binding_conditions.iter().all(|kind| is_true(kind).is_some()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a claim's devices have been waited for too long.
pub fn binding_timed_out(claim: &ResourceClaim, timeout: Duration, now: jiff::Timestamp) -> bool {
    let allocated = claim.status.allocation.as_ref().and_then(|a| a.allocation_timestamp);
    let over = |at: jiff::Timestamp| jiff::SignedDuration::try_from(timeout).is_ok_and(|t| at + t < now);
    has_binding_conditions(claim) && allocated.is_some_and(over)
}

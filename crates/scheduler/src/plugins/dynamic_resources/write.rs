//! Writes allocations and reservations of claims, waits for devices that need preparation, and takes reservations back.
//!
//! Invariants:
//! - An allocation is written only to a claim that has none; a claim in another state than the one that was looked at is read again.
//! - The finalizer is there before the allocation is.

use super::claims::{binding_timed_out, has_binding_conditions, ready_for_binding};
use crate::{
    framework::{BindContext, Outcome, Status},
    metrics::BindingConditionsResult as Waited,
};
use kaji_meta::time::Time;
use kaji_runtime::{
    Error, EventRecord, PatchKind, Projection, Target, Write,
    objects::{DeviceAllocation, ResourceClaim},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// Attempts at a claim that others write too.
const ATTEMPTS: usize = 5;
/// How often listers are asked: at first, and at last.
const SOON: Duration = Duration::from_millis(2);
const LATER: Duration = Duration::from_millis(500);
/// How long informers may take to show what was written.
const SHOWN: Duration = Duration::from_secs(120);

const MERGE: PatchKind = PatchKind::Merge;

/// A claim.
pub fn target(claim: &ResourceClaim) -> Target {
    Target::of::<ResourceClaim>(&claim.metadata.namespace, &claim.metadata.name)
}

fn decoded(value: Value) -> Result<ResourceClaim, String> {
    ResourceClaim::from_value(&value).map_err(|error| error.to_string())
}

/// Writes a claim's allocation, if there is one, and reserves the claim for the pod.
///
/// # Errors
/// Upstream's texts.
pub async fn reserve(
    context: &BindContext,
    claim: &ResourceClaim,
    allocation: Option<&DeviceAllocation>,
) -> Result<ResourceClaim, String> {
    let mut claim = claim.clone();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let name = claim.metadata.key();
        if claim.metadata.deleting() {
            return Err(format!("claim {name} got deleted in the meantime"));
        }
        match (&claim.status.allocation, allocation) {
            (Some(_), Some(_)) => {
                return Err(format!("claim {name} got allocated elsewhere in the meantime"));
            }
            (None, None) => return Err(format!("claim {name} got deallocated elsewhere in the meantime")),
            _ => {}
        }
        match attempt_to_reserve(context, claim.clone(), allocation).await {
            Ok(written) => return decoded(written),
            Err((_, error)) if error.conflict() && attempt < ATTEMPTS => {
                let newest = context.client.get::<ResourceClaim>(&target(&claim).path()).await;
                claim =
                    newest.map_err(|error| format!("get updated claim {name} after conflict: {error}"))?;
            }
            Err((doing, error)) => return Err(format!("{doing} claim {name}: {error}")),
        }
    }
}

async fn attempt_to_reserve(
    context: &BindContext,
    mut claim: ResourceClaim,
    allocation: Option<&DeviceAllocation>,
) -> Result<Value, (&'static str, Error)> {
    let guard = |claim: &ResourceClaim| {
        let meta = &claim.metadata;
        json!({"uid": meta.uid, "resourceVersion": meta.resource_version})
    };
    let finalizers = &claim.metadata.finalizers;
    if allocation.is_some() && !finalizers.iter().any(|f| f == ResourceClaim::FINALIZER) {
        let mut metadata = guard(&claim);
        let all = finalizers.iter().map(String::as_str).chain([ResourceClaim::FINALIZER]);
        metadata["finalizers"] = all.collect();
        let patch = json!({"metadata": metadata});
        let written = context.client.patch(&target(&claim), MERGE.content_type(), "", &patch).await;
        let written = written.map_err(|error| ("add finalizer to", error))?;
        claim = ResourceClaim::from_value(&written)
            .map_err(|error| ("add finalizer to", Error::Decode(error.to_string())))?;
    }
    let pod = &context.pod.pod.metadata;
    let mut consumers = json!(claim.status.reserved_for);
    if let Some(list) = consumers.as_array_mut() {
        list.push(json!({"resource": "pods", "name": pod.name, "uid": pod.uid}));
    }
    let mut status = json!({"reservedFor": consumers});
    let doing = match allocation {
        Some(allocation) => {
            status["allocation"] = json!(allocation);
            status["allocation"]["allocationTimestamp"] = Time::new(context.clock.now()).to_string().into();
            "add allocation and reservation to"
        }
        None => "add reservation to",
    };
    let patch = json!({"metadata": guard(&claim), "status": status});
    let target = target(&claim).subresource("status");
    let written = context.client.patch(&target, MERGE.content_type(), "", &patch).await;
    written.map_err(|error| (doing, error))
}

/// Returns when the informer shows a claim as it was written.
///
/// # Errors
/// That takes too long.
pub async fn shown(context: &BindContext, written: &ResourceClaim) -> Result<(), String> {
    let revision = |claim: &ResourceClaim| claim.metadata.resource_version.parse::<u64>().unwrap_or_default();
    let wanted = revision(written);
    let wait = wait_until(|| {
        let claims = context.listers.get::<ResourceClaim>();
        let shown = claims.by_key(&written.metadata.key());
        // One that is deleted by now has been shown.
        let gone = shown.is_none_or(|claim| claim.metadata.uid != written.metadata.uid);
        let waiting_for_first = gone && wanted > 0 && claims.iter().all(|claim| revision(claim) < wanted);
        let old =
            shown.is_some_and(|claim| claim.metadata.uid == written.metadata.uid && revision(claim) < wanted);
        (!old && !waiting_for_first).then_some(Ok(()))
    });
    let late = || Err(format!("claim {} is not shown by the informer", written.metadata.key()));
    tokio::time::timeout(SHOWN, wait).await.unwrap_or_else(|_| late())
}

async fn wait_until<E>(mut check: impl FnMut() -> Option<Result<(), E>>) -> Result<(), E> {
    let mut pause = SOON;
    loop {
        if let Some(outcome) = check() {
            return outcome;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LATER);
    }
}

/// Waits for devices of the claims that need preparation.
///
/// # Errors
/// One cannot be prepared, or that takes too long.
pub async fn wait_for_devices(
    context: &BindContext,
    claims: &[Arc<ResourceClaim>],
    timeout: Duration,
) -> Outcome {
    if !claims.iter().any(|claim| has_binding_conditions(claim)) {
        return Ok(());
    }
    let reference = context.pod.pod.metadata.reference("v1", "Pod");
    let text = format!("waiting for binding conditions for device on node {}", context.node);
    context.recorder.record(EventRecord::normal(reference, "BindingConditionsPending", text));
    let began = tokio::time::Instant::now();
    let check = || {
        let present = context.listers.get::<ResourceClaim>();
        for claim in claims {
            let Some(claim) = present.by_key(&claim.metadata.key()) else {
                let text = format!("could not find ResourceClaim \"{}\"", claim.metadata.key());
                return Some(Err((Waited::Error, text)));
            };
            match ready_for_binding(claim) {
                Err(error) => return Some(Err((Waited::Failure, error))),
                Ok(true) => {}
                Ok(false) if binding_timed_out(claim, timeout, context.clock.now()) => {
                    let text = format!("device binding timeout: claim={}", claim.metadata.name);
                    return Some(Err((Waited::Timeout, text)));
                }
                Ok(false) => return None,
            }
        }
        Some(Ok(()))
    };
    let outcome = wait_until(check).await;
    let result = outcome.as_ref().map_or_else(|(result, _)| *result, |()| Waited::Success);
    count(context, claims, result, began.elapsed());
    outcome.map_err(|(_, error)| Status::error(error))
}

/// Counts how waiting for the devices of claims ended.
fn count(context: &BindContext, claims: &[Arc<ResourceClaim>], result: Waited, took: Duration) {
    let devices = claims.iter().filter_map(|claim| claim.status.allocation.as_ref());
    for device in devices.flat_map(|allocation| &allocation.devices.results) {
        context.metrics.waited(&context.profile, &device.driver, result, took);
        if !device.binding_conditions.is_empty() {
            context.metrics.allocated(&context.profile, &device.driver, result);
        }
    }
}

/// Takes the reservation of a claim for a pod back; others stay.
pub async fn unreserve(context: &BindContext, claim: &ResourceClaim) {
    let pod = &context.pod.pod.metadata.uid;
    let patch = json!({"metadata": {"uid": claim.metadata.uid},
        "status": {"reservedFor": [{"$patch": "delete", "uid": pod}]}});
    let target = target(claim).subresource("status");
    let done = context.client.patch(&target, PatchKind::Strategic.content_type(), "", &patch).await;
    if let Err(error) = done {
        // The claim's controller takes it back when the pod is gone; until then the pod may use it.
        tracing::debug!(claim = %claim.metadata.key(), %error, "a reservation could not be taken back");
    }
}

/// Takes the allocation of a claim that no pod uses back.
pub fn deallocation(claim: &ResourceClaim) -> Write {
    let meta = &claim.metadata;
    let guard = json!({"uid": meta.uid, "resourceVersion": meta.resource_version});
    let body =
        json!({"metadata": guard, "status": {"reservedFor": null, "allocation": null, "devices": null}});
    Write::Patch { target: target(claim).subresource("status"), kind: MERGE, body }
}

/// Deletes a claim that was made for extended resources, its finalizer first.
pub fn deletion(claim: &ResourceClaim) -> [Write; 2] {
    let meta = &claim.metadata;
    let rest: Vec<&String> = meta.finalizers.iter().filter(|f| *f != ResourceClaim::FINALIZER).collect();
    let body = json!({"metadata": {"uid": meta.uid, "finalizers": rest}});
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": meta.uid}});
    [
        Write::Patch { target: target(claim), kind: MERGE, body },
        Write::Delete { target: target(claim), options },
    ]
}

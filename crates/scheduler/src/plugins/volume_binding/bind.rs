//! Binds volumes to a pod's claims, asks for those that are to be made, and waits until the claims are bound.
//!
//! Invariant: it returns without an error only once the listers show all claims bound to volumes that the node reaches.

use super::find::{PodVolumes, Provision};
use crate::framework::{BindContext, Outcome, Status};
use kaji_runtime::{
    Error, PatchKind, Target,
    objects::{PersistentVolume, PersistentVolumeClaim},
    volume_binding::{SELECTED_NODE, bind_patch, fully_bound},
};
use serde_json::{Value, json};
use std::time::Duration;

/// How often the listers are asked: at first, and at last.
const SOON: Duration = Duration::from_millis(5);
const LATER: Duration = Duration::from_millis(500);

pub(super) async fn bind(context: &BindContext, volumes: &PodVolumes, timeout: Duration) -> Outcome {
    let written = write(context, volumes).await.map_err(Status::error)?;
    let mut pause = SOON;
    let wait = async {
        loop {
            if let Some(outcome) = check(context, volumes, &written).transpose() {
                return outcome;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LATER);
        }
    };
    let outcome = tokio::time::timeout(timeout, wait).await;
    let outcome = outcome.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
    outcome.map_err(|error| Status::error(format!("binding volumes: {error}")))
}

/// The revisions of the written objects, in the order of the bindings and then of the claims.
async fn write(context: &BindContext, volumes: &PodVolumes) -> Result<Vec<u64>, Error> {
    let mut revisions = vec![];
    for (volume, claim) in &volumes.bindings {
        revisions.push(match bind_patch(volume, claim) {
            Some(patch) => {
                let target = Target::of::<PersistentVolume>("", &volume.metadata.name);
                revision(&context.client.patch(&target, PatchKind::Merge.content_type(), "", &patch).await?)
            }
            None => 0,
        });
    }
    for Provision { claim, .. } in &volumes.provisions {
        let meta = &claim.metadata;
        if meta.annotations.get(SELECTED_NODE) == Some(&context.node) {
            revisions.push(0);
            continue;
        }
        let patch = json!({"metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": {SELECTED_NODE: context.node},
        }});
        let target = Target::of::<PersistentVolumeClaim>(&meta.namespace, &meta.name);
        revisions.push(revision(
            &context.client.patch(&target, PatchKind::Merge.content_type(), "", &patch).await?,
        ));
    }
    Ok(revisions)
}

fn revision(object: &Value) -> u64 {
    number(object["metadata"]["resourceVersion"].as_str().unwrap_or_default())
}

fn number(revision: &str) -> u64 {
    revision.parse().unwrap_or_default()
}

/// Whether all claims are bound: `None` while they are not, an error if they will not be.
fn check(context: &BindContext, wanted: &PodVolumes, written: &[u64]) -> Result<Option<()>, String> {
    let (claims, volumes) =
        (context.listers.get::<PersistentVolumeClaim>(), context.listers.get::<PersistentVolume>());
    let mut written = written.iter().copied();
    for (volume, claim) in &wanted.bindings {
        let (name, since) = (&volume.metadata.name, written.next().unwrap_or_default());
        let Some(volume) = volumes.get("", name) else {
            return Err(format!("failed to check binding: persistentvolume {name:?} not found"));
        };
        let claim = find(&claims, claim, "failed to check binding")?;
        // The informer does not show the write yet.
        if number(&volume.metadata.resource_version) < since {
            return Ok(None);
        }
        if volume.spec.claim_ref.as_ref().is_none_or(|reference| reference.uid.is_empty()) {
            return Err(format!("ClaimRef got reset for pv {name:?}"));
        }
        if !fully_bound(claim) {
            return Ok(None);
        }
    }
    for Provision { claim, .. } in &wanted.provisions {
        let since = written.next().unwrap_or_default();
        let claim = find(&claims, claim, "failed to check provisioning pvc")?;
        if number(&claim.metadata.resource_version) < since {
            return Ok(None);
        }
        let name = &claim.metadata.name;
        // A provisioner that cannot make a volume there takes the node back.
        if claim.metadata.annotations.get(SELECTED_NODE) != Some(&context.node) {
            return Err(format!("provisioning failed for PVC {name:?}"));
        }
        if !fully_bound(claim) || volumes.get("", &claim.spec.volume_name).is_none() {
            return Ok(None);
        }
    }
    Ok(Some(()))
}

fn find<'a>(
    claims: &'a kaji_runtime::ObjectSnapshot<PersistentVolumeClaim>,
    wanted: &PersistentVolumeClaim,
    doing: &str,
) -> Result<&'a PersistentVolumeClaim, String> {
    let found = claims.by_key(&wanted.metadata.key()).map(|claim| &**claim);
    found.ok_or_else(|| format!("{doing}: persistentvolumeclaim {:?} not found", wanted.metadata.name))
}

//! A pod that waits for its volumes: claims that are not bound, and objects that are not there.

use crate::{
    case::Case,
    names::nearest,
    reader::Found,
    report::{Cause, Sort},
};
use kaji_meta::object::{self, arr_at, bool_at, str_at};
use serde_json::Value;

/// Claims, config maps and secrets that the pod mounts.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let phase = str_at(case.object, &["status", "phase"]);
    if !matches!(phase, "" | "Pending") {
        return vec![];
    }
    let mut causes = vec![];
    for volume in arr_at(case.object, &["spec", "volumes"]) {
        causes.extend(of_volume(case, volume).await);
    }
    let mounts = case.event(&["FailedMount", "FailedAttachVolume", "FailedMapVolume"]).await;
    match (causes.is_empty(), mounts) {
        (true, Some(text)) if waits_for_containers(case.object) => {
            causes.push(Cause::new(Sort::Volume, "its volumes cannot be mounted").known(text));
        }
        _ => {}
    }
    causes
}

fn waits_for_containers(pod: &Value) -> bool {
    let statuses = arr_at(pod, &["status", "containerStatuses"]);
    let creating = |status: &Value| {
        matches!(
            str_at(status, &["state", "waiting", "reason"]),
            "ContainerCreating" | "PodInitializing" | ""
        ) && object::at(status, &["state", "running"]).is_none()
    };
    statuses.iter().all(creating)
}

async fn of_volume(case: &Case<'_>, volume: &Value) -> Vec<Cause> {
    let name = str_at(volume, &["name"]);
    let ephemeral = object::at(volume, &["ephemeral"]).map(|_| format!("{}-{name}", case.name()));
    let claim = match str_at(volume, &["persistentVolumeClaim", "claimName"]) {
        "" => ephemeral,
        claim => Some(claim.to_owned()),
    };
    if let Some(claim) = claim {
        return of_claim(case, name, &claim).await;
    }
    let sources = arr_at(volume, &["projected", "sources"]).iter().chain([volume]);
    let mut causes = vec![];
    for source in sources {
        for (plural, kind, at) in [("configmaps", "ConfigMap", "configMap"), ("secrets", "Secret", "secret")]
        {
            let Some(source) = source.get(at) else { continue };
            let wanted = match str_at(source, &["name"]) {
                "" => str_at(source, &["secretName"]),
                name => name,
            };
            if wanted.is_empty() || bool_at(source, &["optional"]) == Some(true) {
                continue;
            }
            causes.extend(missing(case, (plural, kind), wanted, &format!("volume {name}")).await);
        }
    }
    causes
}

/// A cause when an object that something names is not there.
pub async fn missing(case: &Case<'_>, (plural, kind): (&str, &str), name: &str, user: &str) -> Option<Cause> {
    if !case.beside("v1", plural, name).await.is_absent() {
        return None;
    }
    let summary = format!("{kind} {}/{name} does not exist", case.namespace());
    let cause =
        Cause::new(Sort::Container, summary).known(format!("{user} names it, and it is not optional"));
    let others = case.all_beside("v1", plural).await.unwrap_or_default();
    let near = nearest(name, others.iter().map(object::name));
    let cause = cause.nearest_if(near.map(|near| format!("{kind} {}/{near}", case.namespace())));
    Some(
        cause.fix(format!("create {kind} {name} in the namespace {}, or correct the name", case.namespace())),
    )
}

async fn of_claim(case: &Case<'_>, volume: &str, name: &str) -> Vec<Cause> {
    let claim = match case.beside("v1", "persistentvolumeclaims", name).await {
        Found::Object(claim) => claim,
        Found::Unreadable => return vec![],
        Found::Absent => {
            let claims = case.all_beside("v1", "persistentvolumeclaims").await.unwrap_or_default();
            let cause = Cause::new(Sort::Volume, format!("claim {name} of volume {volume} does not exist"));
            let near = nearest(name, claims.iter().map(object::name));
            let near = near.map(|near| format!("PersistentVolumeClaim {}/{near}", case.namespace()));
            let cause = cause.nearest_if(near);
            return vec![cause.fix(format!("create the PersistentVolumeClaim {name}, or correct claimName"))];
        }
    };
    if str_at(&claim, &["status", "phase"]) == "Bound" {
        return vec![];
    }
    let Some(other) = case.other(&claim) else { return vec![] };
    super::claim::causes_for(&other, Some(case.object)).await
}

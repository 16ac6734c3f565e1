//! A workload that does not get on: what its controller reports, and the pod that it waits for.

use super::{quota::QuotaRefusal, webhook};
use crate::{
    case::{Case, condition, condition_is, tell, title},
    report::{Cause, Sort},
};
use kaji_meta::object::{self, bool_at, i64_at, str_at};
use serde_json::Value;

/// Why the workload is not as its spec says.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let object = case.object;
    if object::deletion_timestamp(object).is_some() {
        return vec![];
    }
    let mut causes = vec![];
    let observed = i64_at(object, &["status", "observedGeneration"]).unwrap_or_default();
    if observed < object::generation(object) && object::kind(object) != "Job" {
        let cause = Cause::new(Sort::Rollout, "its controller has not seen its latest version");
        let text = format!(
            "status.observedGeneration is {observed}, metadata.generation {}",
            object::generation(object)
        );
        causes.push(cause.known(text).inferred("the controller manager is slow, or does not run"));
    }
    if bool_at(object, &["spec", "paused"]) == Some(true) {
        let kind = object::kind(object).to_lowercase();
        let cause = Cause::new(Sort::Rollout, "it is paused").known("spec.paused is true");
        causes.push(cause.fix(format!(
            "kubectl rollout resume {kind}/{} -n {}",
            case.name(),
            case.namespace()
        )));
    }
    if bool_at(object, &["spec", "suspend"]) == Some(true) {
        let cause = Cause::new(Sort::Rollout, "it is suspended").known("spec.suspend is true");
        causes.push(cause.fix(format!(
            "kubectl patch job/{} -n {} -p '{{\"spec\":{{\"suspend\":false}}}}'",
            case.name(),
            case.namespace()
        )));
    }
    causes.extend(refused(case).await);
    if object::kind(object) == "Job" {
        causes.extend(
            condition_is(object, "Failed", "True")
                .map(|c| Cause::new(Sort::Rollout, "it failed").known(tell(c))),
        );
    }
    if is_complete(object) && causes.is_empty() {
        return vec![];
    }
    causes.extend(dependents(case).await);
    if causes.is_empty() && case.is_first() {
        let cause = Cause::new(Sort::Rollout, "it is not complete yet").known(replicas(object));
        let progress = condition(object, "Progressing");
        causes.push(progress.into_iter().fold(cause, |cause, condition| cause.known(tell(condition))));
    }
    causes
}

/// Whether all replicas are as the spec says, and ready. By what the status reports: kinds that are not built in have pods, too.
fn is_complete(object: &Value) -> bool {
    let status = |name: &str| i64_at(object, &["status", name]).unwrap_or_default();
    let wanted = i64_at(object, &["spec", "replicas"]).unwrap_or(1);
    let has = |name: &str| object::at(object, &["status", name]).is_some();
    if object::kind(object) == "Job" {
        return condition_is(object, "Complete", "True").is_some();
    }
    if has("desiredNumberScheduled") {
        let desired = status("desiredNumberScheduled");
        return status("numberReady") >= desired && status("updatedNumberScheduled") >= desired;
    }
    if has("updateRevision") {
        let updated =
            str_at(object, &["status", "currentRevision"]) == str_at(object, &["status", "updateRevision"]);
        return status("readyReplicas") >= wanted && updated;
    }
    if object::kind(object) == "Deployment" {
        let available = status("updatedReplicas") >= wanted && status("availableReplicas") >= wanted;
        return available && status("replicas") == wanted;
    }
    status("readyReplicas") >= wanted
}

fn replicas(object: &Value) -> String {
    let names = [
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "desiredNumberScheduled",
        "numberReady",
        "active",
        "succeeded",
        "failed",
    ];
    let parts: Vec<String> = names
        .into_iter()
        .filter_map(|name| Some(format!("{name} {}", i64_at(object, &["status", name])?)))
        .collect();
    format!("status: {}", parts.join(", "))
}

/// Pods that the API server refused to its controller: quotas, policies, webhooks.
async fn refused(case: &Case<'_>) -> Vec<Cause> {
    let mut messages: Vec<(String, String)> = vec![];
    if let Some(condition) = condition_is(case.object, "ReplicaFailure", "True") {
        messages.push((tell(condition), str_at(condition, &["message"]).to_owned()));
    } else if let Some(event) = case.event(&["FailedCreate"]).await.filter(|_| !is_complete(case.object)) {
        messages.push((event.clone(), event));
    }
    let mut causes = vec![];
    for (text, message) in messages {
        let behind = webhook::named_in(case, &message).await;
        let quota = QuotaRefusal::of(&message);
        let sort = if quota.is_some() {
            Sort::Quota
        } else if message.contains("webhook") {
            Sort::Webhook
        } else if message.contains("forbidden") {
            Sort::Forbidden
        } else {
            Sort::Rollout
        };
        let mut cause = Cause::new(sort, "its pods are refused").known(text);
        if let Some(quota) = quota {
            cause = quota.explained(case.reader, case.namespace(), cause).await;
        }
        causes.push(cause);
        causes.extend(behind);
    }
    causes
}

/// What is wrong with the first object that the workload owns and waits for.
async fn dependents(case: &Case<'_>) -> Vec<Cause> {
    let owned = match object::kind(case.object) {
        "Deployment" => newest_replica_set(case).await.into_iter().collect(),
        _ => pods(case).await,
    };
    for dependent in &owned {
        let Some(other) = case.other(dependent) else { continue };
        let found = super::answer(&other).await;
        if found.is_empty() {
            continue;
        }
        let of = |mut cause: Cause| {
            let pod = object::kind(dependent) == "Pod";
            if pod {
                cause.summary = format!("{}: {}", title(dependent), cause.summary);
            }
            cause
        };
        return found.into_iter().map(of).collect();
    }
    vec![]
}

fn owned_by(case: &Case<'_>, object: &Value) -> bool {
    object::controller_of(object).is_some_and(|owner| str_at(owner, &["uid"]) == object::uid(case.object))
}

async fn newest_replica_set(case: &Case<'_>) -> Option<Value> {
    const REVISION: &str = "deployment.kubernetes.io/revision";
    let sets = case.all_beside("apps/v1", "replicasets").await?;
    let revision = |set: &&Value| {
        object::annotation(set, REVISION).and_then(|r| r.parse::<u64>().ok()).unwrap_or_default()
    };
    sets.iter().filter(|set| owned_by(case, set)).max_by_key(revision).cloned()
}

/// The workload's pods that are not ready, the oldest first: a stateful set waits for the first of them.
async fn pods(case: &Case<'_>) -> Vec<Value> {
    let pods = case.all_beside("v1", "pods").await.unwrap_or_default();
    let unready = |pod: &&Value| {
        owned_by(case, pod)
            && condition_is(pod, "Ready", "True").is_none()
            && str_at(pod, &["status", "phase"]) != "Succeeded"
    };
    let mut pods: Vec<Value> = pods.iter().filter(unready).cloned().collect();
    pods.sort_by(|a, b| {
        let of =
            |pod: &Value| (object::creation_timestamp(pod).map(str::to_owned), object::name(pod).to_owned());
        of(a).cmp(&of(b))
    });
    pods
}

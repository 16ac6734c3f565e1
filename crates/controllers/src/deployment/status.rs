//! A deployment's status: counts, `Available`, `Progressing`, and the failures of its replica sets.

use super::sets::{Bounds, Set};
use crate::shared::conditions::{self, seconds};
use kaji_runtime::objects::{Condition, Deployment, DeploymentStatus};
use serde_json::{Value, json};
use std::time::Duration;

/// Condition types and reasons.
pub const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const FAILURE: &str = "ReplicaFailure";
/// The rollout is over.
pub const NEW_AVAILABLE: &str = "NewReplicaSetAvailable";
/// The rollout failed.
pub const TIMED_OUT: &str = "ProgressDeadlineExceeded";
/// Held back.
pub const PAUSED: &str = "DeploymentPaused";
/// Held back no more.
pub const RESUMED: &str = "DeploymentResumed";

/// A condition with both times at `now`.
pub fn condition(kind: &str, status: &str, reason: &str, message: String, now: jiff::Timestamp) -> Condition {
    Condition {
        kind: kind.into(),
        status: status.into(),
        last_update_time: Some(seconds(now)),
        last_transition_time: Some(seconds(now)),
        reason: reason.into(),
        message,
    }
}

/// The deadline for progress, unless there is none (`MaxInt32` means none as well).
pub fn deadline(d: &Deployment) -> Option<i64> {
    d.spec.progress_deadline_seconds.filter(|s| *s != i64::from(i32::MAX))
}

/// Status by the replica sets as they are. `conditions` are those the plan has so far.
pub fn calculate(
    d: &Deployment,
    sets: &[Set],
    new: Option<&Set>,
    conditions: Vec<Condition>,
    now: jiff::Timestamp,
) -> DeploymentStatus {
    let sum = |count: fn(&Set) -> i64| sets.iter().map(count).sum::<i64>();
    let bounds = Bounds::of(d);
    let available = sum(|s| s.seen.status.available_replicas);
    let mut status = DeploymentStatus {
        observed_generation: d.metadata.generation,
        replicas: sum(|s| s.seen.status.replicas),
        updated_replicas: new.map_or(0, |s| s.seen.status.replicas),
        ready_replicas: sum(|s| s.seen.status.ready_replicas),
        available_replicas: available,
        unavailable_replicas: (sum(|s| s.replicas) - available).max(0),
        terminating_replicas: terminating(sets),
        conditions,
        collision_count: d.status.collision_count,
    };
    let (state, reason, text) = if available >= bounds.fewest() {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    conditions::set(&mut status.conditions, condition(AVAILABLE, state, reason, text.into(), now));
    status
}

/// Sum over the sets; unknown when the status of a reconciled one lacks the field.
fn terminating(sets: &[Set]) -> Option<i64> {
    let count = |set: &Set| {
        let status = &set.seen.status;
        if status.observed_generation == 0 {
            Some(status.terminating_replicas.unwrap_or(0))
        } else {
            status.terminating_replicas
        }
    };
    sets.iter().map(count).sum()
}

/// Whether the rollout is over: everything is new, wanted and available.
pub fn complete(d: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = d.replicas();
    status.updated_replicas == wanted
        && status.replicas == wanted
        && status.available_replicas == wanted
        && status.observed_generation >= d.metadata.generation
}

fn progressing(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let rest = |s: &DeploymentStatus| s.replicas - s.updated_replicas;
    new.updated_replicas > old.updated_replicas
        || rest(new) < rest(old)
        || new.ready_replicas > old.ready_replicas
        || new.available_replicas > old.available_replicas
}

fn timed_out(status: &DeploymentStatus, deadline: i64, now: jiff::Timestamp) -> bool {
    let Some(current) = conditions::get(&status.conditions, PROGRESSING) else { return false };
    match current.reason.as_str() {
        NEW_AVAILABLE => false,
        TIMED_OUT => true,
        _ => current
            .last_update_time
            .is_some_and(|from| now.duration_since(from) > jiff::SignedDuration::from_secs(deadline)),
    }
}

/// Adds what a rollout (not a scaling, not a pause) says about progress and failures.
pub fn rollout(
    d: &Deployment,
    mut status: DeploymentStatus,
    sets: &[Set],
    new: Option<&Set>,
    now: jiff::Timestamp,
) -> DeploymentStatus {
    let subject = new.map_or_else(
        || format!("Deployment \"{}\"", d.metadata.name),
        |set| format!("ReplicaSet \"{}\"", set.name()),
    );
    let current = conditions::get(&status.conditions, PROGRESSING).cloned();
    let settled = status.replicas == status.updated_replicas
        && current.as_ref().is_some_and(|c| c.reason == NEW_AVAILABLE);
    match deadline(d) {
        None => conditions::remove(&mut status.conditions, PROGRESSING),
        Some(_) if settled => {}
        Some(_) if complete(d, &status) => {
            let text = format!("{subject} has successfully progressed.");
            conditions::set(&mut status.conditions, condition(PROGRESSING, "True", NEW_AVAILABLE, text, now));
        }
        Some(_) if progressing(&d.status, &status) => {
            let text = format!("{subject} is progressing.");
            let mut next = condition(PROGRESSING, "True", "ReplicaSetUpdated", text, now);
            // The update time moves with every progress, even if nothing else of the condition does.
            if let Some(current) = current.filter(|c| c.status == "True") {
                next.last_transition_time = current.last_transition_time;
            }
            conditions::remove(&mut status.conditions, PROGRESSING);
            status.conditions.push(next);
        }
        Some(deadline) if timed_out(&status, deadline, now) => {
            let text = format!("{subject} has timed out progressing.");
            conditions::set(&mut status.conditions, condition(PROGRESSING, "False", TIMED_OUT, text, now));
        }
        Some(_) => {}
    }
    let failed = |set: &Set| conditions::get(&set.seen.status.conditions, FAILURE).cloned();
    match new.and_then(failed).or_else(|| sets.iter().find_map(failed)) {
        Some(mut failure) => {
            failure.last_update_time = failure.last_transition_time;
            conditions::set(&mut status.conditions, failure);
        }
        None => conditions::remove(&mut status.conditions, FAILURE),
    }
    status
}

/// When to look again whether the rollout is stuck.
pub fn next_check(d: &Deployment, status: &DeploymentStatus, now: jiff::Timestamp) -> Option<Duration> {
    let deadline = deadline(d)?;
    let current = conditions::get(&status.conditions, PROGRESSING)?;
    if complete(d, status) || current.reason == TIMED_OUT {
        return None;
    }
    let due = current.last_update_time?.as_second() + deadline;
    let wait = jiff::Timestamp::from_second(due).ok()?.duration_since(now);
    // A second more, for the status has whole seconds.
    Some(Duration::try_from(wait).unwrap_or_default() + Duration::from_secs(1))
}

/// As JSON, with null for what is left out when zero.
pub fn to_value(status: &DeploymentStatus) -> Value {
    let some = |n: i64| (n != 0).then_some(n);
    json!({
        "observedGeneration": some(status.observed_generation),
        "replicas": some(status.replicas),
        "updatedReplicas": some(status.updated_replicas),
        "readyReplicas": some(status.ready_replicas),
        "availableReplicas": some(status.available_replicas),
        "unavailableReplicas": some(status.unavailable_replicas),
        "terminatingReplicas": status.terminating_replicas,
        "collisionCount": status.collision_count,
        "conditions": (!status.conditions.is_empty()).then_some(&status.conditions),
    })
}

//! What is condition in the status of groups: whether they were scheduled once, and that they are being preempted.
//!
//! Invariant: a group that was scheduled once stays so, whatever becomes of its pods.

use super::super::Scheduler;
use kaji_runtime::objects::PodGroup;
use serde_json::{Value, json};

const SCHEDULED: &str = "PodGroupInitiallyScheduled";
const DISRUPTED: &str = "DisruptionTarget";

impl Scheduler {
    /// Reports how an attempt ended: status, reason and message of the condition.
    pub(super) fn report_group(&self, group: &PodGroup, condition: (&str, &str, &str)) {
        self.write_condition(group, SCHEDULED, condition);
    }

    /// Reports that all pods of a group are being deleted for others.
    pub(super) fn report_disruption(&self, group: &PodGroup) {
        let message = "preempting to accommodate a higher priority pod";
        self.write_condition(group, DISRUPTED, ("True", "PreemptionByScheduler", message));
    }

    fn write_condition(&self, group: &PodGroup, kind: &str, condition: (&str, &str, &str)) {
        if let Some(patch) = patch(group, kind, condition, self.shared.clock.now()) {
            self.group_writer.write(&group.metadata, patch);
        }
    }
}

/// The patch of a group's status; `None` if nothing of it is new.
fn patch(
    group: &PodGroup,
    kind: &str,
    (status, reason, message): (&str, &str, &str),
    now: jiff::Timestamp,
) -> Option<Value> {
    let former = group.status.conditions.iter().find(|c| c.kind == kind);
    let changed = former.is_none_or(|c| c.status != status);
    if let Some(former) = former
        && (former.status == "True" && status != "True"
            || !changed && former.reason == reason && former.message == message)
    {
        return None;
    }
    let since = former.filter(|_| !changed).and_then(|c| c.last_transition_time).unwrap_or(now);
    let mut condition = json!({
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": kaji_meta::time::Time::new(since).to_string(),
    });
    if group.metadata.generation != 0 {
        condition["observedGeneration"] = group.metadata.generation.into();
    }
    Some(json!({"metadata": {"uid": group.metadata.uid}, "status": {"conditions": [condition]}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_was_scheduled_stays_so() {
        let group = |conditions: Value| -> PodGroup {
            serde_json::from_value(
                json!({"metadata": {"name": "g", "uid": "u"}, "status": {"conditions": conditions}}),
            )
            .unwrap()
        };
        let condition = |status: &str, message: &str| {
            json!([{"type": SCHEDULED, "status": status, "reason": "Unschedulable", "message": message,
                "lastTransitionTime": "2026-01-02T03:04:05Z"}])
        };
        let told = |conditions: Value, status: &str| {
            patch(&group(conditions), SCHEDULED, (status, "Unschedulable", "m"), jiff::Timestamp::UNIX_EPOCH)
                .map_or("-".to_owned(), |p| p["status"]["conditions"][0].to_string())
        };
        let lines = [
            told(json!([]), "False"),
            told(condition("False", "m"), "False"),
            told(condition("False", "other"), "False"),
            told(condition("True", "m"), "False"),
            told(condition("False", "m"), "True"),
        ];
        expect_test::expect![[r#"
            {"lastTransitionTime":"1970-01-01T00:00:00Z","message":"m","reason":"Unschedulable","status":"False","type":"PodGroupInitiallyScheduled"}
            -
            {"lastTransitionTime":"2026-01-02T03:04:05Z","message":"m","reason":"Unschedulable","status":"False","type":"PodGroupInitiallyScheduled"}
            -
            {"lastTransitionTime":"1970-01-01T00:00:00Z","message":"m","reason":"Unschedulable","status":"True","type":"PodGroupInitiallyScheduled"}"#]].assert_eq(&lines.join("\n"));
    }
}

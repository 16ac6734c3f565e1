//! Conditions of workloads' statuses: set only when status or reason changes, as upstream's helpers do.

use kaji_runtime::objects::Condition;

/// The time as statuses carry it: whole seconds.
pub fn seconds(now: jiff::Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// A condition by type.
pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.kind == kind)
}

/// Adds or replaces a condition, unless one with the same status and reason is there. The transition time of an
/// unchanged status is kept.
pub fn set(conditions: &mut Vec<Condition>, mut condition: Condition) {
    if let Some(current) = get(conditions, &condition.kind)
        && current.status == condition.status
    {
        if current.reason == condition.reason {
            return;
        }
        condition.last_transition_time = current.last_transition_time;
    }
    remove(conditions, &condition.kind);
    conditions.push(condition);
}

/// Removes a condition.
pub fn remove(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|c| c.kind != kind);
}

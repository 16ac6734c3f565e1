//! `status.conditions`: reading the condition of a type, and setting it.
//!
//! Invariant: `lastTransitionTime` moves only when the condition's status does.

use crate::object::{arr_at, map_mut_at, str_at};
use serde_json::Value;

/// The condition of a type, in an object's `status`.
pub fn find<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    arr_at(status, &["conditions"]).iter().find(|condition| str_at(condition, &["type"]) == kind)
}

/// Adds a condition to an object's `status`, or puts it in the place of the one with its `type`. Its `lastTransitionTime` becomes
/// that of the former one if both have the same `status`, else `now`. Whether anything changed.
pub fn set(status: &mut Value, mut condition: Value, now: impl Into<Value>) -> bool {
    let kind = str_at(&condition, &["type"]).to_owned();
    let former = find(status, &kind).filter(|former| former.get("status") == condition.get("status"));
    let since = former.and_then(|former| former.get("lastTransitionTime")).cloned();
    map_mut_at(&mut condition, &[])
        .insert("lastTransitionTime".to_owned(), since.unwrap_or_else(|| now.into()));
    let list = map_mut_at(status, &[]).entry("conditions").or_insert(Value::Null);
    if !list.is_array() {
        *list = Value::Array(vec![]);
    }
    let Some(list) = list.as_array_mut() else { return false };
    match list.iter_mut().find(|former| str_at(former, &["type"]) == kind) {
        Some(former) if *former == condition => return false,
        Some(former) => *former = condition,
        None => list.push(condition),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn transition_times_move_with_the_status_only() {
        let mut status = Value::Null;
        let ready = |value: &str, reason: &str| json!({"type": "Ready", "status": value, "reason": reason});
        let time = |status: &Value| find(status, "Ready").map(|c| c["lastTransitionTime"].clone());
        assert!(set(&mut status, ready("False", "A"), "t1"));
        assert!(set(&mut status, ready("False", "B"), "t2"));
        assert!(!set(&mut status, ready("False", "B"), "t3"));
        assert_eq!(time(&status), Some("t1".into()));
        assert!(set(&mut status, json!({"type": "Other", "status": "True"}), "t4"));
        assert!(set(&mut status, ready("True", "B"), "t5"));
        assert_eq!(
            (time(&status), status["conditions"].as_array().map(Vec::len)),
            (Some("t5".into()), Some(2))
        );
        assert_eq!(find(&status, "Missing"), None);
    }
}

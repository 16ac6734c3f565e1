//! A definition's conditions: their order, and transition times that move only when the status does.
//! Source: apiextensions-apiserver, `pkg/apihelpers`.

use kaji_meta::{conditions, object};
use serde_json::{Value, json};

/// A condition's status, if it is there.
pub fn status<'a>(definition: &'a Value, kind: &str) -> Option<&'a str> {
    conditions::find(definition.get("status")?, kind)?.get("status")?.as_str()
}

/// Whether a condition is `True`.
pub fn is_true(definition: &Value, kind: &str) -> bool {
    status(definition, kind) == Some("True")
}

/// Sets a condition.
pub fn set(definition: &mut Value, kind: &str, status: bool, reason: &str, message: &str, now: &str) {
    set_status(definition, kind, if status { "True" } else { "False" }, reason, message, now);
}

/// As [`set`], for a status that may be unknown.
pub fn set_status(definition: &mut Value, kind: &str, status: &str, reason: &str, message: &str, now: &str) {
    let condition = json!({"type": kind, "status": status, "reason": reason, "message": message});
    conditions::set(object::field_mut(definition, "status"), condition, now);
}

/// Removes a condition.
pub fn remove(definition: &mut Value, kind: &str) {
    if let Some(Value::Array(all)) = definition.pointer_mut("/status/conditions") {
        all.retain(|condition| condition.get("type").and_then(Value::as_str) != Some(kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_move_with_the_status_only() {
        let mut crd = json!({});
        set(&mut crd, "Established", false, "Installing", "m", "t1");
        set(&mut crd, "Established", false, "Other", "m", "t2");
        assert_eq!(crd["status"]["conditions"][0]["lastTransitionTime"], "t1");
        set(&mut crd, "Established", true, "X", "m", "t3");
        assert_eq!(crd["status"]["conditions"][0]["lastTransitionTime"], "t3");
        assert!(is_true(&crd, "Established"));
        assert_eq!(status(&crd, "NamesAccepted"), None);
    }
}

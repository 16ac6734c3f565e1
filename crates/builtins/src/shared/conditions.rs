//! Reading and setting entries of `status.conditions`.

use super::value::{Fields, ensure_object, put};
use serde_json::{Map, Value};

/// The condition of a type.
pub fn find<'a>(status: &'a Value, ty: &str) -> Option<&'a Value> {
    status.list("conditions").iter().find(|c| c.text("type") == ty)
}

/// Whether the condition of a type has a status.
pub fn is(status: &Value, ty: &str, value: &str) -> bool {
    find(status, ty).is_some_and(|c| c.text("status") == value)
}

/// Whether the condition of a type is `True`.
pub fn is_true(status: &Value, ty: &str) -> bool {
    is(status, ty, "True")
}

/// What a pod's condition becomes.
pub struct Condition<'a> {
    /// `PodScheduled`, …
    pub ty: &'a str,
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    /// A CamelCase word; may be empty.
    pub reason: &'a str,
    /// For people; may be empty.
    pub message: &'a str,
}

/// Adds or replaces a condition in `object.status.conditions`. `lastTransitionTime` moves only with the status.
/// Returns whether anything changed.
pub fn set(object: &mut Value, new: &Condition<'_>, now: jiff::Timestamp) -> bool {
    let status = ensure_object(object, "status");
    let old = find(status, new.ty).cloned();
    let since = match &old {
        Some(o) if o.text("status") == new.status => o.at("lastTransitionTime").clone(),
        _ => Value::from(kaji_meta::Time::new(now)),
    };
    let mut c = Map::new();
    for (k, v) in [("type", new.ty), ("status", new.status), ("reason", new.reason), ("message", new.message)]
    {
        if !v.is_empty() {
            c.insert(k.to_owned(), v.into());
        }
    }
    let old_probe = old.as_ref().map_or(Value::Null, |o| o.at("lastProbeTime").clone());
    c.insert("lastProbeTime".to_owned(), old_probe);
    c.insert("lastTransitionTime".to_owned(), since);
    let mut c = Value::Object(c);
    if let Some(g) = old.as_ref().and_then(|o| o.opt_int("observedGeneration")) {
        put(&mut c, "observedGeneration", g);
    }
    if old.as_ref() == Some(&c) {
        return false;
    }
    match status.get_mut("conditions") {
        Some(Value::Array(list)) => match list.iter_mut().find(|o| o.text("type") == new.ty) {
            Some(slot) => *slot = c,
            None => list.push(c),
        },
        _ => put(status, "conditions", vec![c]),
    }
    true
}

//! Reading and setting entries of `status.conditions`.

use super::value::{Fields, ensure_object};
use serde_json::{Map, Value};

pub use kaji_meta::conditions::find;

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
    let old = find(status, new.ty);
    let mut c = Map::new();
    for (k, v) in [("type", new.ty), ("status", new.status), ("reason", new.reason), ("message", new.message)]
    {
        if !v.is_empty() {
            c.insert(k.to_owned(), v.into());
        }
    }
    c.insert("lastProbeTime".to_owned(), old.map_or(Value::Null, |o| o.at("lastProbeTime").clone()));
    if let Some(g) = old.and_then(|o| o.opt_int("observedGeneration")) {
        c.insert("observedGeneration".to_owned(), g.into());
    }
    kaji_meta::conditions::set(status, Value::Object(c), kaji_meta::Time::new(now))
}

//! The three kinds of patch besides apply: JSON patch (RFC 6902), JSON merge patch (RFC 7386) and strategic merge
//! patch. All behave as upstream's implementations do where those differ from the RFCs.

use kaji_meta::{Details, Reason, Status};
use serde_json::{Map, Value};

mod json;
mod strategic;
#[cfg(test)]
mod tests;

pub use json::{json_patch, json_patch_explained};
pub use strategic::strategic_merge;

/// 422 as upstream answers patches that cannot be applied: it keeps the reason to itself.
fn unprocessable() -> Status {
    let mut status =
        Status::new(422, Reason::Invalid, "the server rejected our request due to an error in our request");
    status.details = Some(Box::new(Details::default()));
    status
}

/// Applies a JSON merge patch. Nulls delete; nulls in added objects (those in lists included) are dropped.
pub fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = without_nulls(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        match (value, target.get_mut(key)) {
            (Value::Null, _) => drop(target.remove(key)),
            (Value::Object(_), Some(old @ Value::Object(_))) => merge_patch(old, value),
            // An object is replaced by something else: taken literally.
            (value, Some(old @ Value::Object(_))) => *old = value.clone(),
            (value, _) => drop(target.insert(key.clone(), without_nulls(value))),
        }
    }
}

/// A copy without the null fields of objects at any depth. Null elements of lists stay.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, v)| !v.is_null());
            Value::Object(kept.map(|(k, v)| (k.clone(), without_nulls(v))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

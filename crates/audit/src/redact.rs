//! Bodies as events hold them: compact, and without managed fields where the policy says so.
//!
//! Invariant: what comes out is one line of JSON.

use bytes::Bytes;
use serde_json::Value;

/// JSON without white space between its parts; `None` when it is no JSON.
pub fn compact(json: Bytes) -> Option<Bytes> {
    // Within strings, control characters are escaped: without a line break it is one line.
    let lines = json.iter().any(|b| matches!(b, b'\n' | b'\r'));
    if !lines {
        return Some(json);
    }
    let value: Value = serde_json::from_slice(&json).ok()?;
    Some(value.to_string().into())
}

/// The same without the managed fields of the object, of the items of a list, and of the objects in a table's rows.
pub fn without_managed_fields(mut value: Value) -> Value {
    strip(&mut value);
    for item in array(&mut value, "items") {
        strip(item);
    }
    for row in array(&mut value, "rows") {
        if let Some(object) = row.get_mut("object") {
            strip(object);
        }
    }
    value
}

fn array<'a>(value: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    value.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}

fn strip(object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
}

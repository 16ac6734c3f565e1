//! Equality of objects as upstream's `equality.Semantic`: what is absent, null, or an empty map or list is the same.

use serde_json::{Map, Value};

fn is_empty(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    }
}

fn maps_equal(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    a.iter().all(|(k, v)| match b.get(k) {
        Some(other) => semantic_equal(v, other),
        None => is_empty(v),
    }) && b.iter().all(|(k, v)| a.contains_key(k) || is_empty(v))
}

/// Whether two values mean the same: null, `{}`, `[]` and an absent field are equal to one another.
/// Lists compare item by item in order.
pub fn semantic_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => maps_equal(a, b),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(x, y)| semantic_equal(x, y))
        }
        (a, b) => a == b || (is_empty(a) && is_empty(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn empty_is_absent() {
        assert!(semantic_equal(&json!({"a": {}, "b": 1}), &json!({"b": 1, "c": null, "d": []})));
        assert!(semantic_equal(&json!(null), &json!([])));
        assert!(!semantic_equal(&json!({"a": ""}), &json!({})));
        assert!(!semantic_equal(&json!({"a": 1}), &json!({"b": 1})));
        assert!(!semantic_equal(&json!([1, 2]), &json!([2, 1])));
        assert!(semantic_equal(&json!([{"a": []}]), &json!([{}])));
    }
}

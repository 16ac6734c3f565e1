//! Which part of an old object corresponds to which part of the new one (KEP-4008), as upstream's `CorrelatedObject` has it.
//!
//! Invariant: only what the schema describes corresponds. Fields that it does not declare are kept, but never known to be
//! unchanged; elements of lists correspond by the keys of `x-kubernetes-list-type: map`, whatever their order, and in no
//! other lists.

use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write as _;

use crate::schema::{ListKind, Schema, SchemaRef, Type};

/// The elements of an old list by their keys.
pub struct Keyed<'s, 'v> {
    keys: Vec<&'s str>,
    elements: HashMap<String, &'v Value>,
}

impl<'s, 'v> Keyed<'s, 'v> {
    /// An index of `old`. Of two elements with the same keys the first counts.
    pub fn new(keys: impl IntoIterator<Item = &'s str>, old: &'v [Value]) -> Self {
        let keys: Vec<&str> = keys.into_iter().collect();
        let mut elements = HashMap::with_capacity(old.len());
        for element in old {
            if let Some(key) = key(&keys, element) {
                elements.entry(key).or_insert(element);
            }
        }
        Keyed { keys, elements }
    }

    /// The index for a list of that schema; `None` where elements do not correspond.
    pub fn of(schema: &'s Schema, old: Option<&'v Value>) -> Option<Self> {
        let ListKind::Map { keys } = &schema.list else { return None };
        Some(Keyed::new(keys.iter().map(|k| &**k), old?.as_array()?))
    }

    /// The old element with the keys of `new`.
    pub fn get(&self, new: &Value) -> Option<&'v Value> {
        self.elements.get(&key(&self.keys, new)?).copied()
    }
}

/// The values of an element's keys; `None` unless all are there and scalar.
fn key(keys: &[&str], element: &Value) -> Option<String> {
    let mut out = String::new();
    if keys.is_empty() {
        return None;
    }
    for key in keys {
        match element.get(key)? {
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
            scalar => drop(write!(out, "\0{scalar}")),
        }
    }
    Some(out)
}

/// The schema of a field, if there is one. `additionalProperties: true` describes nothing.
pub fn described<'s>(schema: &'s Schema, field: &str) -> Option<&'s Schema> {
    let open = |s: &SchemaRef| s.ty == Type::Any && s.nullable && !s.preserve_unknown;
    match schema.property(field) {
        Some(p) => Some(p.schema.get()),
        None => schema.additional.as_deref().filter(|a| !open(a)).map(SchemaRef::get),
    }
}

/// Whether a value is known to be what it was.
pub fn unchanged(schema: &Schema, new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Array(list), Value::Array(before)) => {
            if list.len() != before.len() {
                return false;
            }
            let Some(keyed) = Keyed::of(schema, Some(old)) else { return new == old };
            list.iter().all(|v| match (&schema.items, keyed.get(v)) {
                (Some(items), Some(old)) => unchanged(items.get(), v, old),
                _ => false,
            })
        }
        (Value::Object(map), Value::Object(before)) => {
            map.len() == before.len()
                && map.iter().all(|(k, v)| match (described(schema, k), before.get(k)) {
                    (Some(child), Some(old)) => unchanged(child, v, old),
                    _ => false,
                })
        }
        _ => new == old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structural::unchecked;
    use serde_json::json;

    #[test]
    fn lists_of_maps_are_unchanged_in_any_order() {
        let schema = unchecked(&json!({"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k", "n"], "items": {"type": "object", "properties": {
                "k": {"type": "string"}, "n": {"type": "integer"}, "v": {"type": "string"}}}}));
        let old = json!([{"k": "a", "n": 1, "v": "x"}, {"k": "a", "n": 2}, {"k": "b", "n": 1}]);
        let same = json!([{"k": "b", "n": 1}, {"k": "a", "n": 1, "v": "x"}, {"k": "a", "n": 2}]);
        assert!(unchanged(&schema, &same, &old));
        for changed in [
            json!([{"k": "b", "n": 1}, {"k": "a", "n": 1, "v": "y"}, {"k": "a", "n": 2}]),
            json!([{"k": "b", "n": 1}, {"k": "a", "n": 1, "v": "x"}]),
            json!([{"k": "b", "n": 1}, {"k": "a", "n": 1, "v": "x"}, {"k": "a"}]),
        ] {
            assert!(!unchanged(&schema, &changed, &old), "{changed}");
        }
        let atomic = unchecked(&json!({"type": "array", "items": {"type": "string"}}));
        assert!(!unchanged(&atomic, &json!(["b", "a"]), &json!(["a", "b"])));
        assert!(unchanged(&atomic, &json!(["a", "b"]), &json!(["a", "b"])));
    }

    #[test]
    fn undescribed_values_always_count_as_changed() {
        let open = unchecked(&json!({"type": "object", "additionalProperties": true}));
        let kept = unchecked(&json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
        let map = unchecked(&json!({"type": "object", "additionalProperties": {"type": "string"}}));
        let value = json!({"a": "b"});
        assert!(!unchanged(&open, &value, &value) && !unchanged(&kept, &value, &value));
        assert!(unchanged(&map, &value, &value) && unchanged(&kept, &json!({}), &json!({})));
    }
}

//! Defaults of custom resources.
//!
//! An absent field takes the default of its schema; so does a `null` where the schema is not nullable. Other nulls that
//! are not nullable are removed first, from objects: they mean "absent". Defaults nest: a default value is itself
//! completed by the defaults of its own fields.
//!
//! Law: idempotent.

use serde_json::{Map, Value};

use crate::schema::Schema;

/// Removes nulls that mean "absent" from `value` and fills in the defaults of `schema`.
pub fn apply_defaults(schema: &Schema, value: &mut Value) {
    prune_nulls(schema, value);
    fill(schema, value);
}

/// Fills in the defaults of `schema`, nothing more. What was applied keeps its nulls: upstream drops those only of what it
/// decodes.
pub fn fill(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => object(schema, map),
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for v in list {
                replace_null(items, v);
                fill(items, v);
            }
        }
        _ => {}
    }
}

fn object(schema: &Schema, map: &mut Map<String, Value>) {
    if let Some(props) = &schema.properties {
        for p in props {
            let Some(default) = &p.schema.default else { continue };
            match map.get_mut(&*p.name) {
                None => {
                    map.insert(p.name.to_string(), (**default).clone());
                }
                Some(v) if v.is_null() && !p.schema.nullable => *v = (**default).clone(),
                Some(_) => {}
            }
        }
    }
    for (k, v) in map {
        match (schema.property(k), &schema.additional) {
            (Some(p), _) => fill(&p.schema, v),
            (None, Some(a)) => {
                replace_null(a, v);
                fill(a, v);
            }
            (None, None) => {}
        }
    }
}

fn replace_null(schema: &Schema, value: &mut Value) {
    if value.is_null()
        && !schema.nullable
        && let Some(d) = &schema.default
    {
        *value = (**d).clone();
    }
}

/// Removes nulls that mean "absent": fields whose schema is neither nullable nor has a default.
pub fn prune_nulls(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|k, v| {
                let Some(child) = schema.child(k) else { return true };
                prune_nulls(child, v);
                !v.is_null() || child.nullable || child.default.is_some()
            });
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|v| prune_nulls(items, v));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn defaults() {
        let schema = crate::structural::unchecked(&json!({"type": "object", "properties": {
            "a": {"type": "string", "default": "A"},
            "n": {"type": "string", "default": "N", "nullable": true},
            "gone": {"type": "string"},
            "kept": {"type": "string", "nullable": true},
            "nested": {"type": "object", "default": {}, "properties": {"x": {"type": "integer", "default": 5}}},
            "optional": {"type": "object", "properties": {"x": {"type": "integer", "default": 5}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"y": {"type": "boolean", "default": true}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"z": {"type": "string", "default": "Z"}}}},
        }}));
        let mut v = json!({"a": null, "n": null, "gone": null, "kept": null, "list": [{}, {"y": false}], "map": {"k": {}, "dead": null}});
        apply_defaults(&schema, &mut v);
        expect![[r#"{"a":"A","kept":null,"list":[{"y":true},{"y":false}],"map":{"k":{"z":"Z"}},"n":null,"nested":{"x":5}}"#]]
            .assert_eq(&v.to_string());
        let again = v.clone();
        apply_defaults(&schema, &mut v);
        assert_eq!(v, again);
    }
}

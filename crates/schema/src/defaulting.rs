//! Defaults of custom resources.
//!
//! An absent field takes the default of its schema; so does a `null` where the schema is not nullable. Other nulls that
//! are not nullable are removed first, from objects: they mean "absent". Defaults nest: a default value is itself
//! completed by the defaults of its fields.
//!
//! Laws: idempotent; what it adds is charged before it is added.

use kaji_meta::{OverBudget, SizeBudget};
use serde_json::{Map, Value};

use crate::schema::Schema;

/// Removes nulls that mean "absent" from `value` and fills in the defaults of `schema`.
///
/// # Errors
/// When the defaults take more memory than there is in the budget: a small value may ask for any number of large ones.
/// Some have been filled in by then.
pub fn apply_defaults(schema: &Schema, value: &mut Value, budget: &mut SizeBudget) -> Result<(), OverBudget> {
    prune_nulls(schema, value);
    fill(schema, value, budget)
}

/// Fills in the defaults of `schema`, nothing more. What was applied keeps its nulls: upstream drops those only of what it
/// decodes.
///
/// # Errors
/// As [`apply_defaults`].
pub fn fill(schema: &Schema, value: &mut Value, budget: &mut SizeBudget) -> Result<(), OverBudget> {
    match value {
        Value::Object(map) => object(schema, map, budget)?,
        Value::Array(list) => {
            let Some(items) = &schema.items else { return Ok(()) };
            for v in list {
                replace_null(items, v, budget)?;
                fill(items, v, budget)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn object(schema: &Schema, map: &mut Map<String, Value>, budget: &mut SizeBudget) -> Result<(), OverBudget> {
    if let Some(props) = &schema.properties {
        for p in props {
            let Some(default) = &p.schema.default else { continue };
            match map.get_mut(&*p.name) {
                None => budget.insert(map, &p.name, default)?,
                Some(v) if v.is_null() && !p.schema.nullable => *v = budget.copy(default)?,
                Some(_) => {}
            }
        }
    }
    for (k, v) in map {
        match (schema.property(k), &schema.additional) {
            (Some(p), _) => fill(&p.schema, v, budget)?,
            (None, Some(a)) => {
                replace_null(a, v, budget)?;
                fill(a, v, budget)?;
            }
            (None, None) => {}
        }
    }
    Ok(())
}

fn replace_null(schema: &Schema, value: &mut Value, budget: &mut SizeBudget) -> Result<(), OverBudget> {
    if value.is_null()
        && !schema.nullable
        && let Some(d) = &schema.default
    {
        *value = budget.copy(d)?;
    }
    Ok(())
}

/// Removes nulls that mean "absent": fields with a schema that is neither nullable nor has a default.
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
    fn fills_in_defaults_of_a_schema() {
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
        apply_defaults(&schema, &mut v, &mut SizeBudget::default()).unwrap();
        expect![[r#"{"a":"A","kept":null,"list":[{"y":true},{"y":false}],"map":{"k":{"z":"Z"}},"n":null,"nested":{"x":5}}"#]]
            .assert_eq(&v.to_string());
        let again = v.clone();
        apply_defaults(&schema, &mut v, &mut SizeBudget::default()).unwrap();
        assert_eq!(v, again);
    }

    /// 60 KB of JSON that become 12 GB.
    #[test]
    fn ends_where_defaults_exceed_the_budget() {
        let properties: Map<String, Value> = (0..60)
            .map(|i| (format!("p{i}"), json!({"type": "string", "default": "x".repeat(10_000)})))
            .collect();
        let schema = crate::structural::unchecked(&json!({"type": "object", "properties": {
            "x": {"type": "array", "items": {"type": "object", "properties": properties}}}}));
        let mut budget = SizeBudget::default();
        let mut body = json!({"x": vec![json!({}); 20_000]});
        let refused = apply_defaults(&schema, &mut body, &mut budget);
        assert_eq!(refused, Err(OverBudget { limit: kaji_meta::budget::DOCUMENT_BYTES }));
        assert!(kaji_meta::budget::footprint(&body) <= kaji_meta::budget::DOCUMENT_BYTES + 20_000 * 64);
        let mut few = json!({"x": vec![json!({}); 2]});
        let mut budget = SizeBudget::default();
        apply_defaults(&schema, &mut few, &mut budget).unwrap();
        assert!((1_200_000..1_300_000).contains(&budget.used()), "{}", budget.used());
    }
}

//! `x-kubernetes-validations`: rules in CEL that custom objects must satisfy (KEP-2876; messages KEP-3488; transition
//! rules and ratcheting KEP-4008).
//!
//! - `decl`: what rules may know of an object, from its schema.
//! - `compile`: the rules of a schema, ready to run.
//! - `check`: what definitions may declare: rules that compile, cost little enough, and compare only what can be compared.
//! - `defaults`: rules applied to the defaults of a definition.
//! - `evaluate`: rules applied to objects.
//! - `field_path`: where a failed rule points.
//!
//! Invariants: a definition with rules that do not compile is refused, so rules of stored definitions run; what one request may
//! cost is bounded by [`kaji_cel::REQUEST_BUDGET`], whatever the rules.

mod check;
mod compile;
mod decl;
mod defaults;
mod evaluate;
mod field_path;

#[cfg(test)]
mod tests;

pub(crate) use check::check;
pub(crate) use compile::Rules;
pub(crate) use defaults::check as check_defaults;
pub(crate) use evaluate::{blocked, validate};

use serde_json::Value;

/// A list of a schema; empty if it is not given.
pub(crate) fn list<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A text of a schema; "" if it is not given.
pub(crate) fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// A schema below this one.
pub(crate) fn below<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema.get(key).filter(|s| s.is_object())
}

/// The properties of a schema.
pub(crate) fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// `x-kubernetes-embedded-resource`: an object with its own apiVersion, kind and metadata.
fn embedded(schema: &Value) -> bool {
    schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true))
}

/// Fields of one object that are known by name, old and new: all maps.
fn keys_of_map_list(schema: &Value) -> Option<Vec<String>> {
    (text(schema, "x-kubernetes-list-type") == "map").then(|| {
        list(schema, "x-kubernetes-list-map-keys")
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    })
}

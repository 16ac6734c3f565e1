//! What a definition must satisfy beyond its own fields: structural schemas with usable rules, an approval of its group,
//! authorities that a converter can be verified by.
//!
//! Invariant: a version's schema is checked unless both it and whether a status subresource restricts it are as they were stored.

use crate::{approval, conditions, rules, selectable};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object::arr_at,
};
use kaji_schema::{structural, validate::PatternBudget};
use serde_json::Value;
use std::{cell::LazyCell, sync::Arc};

/// The check that the built-in kind of definitions is given: new object, stored object on updates.
pub type Check = Arc<dyn Fn(&Value, Option<&Value>) -> ErrorList + Send + Sync>;

/// The check.
pub fn validator() -> Check {
    Arc::new(|new, old| {
        let mut errors = approval::check(new, old);
        errors.extend(authorities(new, old));
        errors.extend(schemas(new, old));
        errors.extend(selectable::check(new, old));
        errors
    })
}

/// What is wrong with the authorities of a definition's converter.
pub fn unusable_authorities(definition: &Value) -> Option<String> {
    let bundle = definition.pointer("/spec/conversion/webhook/clientConfig/caBundle")?.as_str()?;
    let bundle = BASE64_STANDARD.decode(bundle).ok().filter(|b| !b.is_empty())?;
    kaji_outbound::check_bundle(&bundle).err()
}

/// Once established, a definition takes no unusable authorities, unless it had such before.
fn authorities(new: &Value, old: Option<&Value>) -> ErrorList {
    let strict =
        old.is_some_and(|old| conditions::is_true(old, "Established") && unusable_authorities(old).is_none());
    let webhook = new.pointer("/spec/conversion/strategy").is_some_and(|s| s == "Webhook");
    match unusable_authorities(new).filter(|_| strict && webhook) {
        Some(problem) => {
            let path = Path::new("spec").child("conversion").child("webhookClientConfig").child("caBundle");
            let bundle = new["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"].clone();
            vec![Error::invalid(&path, bundle, problem)]
        }
        None => vec![],
    }
}

fn schema_of(version: &Value) -> Option<&Value> {
    version.pointer("/schema/openAPIV3Schema")
}

/// The versions of a definition.
struct Versions<'a> {
    all: &'a [Value],
    /// All have one schema.
    shared: bool,
}

impl<'a> Versions<'a> {
    fn of(definition: Option<&'a Value>) -> Versions<'a> {
        let all = definition.map_or(&[][..], |d| arr_at(d, &["spec", "versions"]));
        let first = all.first().and_then(|v| v.get("schema"));
        Versions { all, shared: all.iter().all(|v| v.get("schema") == first) }
    }

    /// Whether a status subresource restricts the schema of a version; one for all is restricted by that of any.
    fn has_status(&self, version: &Value) -> bool {
        let status = |v: &Value| v.pointer("/subresources/status").is_some();
        if self.shared { self.all.iter().any(status) } else { status(version) }
    }
}

fn schemas(new: &Value, old: Option<&Value>) -> ErrorList {
    let path = Path::new("spec").child("versions");
    let (versions, before) = (Versions::of(Some(new)), Versions::of(old));
    // One schema for all is spoken of once, where v1beta1 had it: clients know that place.
    let shared = versions.shared;
    // What was too much in any of its defaults is not held against it.
    let pruned =
        LazyCell::new(|| !before.all.iter().filter_map(schema_of).any(structural::has_unpruned_defaults));
    let mut patterns = PatternBudget::default();
    let mut errors = ErrorList::new();
    for (i, version) in versions.all.iter().enumerate().take(if shared { 1 } else { usize::MAX }) {
        let Some(schema) = schema_of(version) else { continue };
        let status = versions.has_status(version);
        let stored = before.all.iter().find(|v| v["name"] == version["name"]);
        let stored = stored.filter(|v| schema_of(v) == Some(schema));
        // What was accepted once is not held against later updates.
        if stored.is_some_and(|v| before.has_status(v) == status) {
            continue;
        }
        let at = if shared { Path::new("spec").child("validation") } else { path.index(i).child("schema") };
        let at = at.child("openAPIV3Schema");
        let found = structural::check_within(schema, &at, status, *pruned, &mut patterns);
        // Rules are about the types that a structural schema gives.
        if found.is_empty() {
            let unusable = rules::check(schema, &at, stored.is_some());
            if unusable.is_empty() {
                errors.extend(rules::check_defaults(schema, &at));
            }
            errors.extend(unusable);
        }
        errors.extend(found);
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crd(schema: Value) -> Value {
        versions(&schema, &[false])
    }

    /// Versions with one schema, each with a status subresource or without.
    fn versions(schema: &Value, status: &[bool]) -> Value {
        let version = |(i, status): (usize, &bool)| {
            let mut version = json!({"name": format!("v{i}"), "schema": {"openAPIV3Schema": schema}});
            if *status {
                version["subresources"] = json!({"status": {}});
            }
            version
        };
        json!({"spec": {"versions": status.iter().enumerate().map(version).collect::<Vec<_>>()}})
    }

    #[test]
    fn schemas_must_be_structural_unless_they_were_there() {
        let bad = crd(json!({"type": "object", "properties": {"spec": {}}}));
        let errors = validator()(&bad, None);
        assert_eq!(
            errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "spec.validation.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields"
            ]
        );
        assert!(validator()(&bad, Some(&bad)).is_empty());
    }

    #[test]
    fn a_status_subresource_restricts_the_root_of_a_schema_that_was_there_without() {
        let schema = json!({"type": "object", "minProperties": 1});
        let errors = |new: &[bool], old: Option<&[bool]>| {
            let old = old.map(|status| versions(&schema, status));
            validator()(&versions(&schema, new), old.as_ref())
        };
        assert!(errors(&[false], None).is_empty());
        let restricted: [(&[bool], Option<&[bool]>); 4] = [
            (&[true], None),
            (&[false, true], None),
            (&[true], Some(&[false])),
            (&[false, true], Some(&[false, false])),
        ];
        for (new, old) in restricted {
            let found = errors(new, old);
            assert_eq!(found.len(), 1, "{new:?} {old:?}");
            let text = found[0].to_string();
            assert!(text.starts_with("spec.validation.openAPIV3Schema: Invalid value: "), "{text}");
            assert!(
                text.ends_with("at the root of the schema if the status subresource is enabled"),
                "{text}"
            );
        }
        assert!(errors(&[true], Some(&[true])).is_empty());
        assert!(errors(&[true, true], Some(&[false, true])).is_empty());
        assert!(errors(&[false], Some(&[true])).is_empty());
    }

    #[test]
    fn what_a_rule_costs_is_not_held_against_a_schema_that_was_there() {
        let rule = json!([{"rule": "self.all(x, self.all(y, x == y || x.contains(y)))"}]);
        let list = json!({"type": "array", "maxItems": 200, "items": {"type": "string", "maxLength": 100},
            "x-kubernetes-validations": rule});
        let schema = json!({"type": "object", "properties": {"l": list}});
        let (before, after) = (versions(&schema, &[false]), versions(&schema, &[true]));
        assert_eq!(validator()(&after, None).len(), 1);
        assert!(validator()(&after, Some(&before)).is_empty());
    }
}

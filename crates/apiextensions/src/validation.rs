//! What a definition must satisfy beyond its own fields: structural schemas with usable rules, an approval of its group,
//! authorities that a converter can be verified by.

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

fn schemas(new: &Value, old: Option<&Value>) -> ErrorList {
    let path = Path::new("spec").child("versions");
    let versions = arr_at(new, &["spec", "versions"]);
    // One schema for all is spoken of once, where v1beta1 had it: clients know that place.
    let same = |v: &Value| v.get("schema") == versions.first().and_then(|first| first.get("schema"));
    let shared = versions.iter().all(same);
    // Nor is what was too much in any of its defaults.
    let pruned = LazyCell::new(|| {
        let mut before = old.map_or(&[][..], |o| arr_at(o, &["spec", "versions"])).iter();
        let schema =
            |v: &Value| v.pointer("/schema/openAPIV3Schema").is_some_and(structural::has_unpruned_defaults);
        !before.any(schema)
    });
    let mut patterns = PatternBudget::default();
    let mut errors = ErrorList::new();
    for (i, version) in versions.iter().enumerate().take(if shared { 1 } else { usize::MAX }) {
        let Some(schema) = version.pointer("/schema/openAPIV3Schema") else { continue };
        // What was accepted once is not held against later updates.
        let before = old.and_then(|o| {
            arr_at(o, &["spec", "versions"])
                .iter()
                .find(|v| v["name"] == version["name"])
                .and_then(|v| v.pointer("/schema/openAPIV3Schema"))
        });
        if before == Some(schema) {
            continue;
        }
        let status = version.pointer("/subresources/status").is_some();
        let at = if shared { Path::new("spec").child("validation") } else { path.index(i).child("schema") };
        let at = at.child("openAPIV3Schema");
        let found = structural::check_within(schema, &at, status, *pruned, &mut patterns);
        // Rules are about the types that a structural schema gives.
        if found.is_empty() {
            let unusable = rules::check(schema, &at);
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
        json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}})
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
}

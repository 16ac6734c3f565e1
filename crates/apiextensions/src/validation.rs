//! What a definition must satisfy beyond its own fields: structural schemas with usable rules.

use crate::rules;
use kaji_meta::{
    field::{ErrorList, Path},
    object::arr_at,
};
use kaji_schema::structural;
use serde_json::Value;
use std::sync::Arc;

/// The check that the built-in kind of definitions is given: new object, stored object on updates.
pub type Check = Arc<dyn Fn(&Value, Option<&Value>) -> ErrorList + Send + Sync>;

/// Validates schemas.
pub fn validator() -> Check {
    Arc::new(schemas)
}

fn schemas(new: &Value, old: Option<&Value>) -> ErrorList {
    let path = Path::new("spec").child("versions");
    let versions = arr_at(new, &["spec", "versions"]);
    // One schema for all is spoken of once, where v1beta1 had it: clients know that place.
    let same = |v: &Value| v.get("schema") == versions.first().and_then(|first| first.get("schema"));
    let shared = versions.iter().all(same);
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
        let found = structural::check(schema, &at, status);
        // Rules are about the types that a structural schema gives.
        if found.is_empty() {
            errors.extend(rules::check(schema, &at));
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

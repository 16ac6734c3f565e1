//! The condition `NonStructuralSchema` of definitions from before `v1`: their schemas may be anything.
//! Source: apiextensions-apiserver, `pkg/controller/nonstructuralschema`.

use kaji_meta::{
    field::{Error, ErrorList, Path, aggregate},
    object::{arr_at, bool_at, str_at},
};
use kaji_schema::structural;
use serde_json::Value;

use crate::conditions;

const CONDITION: &str = "NonStructuralSchema";

/// Why a definition has the condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// What is wrong with the schemas of a definition; `None` if they are structural, as all are that `v1` accepts.
pub fn finding_of(definition: &Value) -> Option<Finding> {
    let mut errors = ErrorList::new();
    if preserves(definition) {
        let path = Path::new("spec").child("preserveUnknownFields");
        errors.push(Error::invalid(&path, true, "must be false"));
    }
    for (i, version) in arr_at(definition, &["spec", "versions"]).iter().enumerate() {
        let Some(schema) = version.pointer("/schema/openAPIV3Schema") else { continue };
        let path = Path::new("spec").child("versions").index(i).child("schema").child("openAPIV3Schema");
        match structural::violations(schema, &path) {
            Ok(found) => errors.extend(found),
            Err(why) => {
                let name = str_at(version, &["name"]);
                let message = format!("failed to check validation schema for version {name}: {why}");
                return Some(Finding { status: "Unknown", reason: "StructuralError", message });
            }
        }
    }
    let message = (!errors.is_empty()).then(|| aggregate(&errors))?;
    Some(Finding { status: "True", reason: "Violations", message })
}

/// Whether objects keep what their schemas do not name, as it was before `v1`.
pub fn preserves(definition: &Value) -> bool {
    bool_at(definition, &["spec", "preserveUnknownFields"]) == Some(true)
}

/// Sets the condition, or removes it.
pub fn note(definition: &mut Value, finding: Option<&Finding>, now: &str) {
    match finding {
        Some(Finding { status, reason, message }) => {
            conditions::set_status(definition, CONDITION, status, reason, message, now);
        }
        None => conditions::remove(definition, CONDITION),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_of_before_v1_are_named() {
        let crd = |preserve: bool, schema: Value| {
            json!({"spec": {"preserveUnknownFields": preserve,
                "versions": [{"name": "v1"}, {"name": "v2", "schema": {"openAPIV3Schema": schema}}]}})
        };
        let structural = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        assert_eq!(finding_of(&crd(false, structural)), None);
        let loose = finding_of(&crd(true, json!({"type": "object", "properties": {"a": {}}}))).unwrap();
        assert_eq!((loose.status, loose.reason), ("True", "Violations"));
        assert_eq!(
            loose.message,
            "[spec.preserveUnknownFields: Invalid value: true: must be false, spec.versions[1].schema.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields]"
        );
        let unclear = finding_of(&crd(false, json!({"$ref": "#/other"}))).unwrap();
        assert_eq!((unclear.status, unclear.reason), ("Unknown", "StructuralError"));
        assert_eq!(
            unclear.message,
            "failed to check validation schema for version v2: OpenAPIV3Schema '$ref' is not supported"
        );
        let mut definition = json!({});
        note(&mut definition, Some(&loose), "t1");
        assert!(conditions::is_true(&definition, CONDITION));
        note(&mut definition, None, "t2");
        assert_eq!(definition["status"]["conditions"], json!([]));
    }
}

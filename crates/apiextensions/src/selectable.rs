//! `selectableFields` of a version: fields that its schema has, each once, of a type that selectors can compare (KEP-4358).
//! Source: apiextensions-apiserver, `pkg/apis/apiextensions/validation`.

use crate::rules::{below, properties, text};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object::{arr_at, str_at},
};
use serde_json::Value;

/// How many fields a version may have selected by, unless it had more before.
const MOST: usize = 8;

/// What is wrong with the selectable fields of a definition.
pub(crate) fn check(new: &Value, old: Option<&Value>) -> ErrorList {
    let versions = arr_at(new, &["spec", "versions"]);
    // What is the same in all versions is spoken of once, where v1beta1 had it.
    let same =
        |field: &str| versions.iter().all(|v| v.get(field) == versions.first().and_then(|f| f.get(field)));
    let (shared, shared_schema) = (same("selectableFields"), same("schema"));
    let mut errors = ErrorList::new();
    for (i, version) in versions.iter().enumerate().take(if shared { 1 } else { usize::MAX }) {
        let fields = arr_at(version, &["selectableFields"]);
        if fields.is_empty() {
            continue;
        }
        let spec = Path::new("spec");
        let at = if shared { spec } else { spec.child("versions").index(i) }.child("selectableFields");
        // A schema that has gone to another place than the fields is none to upstream.
        let schema = version.pointer("/schema/openAPIV3Schema").filter(|_| shared == shared_schema);
        match schema {
            Some(schema) => fields_of(fields, schema, &at, had_too_many(version, old), &mut errors),
            None => {
                let subject =
                    if shared { "validations.schema is" } else { "`version.schema.openAPIV3Schema` is not" };
                errors.push(Error::invalid(&at, "", format!("may only be set when {subject} included")));
            }
        }
    }
    errors
}

/// Whether the version had the same fields before, and too many of them.
fn had_too_many(version: &Value, old: Option<&Value>) -> bool {
    let before = old.into_iter().flat_map(|o| arr_at(o, &["spec", "versions"]));
    let mut same = before.filter(|v| v["name"] == version["name"]);
    same.any(|v| {
        v.get("selectableFields") == version.get("selectableFields")
            && arr_at(v, &["selectableFields"]).len() > MOST
    })
}

fn fields_of(fields: &[Value], schema: &Value, at: &Path, may_be_many: bool, errors: &mut ErrorList) {
    let mut seen: Vec<String> = vec![];
    for (i, field) in fields.iter().enumerate() {
        let (path, at) = (str_at(field, &["jsonPath"]), at.index(i).child("jsonPath"));
        if path.is_empty() {
            errors.push(Error::required(&at, ""));
            continue;
        }
        let (way, found) = match find(path, schema) {
            Ok(found) => found,
            Err(why) => {
                errors.push(Error::invalid(&at, path, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if way.first().is_some_and(|first| *first == "metadata") {
            errors.push(Error::invalid(&at, path, "must not point to fields in metadata"));
        }
        if !matches!(text(found, "type"), "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(Error::invalid(&at, path, detail));
        }
        let way = way.join(".");
        if seen.contains(&way) {
            errors.push(Error::duplicate(&at, path));
        } else {
            seen.push(way);
        }
    }
    if seen.len() > MOST && !may_be_many {
        errors.push(Error::too_many(at, seen.len(), MOST));
    }
}

/// The steps of a path, and the schema where it ends.
fn find<'s, 'p>(path: &'p str, schema: &'s Value) -> Result<(Vec<&'p str>, &'s Value), String> {
    const NO_FIELD: &str = "does not refer to a valid field";
    let (mut rest, mut way, mut schema) = (path, vec![], schema);
    while !rest.is_empty() {
        let Some(after) = rest.strip_prefix('.') else {
            if rest.starts_with('[') {
                return Err("array notation is not allowed".into());
            }
            let end = rest.find(['.', '[', ']']).unwrap_or(rest.len()).max(1);
            return Err(format!("expected [ or . but got: {}", &rest[..end]));
        };
        if after.is_empty() {
            return Err("unexpected end of JSON path".into());
        }
        // A delimiter is a separate name here.
        let end = after.find(['.', '[', ']']).unwrap_or(after.len()).max(1);
        let name = &after[..end];
        schema = if properties(schema).next().is_some() {
            properties(schema).find(|(n, _)| *n == name).map(|(_, s)| s).ok_or(NO_FIELD)?
        } else {
            below(schema, "additionalProperties").ok_or(NO_FIELD)?
        };
        way.push(name);
        rest = &after[end..];
    }
    Ok((way, schema))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn errors(paths: &[&str], schema: Option<Value>) -> String {
        let fields: Vec<Value> = paths.iter().map(|p| json!({"jsonPath": p})).collect();
        let mut version = json!({"name": "v1", "selectableFields": fields});
        if let Some(schema) = schema {
            version["schema"] = json!({"openAPIV3Schema": schema});
        }
        let found = check(&json!({"spec": {"versions": [version]}}), None);
        found.iter().map(|e| format!("{e}\n")).collect()
    }

    #[test]
    fn fields_must_be_there_and_comparable() {
        let schema = json!({"type": "object", "properties": {
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": {"type": "object", "properties": {"a": {"type": "string"}, "l": {"type": "array"},
                "m": {"type": "object", "additionalProperties": {"type": "integer"}}}}}});
        assert_eq!(errors(&[".spec.a", ".spec.m.any"], Some(schema.clone())), "");
        let bad = [
            "",
            ".spec.a",
            ".spec.a",
            "spec.a",
            ".spec.b",
            ".spec.l",
            ".spec.l[0]",
            ".spec.",
            ".metadata.name",
        ];
        expect![[r#"
            spec.selectableFields[0].jsonPath: Required value
            spec.selectableFields[2].jsonPath: Duplicate value: ".spec.a"
            spec.selectableFields[3].jsonPath: Invalid value: "spec.a": is an invalid path: expected [ or . but got: spec
            spec.selectableFields[4].jsonPath: Invalid value: ".spec.b": is an invalid path: does not refer to a valid field
            spec.selectableFields[5].jsonPath: Invalid value: ".spec.l": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.
            spec.selectableFields[6].jsonPath: Invalid value: ".spec.l[0]": is an invalid path: array notation is not allowed
            spec.selectableFields[7].jsonPath: Invalid value: ".spec.": is an invalid path: unexpected end of JSON path
            spec.selectableFields[8].jsonPath: Invalid value: ".metadata.name": must not point to fields in metadata
        "#]]
        .assert_eq(&errors(&bad, Some(schema)));
        assert_eq!(
            errors(&[".spec.a"], None),
            "spec.selectableFields: Invalid value: \"\": may only be set when validations.schema is included\n"
        );
    }
}

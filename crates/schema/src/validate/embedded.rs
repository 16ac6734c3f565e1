//! Embedded resources (`x-kubernetes-embedded-resource`): they must have apiVersion and kind, and valid metadata.

use kaji_meta::field::{Error, ErrorList, Path};
use kaji_meta::{GroupVersion, objectmeta, validation};
use serde_json::{Map, Value};

use crate::at::At;
use crate::decode;
use crate::prune::object_meta;
use crate::schema::Schema;

/// Checks all embedded resources in `value`.
pub(super) fn check(schema: &Schema, value: &Value, at: &At<'_>, base: &Path, out: &mut ErrorList) {
    match value {
        Value::Object(map) => {
            if schema.embedded_resource {
                resource(map, &at.path(base), out);
            }
            for (k, v) in map.iter().filter(|(_, v)| v.is_object() || v.is_array()) {
                match (schema.property(k), &schema.additional) {
                    (Some(p), _) => check(&p.schema, v, &at.field(k), base, out),
                    (None, Some(a)) => check(a, v, &at.key(k), base, out),
                    (None, None) => {}
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (i, v) in list.iter().enumerate() {
                check(items, v, &at.index(i), base, out);
            }
        }
        _ => {}
    }
}

fn resource(map: &Map<String, Value>, path: &Path, out: &mut ErrorList) {
    for field in ["apiVersion", "kind"] {
        let path = path.child(field);
        match map.get(field) {
            None => out.push(Error::required(&path, "")),
            Some(Value::String(s)) if s.is_empty() => {
                out.push(Error::invalid(&path, "", "must not be empty"))
            }
            Some(Value::String(s)) if field == "apiVersion" => {
                if let Err(e) = GroupVersion::parse(s) {
                    out.push(Error::invalid(&path, s.as_str(), e.to_string()));
                }
            }
            Some(Value::String(s)) => {
                let problems = validation::is_dns1035_label(&s.to_lowercase());
                if !problems.is_empty() {
                    let detail =
                        format!("may have mixed case, but should otherwise match: {}", problems.join(","));
                    out.push(Error::invalid(&path, s.as_str(), detail));
                }
            }
            Some(other) => out.push(Error::invalid(&path, other.clone(), "must be a string")),
        }
    }
    if let Some(meta) = map.get("metadata") {
        metadata(meta, &path.child("metadata"), out);
    }
}

fn metadata(meta: &Value, path: &Path, out: &mut ErrorList) {
    let mut typed = meta.clone();
    if let Err(e) = decode::check_types(object_meta(), &mut typed) {
        out.push(Error::invalid(path, meta.clone(), e));
        return;
    }
    let Some(fields) = typed.as_object_mut() else { return };
    // A name is not required here, though the check of metadata requires one.
    if fields.get("name").and_then(Value::as_str).unwrap_or("").is_empty() {
        fields.insert("name".into(), "fakename".into());
    }
    let namespaced = fields.get("namespace").and_then(Value::as_str).is_some_and(|n| !n.is_empty());
    out.extend(objectmeta::validate_object_meta(&typed, namespaced, validation::path_segment_name, path));
}

//! Schemas of custom resources as documents publish them.
//!
//! v3 has the definition's schema as it is, with the fields that every object has. v2 cannot express nullable values,
//! junctors, or objects that keep unknown fields; there, the affected parts become untyped, so that clients do not reject
//! what the server accepts.

use serde_json::{Map, Value, json};

use super::{Custom, Docs, gvk};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";

/// What upstream says of these fields of an object inside of another.
const EMBEDDED_VERSION: &str = "apiVersion defines the versioned schema of this representation of an object. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const EMBEDDED_KIND: &str = "kind is a string value representing the type of this object. In CamelCase. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

/// Types that the published schemas refer to.
pub(super) const REFERENCES: [&str; 2] = [OBJECT_META, LIST_META];

/// Keywords that documents carry; the rest (`id`, `$schema`, ...) is not structural.
const KEYWORDS: [&str; 37] = [
    "type",
    "format",
    "title",
    "description",
    "default",
    "nullable",
    "example",
    "externalDocs",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "enum",
    "maxProperties",
    "minProperties",
    "required",
    "items",
    "properties",
    "additionalProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];

/// The v3 schemas of a custom resource and of its list.
pub(super) fn definitions_v3(c: &Custom, docs: Docs<'_>) -> [(String, Value); 2] {
    definitions(c, docs, Version::V3)
}

/// The v2 definitions of a custom resource and of its list.
pub(super) fn definitions_v2(c: &Custom, docs: Docs<'_>) -> [(String, Value); 2] {
    definitions(c, docs, Version::V2)
}

#[derive(Clone, Copy, PartialEq)]
enum Version {
    V2,
    V3,
}

impl Version {
    /// A described reference to a type.
    fn reference(self, name: &str, description: Option<String>) -> Value {
        let mut out = match self {
            Version::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Version::V3 => json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}]}),
        };
        if let Some(d) = description {
            out["description"] = d.into();
        }
        out
    }

    fn plain_reference(self, name: &str) -> Value {
        match self {
            Version::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Version::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }
}

fn definitions(c: &Custom, docs: Docs<'_>, version: Version) -> [(String, Value); 2] {
    let (name, list) = (c.definition_name(&c.kind), c.definition_name(&c.list_kind));
    [(name, object(c, docs, version)), (list, list_of(c, docs, version))]
}

fn object(c: &Custom, docs: Docs<'_>, version: Version) -> Value {
    let mut out = match &c.schema {
        Some(Value::Object(s)) if !(version == Version::V2 && preserves(s)) => {
            let mut s = published(s, version);
            own_fields(&mut s, docs, version);
            s
        }
        _ => Map::from_iter([("type".to_string(), "object".into())]),
    };
    let kinds = json!([gvk(&c.group, &c.version, &c.kind)]);
    out.insert("x-kubernetes-group-version-kind".into(), kinds);
    selectable(c, &mut out);
    Value::Object(out)
}

fn selectable(c: &Custom, out: &mut Map<String, Value>) {
    if !c.selectable_fields.is_empty() {
        let fields =
            c.selectable_fields.iter().map(|f| json!({"fieldPath": f.strip_prefix('.').unwrap_or(f)}));
        out.insert("x-kubernetes-selectable-fields".into(), fields.collect());
    }
}

fn list_of(c: &Custom, docs: Docs<'_>, version: Version) -> Value {
    let items = format!(
        "List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
        c.plural
    );
    let mut out = json!({
        "type": "object",
        "description": format!("{} is a list of {}", c.list_kind, c.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": type_meta("apiVersion", docs),
            "kind": type_meta("kind", docs),
            "metadata": version.reference(LIST_META, docs(STATUS, Some("metadata"))),
            "items": {
                "type": "array",
                "description": items,
                "items": version.plain_reference(&c.definition_name(&c.kind)),
            },
        },
        "x-kubernetes-group-version-kind": [gvk(&c.group, &c.version, &c.list_kind)],
    });
    if let Value::Object(o) = &mut out {
        selectable(c, o);
    }
    out
}

fn preserves(s: &Map<String, Value>) -> bool {
    s.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true))
}

fn type_meta(field: &str, docs: Docs<'_>) -> Value {
    // Every kind describes these two alike.
    match docs("io.k8s.api.core.v1.ConfigMap", Some(field)) {
        Some(d) => json!({"type": "string", "description": d}),
        None => json!({"type": "string"}),
    }
}

fn own_fields(s: &mut Map<String, Value>, docs: Docs<'_>, version: Version) {
    let properties = s.entry("properties").or_insert_with(|| json!({}));
    let Value::Object(properties) = properties else { return };
    properties.insert("apiVersion".into(), type_meta("apiVersion", docs));
    properties.insert("kind".into(), type_meta("kind", docs));
    let description = docs("io.k8s.api.core.v1.ConfigMap", Some("metadata"));
    properties.insert("metadata".into(), version.reference(OBJECT_META, description));
    for (name, child) in properties.iter_mut() {
        if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            embedded(child, docs, version);
        }
    }
}

/// Embedded resources have the fields of every object too.
fn embedded(value: &mut Value, docs: Docs<'_>, version: Version) {
    let Value::Object(s) = value else { return };
    for key in ["items", "additionalProperties"] {
        if let Some(child) = s.get_mut(key) {
            embedded(child, docs, version);
        }
    }
    if let Some(Value::Object(properties)) = s.get_mut("properties") {
        properties.values_mut().for_each(|p| embedded(p, docs, version));
    }
    if preserves(s) && version == Version::V2
        || s.get("x-kubernetes-embedded-resource") != Some(&Value::Bool(true))
    {
        return;
    }
    let properties = s.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        properties.insert("apiVersion".into(), json!({"type": "string", "description": EMBEDDED_VERSION}));
        properties.insert("kind".into(), json!({"type": "string", "description": EMBEDDED_KIND}));
        let description = docs("io.k8s.api.core.v1.ConfigMap", Some("metadata"));
        properties.insert("metadata".into(), version.reference(OBJECT_META, description));
    }
    if let Value::Array(required) = s.entry("required").or_insert_with(|| json!([])) {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|r| r == name) {
                required.push(name.into());
            }
        }
    }
}

/// A copy of a schema with the known keywords that are set, in the form of `version`.
fn published(s: &Map<String, Value>, version: Version) -> Map<String, Value> {
    let empty = |v: &Value| match v {
        Value::Null | Value::Bool(false) => true,
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        _ => false,
    };
    let known = s.iter().filter(|(k, v)| KEYWORDS.contains(&k.as_str()) && (!empty(v) || *k == "default"));
    let mut out: Map<String, Value> = known.map(|(k, v)| (k.clone(), v.clone())).collect();
    if out.get("default").is_some_and(Value::is_null) {
        out.remove("default");
    }
    match version {
        Version::V2 => reduce(&mut out),
        Version::V3 if out.contains_key("x-kubernetes-int-or-string") && !out.contains_key("allOf") => {
            out.entry("anyOf").or_insert_with(|| json!([{"type": "integer"}, {"type": "string"}]));
        }
        Version::V3 => {}
    }
    for key in ["items", "additionalProperties"] {
        if let Some(Value::Object(child)) = out.get_mut(key) {
            *child = published(child, version);
        }
    }
    if let Some(Value::Object(properties)) = out.get_mut("properties") {
        for child in properties.values_mut() {
            if let Value::Object(c) = child {
                *c = published(c, version);
            }
        }
    }
    out
}

/// Drops what v2 cannot express.
fn reduce(s: &mut Map<String, Value>) {
    for key in ["allOf", "anyOf", "oneOf", "not", "default"] {
        s.remove(key);
    }
    let is_nullable = |v: &Value| v.get("nullable") == Some(&Value::Bool(true));
    let nullable = s.remove("nullable") == Some(Value::Bool(true));
    if nullable {
        s.remove("type");
    }
    if nullable || preserves(s) {
        s.remove("items");
        s.remove("properties");
    }
    let untyped_array = s.get("type").is_some_and(|t| t == "array") && !s.contains_key("items");
    let open_object = s.get("type").is_some_and(|t| t == "object") && preserves(s);
    if untyped_array || open_object {
        s.remove("type");
    }
    let optional: Vec<String> = match s.get("properties") {
        Some(Value::Object(p)) => p.iter().filter(|(_, v)| is_nullable(v)).map(|(k, _)| k.clone()).collect(),
        _ => Vec::new(),
    };
    if let Some(Value::Array(required)) = s.get_mut("required") {
        required.retain(|r| !optional.iter().any(|o| r == o));
    }
    let none_left = s.get("required").is_some_and(|r| r.as_array().is_some_and(Vec::is_empty));
    if none_left || s.get("additionalProperties").is_some_and(is_nullable) {
        s.remove("required");
    }
}

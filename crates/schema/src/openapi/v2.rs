//! The v2 (Swagger) form of paths and definitions.

use serde_json::{Map, Value, json};

use super::Docs;
use super::operations::{Body, Param, PathItem};
use super::v3::{common, patch_types, produces};

const META: &str = "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1";

fn param(p: &Param<'_>, docs: Docs<'_>) -> Value {
    let mut out = json!({"name": p.name, "in": p.place, "type": p.ty, "uniqueItems": true});
    if let Some(d) = p.description(docs) {
        out["description"] = d.into();
    }
    if p.place == "path" {
        out["required"] = true.into();
    }
    out
}

/// A path item.
pub(super) fn path(path: &PathItem<'_>, docs: Docs<'_>) -> Value {
    let mut out = Map::new();
    if !path.params.is_empty() {
        out.insert("parameters".into(), path.params.iter().map(|p| param(p, docs)).collect());
    }
    for op in &path.operations {
        let mut o = common(op);
        let body = match &op.body {
            Body::None => None,
            Body::Object(name) => Some((format!("#/definitions/{name}"), true)),
            Body::Delete => Some((format!("{META}.DeleteOptions"), false)),
            Body::Patch => Some((format!("{META}.Patch"), true)),
        };
        let mut params: Vec<Value> = Vec::new();
        if let Some((name, required)) = body {
            let mut b = json!({"in": "body", "name": "body", "schema": {"$ref": name}});
            if required {
                b["required"] = true.into();
            }
            params.push(b);
        }
        params.extend(op.params.iter().map(|p| param(p, docs)));
        if !params.is_empty() {
            o.insert("parameters".into(), Value::Array(params));
        }
        let consumes: &[&str] = match (&op.body, op.custom, op.media) {
            (_, _, Some(media)) => media.consumes,
            (Body::Patch, ..) => patch_types(op),
            (_, true, _) => &["application/json", "application/yaml"],
            _ => &["*/*"],
        };
        if !consumes.is_empty() {
            o.insert("consumes".into(), json!(consumes));
        }
        let typed = op.answer.is_some() || op.media.is_some();
        o.insert("produces".into(), if typed { json!(produces(op)) } else { json!(["*/*"]) });
        o.insert("schemes".into(), json!(["https"]));
        let mut responses = Map::new();
        for (code, text) in op.codes {
            let schema = match &op.answer {
                Some(name) => json!({"$ref": format!("#/definitions/{name}")}),
                None => json!({"type": "string"}),
            };
            responses.insert(code.to_string(), json!({"description": text, "schema": schema}));
        }
        responses.insert("401".into(), json!({"description": "Unauthorized"}));
        o.insert("responses".into(), Value::Object(responses));
        out.insert(op.method.into(), Value::Object(o));
    }
    Value::Object(out)
}

/// A v3 schema of a built-in type as a v2 definition: references stand alone, unions of JSON types become strings, defaults
/// go (as upstream's published document has it).
pub(super) fn definition(schema: Value) -> Value {
    let Value::Object(mut s) = schema else { return schema };
    s.remove("default");
    if s.remove("oneOf").is_some() {
        s.insert("type".into(), "string".into());
    }
    if let Some(Value::Array(mut list)) = s.remove("allOf")
        && let Some(Value::Object(link)) = list.pop()
    {
        s.extend(link);
    }
    if let Some(Value::String(r)) = s.get_mut("$ref")
        && let Some(name) = r.strip_prefix(super::components::PREFIX)
    {
        *r = format!("#/definitions/{name}");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = s.remove(key) {
            s.insert(key.into(), definition(child));
        }
    }
    if let Some(Value::Object(properties)) = s.remove("properties") {
        let properties: Map<String, Value> =
            properties.into_iter().map(|(k, v)| (k, definition(v))).collect();
        s.insert("properties".into(), Value::Object(properties));
    }
    Value::Object(s)
}

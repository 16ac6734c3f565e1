//! The v3 form of paths, and what it has in common with v2's.

use serde_json::{Map, Value, json};

use super::Docs;
use super::components::PREFIX;
use super::operations::{Body, Operation, Param, PathItem};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

fn params_v3(params: &[Param<'_>], docs: Docs<'_>) -> Value {
    let one = |p: &Param<'_>| {
        let mut out = json!({"name": p.name, "in": p.place, "schema": {"type": p.ty, "uniqueItems": true}});
        if let Some(d) = p.description(docs) {
            out["description"] = d.into();
        }
        if p.place == "path" {
            out["required"] = true.into();
        }
        out
    };
    params.iter().map(one).collect()
}

fn content(kinds: &[&str], name: &str) -> Value {
    let schema = json!({"schema": {"$ref": format!("{PREFIX}{name}")}});
    Value::Object(kinds.iter().map(|k| (k.to_string(), schema.clone())).collect())
}

/// Content types of answers.
pub(super) fn produces(op: &Operation) -> Vec<&'static str> {
    if let Some(media) = op.media {
        return media.produces.to_vec();
    }
    let mut out = vec!["application/json", "application/yaml"];
    if !op.custom {
        out.push("application/vnd.kubernetes.protobuf");
        if op.streams {
            out.extend(["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"]);
        }
    }
    out
}

/// Content types of patches.
pub(super) fn patch_types(op: &Operation) -> &'static [&'static str] {
    const TYPES: [&str; 4] = [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
        "application/strategic-merge-patch+json",
    ];
    if op.custom { &TYPES[..3] } else { &TYPES }
}

/// A path as v3 documents write it.
pub(super) fn path(path: &PathItem<'_>, docs: Docs<'_>) -> Value {
    let mut out = Map::new();
    if !path.params.is_empty() {
        out.insert("parameters".into(), params_v3(&path.params, docs));
    }
    for op in &path.operations {
        let mut o = common(op);
        if !op.params.is_empty() {
            o.insert("parameters".into(), params_v3(&op.params, docs));
        }
        let any = if op.custom { &["application/json", "application/yaml"][..] } else { &["*/*"][..] };
        let body = match &op.body {
            Body::None => None,
            Body::Object(name) => Some(json!({"content": content(any, name), "required": true})),
            Body::Delete => Some(json!({"content": content(any, &format!("{META}.DeleteOptions"))})),
            Body::Patch => {
                Some(json!({"content": content(patch_types(op), &format!("{META}.Patch")), "required": true}))
            }
        };
        if let Some(b) = body {
            o.insert("requestBody".into(), b);
        }
        let mut responses = Map::new();
        for (code, text) in op.codes {
            let content = match &op.answer {
                Some(name) => content(&produces(op), name),
                None => {
                    let types = op.media.map_or(&["*/*"][..], |media| media.produces);
                    let text = json!({"schema": {"type": "string"}});
                    Value::Object(types.iter().map(|t| ((*t).to_owned(), text.clone())).collect())
                }
            };
            responses.insert(code.to_string(), json!({"description": text, "content": content}));
        }
        responses.insert("401".into(), json!({"description": "Unauthorized"}));
        o.insert("responses".into(), Value::Object(responses));
        out.insert(op.method.into(), Value::Object(o));
    }
    Value::Object(out)
}

/// What v2 and v3 write alike.
pub(super) fn common(op: &Operation) -> Map<String, Value> {
    let mut o = Map::new();
    o.insert("description".into(), op.description.clone().into());
    o.insert("operationId".into(), op.id.clone().into());
    o.insert("tags".into(), json!([op.tag]));
    if !op.action.is_empty() {
        o.insert("x-kubernetes-action".into(), op.action.into());
    }
    if let Some(gvk) = &op.gvk {
        o.insert("x-kubernetes-group-version-kind".into(), gvk.clone());
    }
    o
}

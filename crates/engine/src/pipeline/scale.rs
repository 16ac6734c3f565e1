//! The projection of an object to its `autoscaling/v1` Scale and back, which updates through the `scale` subresource and
//! admission of them use. Paths are those of the request's version.
//!
//! Invariant: a Scale is computed from the object, and nothing of it is stored but the replicas.

use super::Op;
use crate::decode;
use kaji_meta::{Reason, Status, labels, object};
use kaji_resource::{ScaleDef, nested};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// The `apiVersion` of a Scale.
pub(crate) const API_VERSION: &str = "autoscaling/v1";
/// Whether the request is about a custom resource.
pub(crate) fn custom(op: &Op<'_>) -> bool {
    decode::is_custom(&op.target.version.schema)
}

/// A path without ownership of its segments.
pub(crate) fn segments<'a>(path: &'a [Cow<'static, str>]) -> Vec<&'a str> {
    path.iter().map(AsRef::as_ref).collect()
}

/// The stored object in the request's version, copied only if it has to be converted.
pub(crate) fn view<'a>(op: &Op<'_>, stored: &'a Value) -> Result<Cow<'a, Value>, Status> {
    if op.conversion.in_hub() {
        Ok(Cow::Borrowed(stored))
    } else {
        op.conversion.in_version(stored).map(Cow::Owned)
    }
}

fn number(object: &Value, path: &[Cow<'static, str>]) -> Result<i64, Status> {
    nested::integer(object, path).map(Option::unwrap_or_default).map_err(unreadable)
}

/// An object from before its definition called these paths replicas: upstream answers with the bare error.
fn unreadable(text: String) -> Status {
    Status::new(500, Reason::Unknown, text)
}

/// The selector as text. Custom resources hold text; built-ins a label selector, or a map of labels.
fn selector(op: &Op<'_>, def: &ScaleDef, object: &Value) -> Result<String, Status> {
    let Some(path) = &def.selector else { return Ok(String::new()) };
    if custom(op) {
        let text = nested::string(object, path).map_err(unreadable)?;
        return Ok(text.unwrap_or_default().to_owned());
    }
    let label_selector =
        |m: &Map<String, Value>| m.keys().all(|k| matches!(k.as_str(), "matchLabels" | "matchExpressions"));
    match object::at(object, &segments(path)) {
        Some(Value::Object(map)) if !label_selector(map) => {
            let labels = map.iter().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?)));
            Ok(labels::Selector::from_map(labels).to_string())
        }
        Some(v @ Value::Object(_)) => labels::Selector::from_label_selector(v)
            .map(|s| s.to_string())
            .map_err(|e| Status::bad_request(e.to_string())),
        _ => Ok(String::new()),
    }
}

/// The Scale of a stored object.
pub(crate) fn of(op: &Op<'_>, def: &ScaleDef, stored: &Value) -> Result<Value, Status> {
    let object = view(op, stored)?;
    let mut meta = Map::new();
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(v) = object.get("metadata").and_then(|m| m.get(key)).filter(|v| !v.is_null()) {
            meta.insert(key.into(), v.clone());
        }
    }
    let mut spec = Map::new();
    let replicas = number(&object, &def.spec_replicas)?;
    if replicas != 0 {
        spec.insert("replicas".into(), replicas.into());
    }
    let mut status = Map::new();
    status.insert("replicas".into(), number(&object, &def.status_replicas)?.into());
    let selector = selector(op, def, &object)?;
    if !selector.is_empty() {
        status.insert("selector".into(), selector.into());
    }
    Ok(json!({"kind": "Scale", "apiVersion": API_VERSION, "metadata": meta, "spec": spec, "status": status}))
}

/// `spec.replicas` of a Scale.
pub(crate) fn replicas(scale: &Value) -> i64 {
    object::i64_at(scale, &["spec", "replicas"]).unwrap_or(0)
}

/// Sets the replicas of a stored object.
pub(crate) fn set_replicas(
    op: &Op<'_>,
    def: &ScaleDef,
    stored: &mut Value,
    replicas: i64,
) -> Result<(), Status> {
    let path = segments(&def.spec_replicas);
    if op.conversion.in_hub() {
        object::set_at(stored, &path, replicas);
        return Ok(());
    }
    let mut object = op.conversion.in_version(stored)?;
    object::set_at(&mut object, &path, replicas);
    op.conversion.to_hub(&mut object)?;
    *stored = object;
    Ok(())
}

//! Applies the results of mutating policies to an object: apply configurations and JSON patches.
//! Source: apiserver `policy/mutating/patch`.

use kaji_cel::{Struct, Value as Cel};
use kaji_engine::Attributes;
use kaji_meta::{GroupVersionKind, Status, Work, object};
use kaji_schema::{SchemaRef, managed, patch::json_patch_explained, types};
use serde_json::{Map, Value, json};

/// How the text of a `test` that does not hold ends: then the patch is not applied, and nothing is wrong.
const TEST_FAILED: &str = "test failed";

/// Why an object cannot be mutated.
#[derive(Debug)]
pub(super) enum Failure {
    /// By the policy's fault, in words: it counts as its failure policy says.
    Policy(String),
    /// The request ends.
    Request(Status),
}

/// Applies a configuration: `Object{...}`.
pub(super) fn configure(
    a: &Attributes<'_>,
    kind: &GroupVersionKind,
    live: &Value,
    result: &Cel<'_>,
) -> Result<Value, Failure> {
    let Cel::Struct(made) = result else {
        let found = result.ty().name();
        let text = format!("unsupported return type from ApplyConfiguration expression: {found}");
        return Err(Failure::Policy(text));
    };
    let mut config = checked(made)?;
    let api_version = object::api_version(live);
    object::set_at(&mut config, &["apiVersion"], api_version);
    object::set_at(&mut config, &["kind"], object::kind(live));
    let Some(schema) = schema(a, kind) else {
        return Err(Failure::Request(Status::service_unavailable(format!(
            "Resource kind {kind} not found. There can be a delay between when CustomResourceDefinitions are created and when they are available."
        ))));
    };
    let merged = managed::configure(&schema, live, &config)
        .map_err(|e| Failure::Policy(format!("error applying patch: {e}")))?;
    received(a, kind, merged, false)
}

/// Applies a JSON patch: a list of `JSONPatch{...}`.
pub(super) fn patch(
    a: &Attributes<'_>,
    kind: &GroupVersionKind,
    live: &Value,
    result: &Cel<'_>,
) -> Result<Value, Failure> {
    let Cel::List(list) = result else {
        let text = "type mismatch: JSONPatchType.expression should evaluate to array";
        return Err(Failure::Policy(text.into()));
    };
    let mut operations = Vec::with_capacity(list.len());
    for element in list.iter() {
        match element.map_err(|e| Failure::Policy(e.to_string()))? {
            Cel::Struct(made) => operations.push(operation(&made)?),
            other => {
                return Err(Failure::Policy(format!(
                    "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {}",
                    other.ty().name()
                )));
            }
        }
    }
    let mut patched = live.clone();
    let over = || a.deadline.is_over();
    match json_patch_explained(&mut patched, &Value::Array(operations), &Work::new(&over)) {
        // As upstream, here alone.
        Ok(()) => received(a, kind, patched, true),
        Err(error) if error.ends_with(TEST_FAILED) => Ok(live.clone()),
        Err(error) => Err(Failure::Policy(format!("JSON Patch: {error}"))),
    }
}

/// An operation as JSON.
fn operation(made: &Struct<'_>) -> Result<Value, Failure> {
    let text = |field: &str| match made.get(field) {
        Some(Cel::String(text)) => text.to_string(),
        _ => String::new(),
    };
    let mut operation = Map::new();
    operation.insert("op".into(), json!(text("op")));
    operation.insert("path".into(), json!(text("path")));
    if !text("from").is_empty() {
        operation.insert("from".into(), json!(text("from")));
    }
    match made.get("value") {
        None => {}
        Some(Cel::Struct(part)) => drop(operation.insert("value".into(), checked(part)?)),
        Some(value) => {
            let json = value.to_json().map_err(|e| {
                Failure::Policy(format!(
                    "JSONPath valueExpression evaluated to a type that could not marshal to JSON: {e}"
                ))
            })?;
            operation.insert("value".into(), json);
        }
    }
    Ok(Value::Object(operation))
}

/// An object as JSON, if its parts are named after their places.
fn checked(made: &Struct<'_>) -> Result<Value, Failure> {
    let wrong = made.misnamed();
    if !wrong.is_empty() {
        return Err(Failure::Policy(format!("type mismatch: {}", wrong.join("\n"))));
    }
    // Fields are read back from the map that the value is; the error is about one of them.
    Cel::Struct(made.clone().into()).to_json().map_err(|e| Failure::Policy(e.to_string()))
}

/// The result in the shape that a client's object would be given.
fn received(
    a: &Attributes<'_>,
    kind: &GroupVersionKind,
    object: Value,
    strict: bool,
) -> Result<Value, Failure> {
    a.api.received(object, kind, strict).map_err(|e| Failure::Request(Status::internal(e)))
}

/// The schema of a kind that a request is taken for.
fn schema(a: &Attributes<'_>, kind: &GroupVersionKind) -> Option<SchemaRef> {
    let own = std::iter::once(a.def).filter(|def| def.group == kind.group && def.kind == kind.kind);
    let own = own.filter_map(|def| def.version(&kind.version)).map(|version| version.schema.clone()).next();
    own.or_else(|| types::for_gvk(&kind.group, &kind.version, &kind.kind))
}

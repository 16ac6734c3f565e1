//! Forms of what is computed for a request rather than read from a cache: Scales, and kinds that are read but never
//! stored.
//!
//! Invariant: they have the forms that stored kinds have, made by the same columns and cells.

use super::{
    finish,
    table::{self, Include},
};
use crate::{
    cache::Entry,
    decode, list_options,
    registry::Resource,
    request::{Accept, ApiRequest, Form},
    response::{ApiResponse, Body},
    storage,
};
use jiff::Timestamp;
use kaji_meta::{Status, object};
use kaji_resource::{Column, Verb, age_column, name_column};
use serde_json::{Value, json};
use std::borrow::Cow;

/// The answer with a Scale.
///
/// # Errors
/// 400 for an `includeObject` that there is not.
pub(crate) fn scale_response(
    res: &Resource,
    req: &ApiRequest,
    now: Timestamp,
    scale: Value,
) -> Result<ApiResponse, Status> {
    let custom = res.def.version(&req.version).is_some_and(|v| decode::is_custom(&v.schema));
    let (desired, available) = if custom {
        ("Number of desired replicas", "Number of actual replicas")
    } else {
        (
            "replicas is the desired number of instances for the scaled object.",
            "replicas is the actual number of observed instances of the scaled object.",
        )
    };
    let mut columns = [
        name_column(),
        Column::new("Desired", "integer", 0, desired),
        Column::new("Available", "integer", 0, available),
        age_column(),
    ];
    if !custom {
        columns[0].format = "".into();
    }
    if custom && let Some(age) = columns.last_mut() {
        age.ty = "date".into();
    }
    let cells = |scale: &Value| {
        let replicas = |of| object::i64_at(scale, &[of, "replicas"]).unwrap_or(0);
        let age = kaji_meta::time::time_since(object::creation_timestamp(scale).unwrap_or(""), now);
        vec![object::name(scale).into(), replicas("spec").into(), replicas("status").into(), age.into()]
    };
    let columns: Vec<_> = columns.iter().map(Cow::Borrowed).collect();
    formed(req, 200, scale, &columns, &cells)
}

/// The answer to a read of a kind that is never stored.
///
/// # Errors
/// 400 for selectors and an `includeObject` that there are not.
pub(crate) fn read_response(
    res: &Resource,
    req: &ApiRequest,
    now: Timestamp,
    (code, mut value): (u16, Value),
) -> Result<ApiResponse, Status> {
    if req.verb == Verb::List {
        select(res, req, &mut value)?;
    }
    let cells = |object: &Value| table::cells(res, &req.version, object, now);
    formed(req, code, value, &table::columns(res, &req.version), &cells)
}

/// Leaves in a list what the request's selectors want.
fn select(res: &Resource, req: &ApiRequest, list: &mut Value) -> Result<(), Status> {
    let options = list_options::ListOptions::for_list(req)?;
    let filter = list_options::filter(res, req, &options)?;
    if let Some(items) = list.get_mut("items").and_then(Value::as_array_mut) {
        let fields = res.cache.fields();
        items.retain(|item| {
            let key = res.key(object::namespace(item), object::name(item)).into();
            let bytes = storage::encode_object(item);
            let change = crate::cache::Change::Added;
            let entry = Entry::from_stored(key, &res.prefix, &bytes, 0, change, &fields);
            entry.is_ok_and(|entry| filter.matches(&entry))
        });
    }
    Ok(())
}

fn formed(
    req: &ApiRequest,
    code: u16,
    mut value: Value,
    columns: &[Cow<'_, Column>],
    cells: &dyn Fn(&Value) -> Vec<Value>,
) -> Result<ApiResponse, Status> {
    let accept = &req.accept;
    let made = match accept.form {
        Form::Object => {
            // As in any list of built-in objects.
            for item in value.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(item) = item.as_object_mut() {
                    item.remove("apiVersion");
                    item.remove("kind");
                }
            }
            value
        }
        Form::PartialMetadata => match value.get("items").and_then(Value::as_array) {
            None => partial(accept, &value),
            Some(items) => json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": meta_version(accept),
                "metadata": value["metadata"],
                "items": items.iter().map(|item| partial(accept, item)).collect::<Vec<_>>(),
            }),
        },
        Form::Table => {
            let mut out = Vec::new();
            let metadata = match object::resource_version(&value) {
                "" => json!({}),
                revision => json!({"resourceVersion": revision}),
            };
            let columns = table::column_definitions(columns);
            table::head(&mut out, meta_version(accept), &metadata, &columns);
            let include = Include::from_request(req)?;
            let rows = value
                .get("items")
                .and_then(Value::as_array)
                .map_or(std::slice::from_ref(&value), Vec::as_slice);
            for (i, item) in rows.iter().enumerate() {
                out.extend_from_slice(if i == 0 { br#"{"cells":"# } else { br#",{"cells":"# });
                kaji_meta::json::write(&mut out, &Value::Array(cells(item)));
                out.extend_from_slice(br#","object":"#);
                match include {
                    Include::Nothing => out.extend_from_slice(b"null"),
                    Include::Metadata => {
                        out.extend_from_slice(&storage::encode_object(&partial(accept, item)))
                    }
                    Include::Object => out.extend_from_slice(&storage::encode_object(item)),
                }
                out.push(b'}');
            }
            out.extend_from_slice(b"]}");
            return finish(accept, code, Body::Full(out.into()));
        }
    };
    finish(accept, code, Body::Full(storage::encode_object(&made)))
}

fn partial(accept: &Accept, item: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": meta_version(accept), "metadata": item["metadata"]})
}

fn meta_version(accept: &Accept) -> &'static str {
    if accept.meta_v1beta1 { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" }
}

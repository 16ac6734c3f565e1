//! Answers in protobuf: made from the JSON that the cache holds, with the generated type table.
//!
//! Invariants: only built-in kinds have this form (`Accept` is settled before anything is made); what the table does not
//! know is left out, as by a client of upstream's that is older than the server.

use super::view::View;
use crate::{cache::SelectedEntry, response::Body};
use bytes::Bytes;
use kaji_meta::{Status, gvk::split_api_version, object};
use kaji_schema::{SchemaRef, protobuf, types};
use serde_json::Value;

/// `Content-Type` of objects and lists.
pub(crate) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// `Content-Type` of watches.
pub(crate) const WATCH_CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// About how long a piece of a list is.
const CHUNK: usize = 64 << 10;
/// Encoded elements of a list are kept up to this many bytes until they are sent. The length of a list comes before its
/// elements, so those beyond are encoded twice: once to be counted, once to be sent.
const KEEP: usize = 8 << 20;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The built-in type of a kind.
fn schema(api_version: &str, kind: &str) -> Option<SchemaRef> {
    if let "PartialObjectMetadata" | "PartialObjectMetadataList" = kind {
        return types::lookup(&format!("{META}.{kind}"));
    }
    let (group, version) = split_api_version(api_version)?;
    types::for_gvk(group, version, kind)
}

fn failed(what: &dyn std::fmt::Display, error: &protobuf::Error) -> Status {
    tracing::error!(%what, %error, "encoding in protobuf");
    Status::internal(format!("{what} has no protobuf form: {error}"))
}

/// An object with its envelope; `None` when it is of no built-in kind.
///
/// # Errors
/// 500 when it does not fit its type.
pub(crate) fn whole(value: &Value) -> Result<Option<Vec<u8>>, Status> {
    let (api_version, kind) = (object::api_version(value), object::kind(value));
    let Some(schema) = schema(api_version, kind) else { return Ok(None) };
    let encoded = protobuf::object(&schema, api_version, kind, value).map_err(|e| failed(&kind, &e))?;
    Ok(Some(encoded))
}

fn parse(json: &[u8]) -> Result<Value, Status> {
    serde_json::from_slice(json).map_err(|e| Status::internal(e.to_string()))
}

/// A whole watch event around an object in JSON.
///
/// # Errors
/// 500 when the object does not fit its type.
pub(super) fn event(change: &str, json: &[u8]) -> Result<Bytes, Status> {
    framed(change, &parse(json)?)
}

fn framed(change: &str, value: &Value) -> Result<Bytes, Status> {
    let kind = object::kind(value).to_owned();
    let encoded = whole(value)?.ok_or_else(|| failed(&kind, &protobuf::Error::NoSchema))?;
    Ok(protobuf::event(change, &encoded).into())
}

/// An ERROR event.
pub(super) fn error_event(status: &Status) -> Bytes {
    framed("ERROR", &status.to_value()).unwrap_or_default()
}

/// A list. Small ones come whole.
///
/// # Errors
/// When an element cannot be converted or does not fit its type.
pub(crate) async fn list(view: View, metadata: &Value, entries: Vec<SelectedEntry>) -> Result<Body, Status> {
    let (api_version, kind) = view.list_names();
    let schema = match view.element_schema() {
        Some(schema) => schema,
        None => return Err(failed(&kind, &protobuf::Error::NoSchema)),
    };
    let mut kept = Vec::new();
    let (mut buffer, mut length, mut counted) = (Vec::new(), 0, 0);
    let mut rest = entries.len();
    for (i, entry) in entries.iter().enumerate() {
        let bytes = element(&view, &schema, entry)?;
        length += bytes.len();
        if length > KEEP && view.infallible() {
            rest = rest.min(i);
            counted += bytes.len();
        } else {
            buffer.extend_from_slice(&bytes);
        }
        if buffer.len() + counted >= CHUNK {
            if !buffer.is_empty() {
                kept.push(Bytes::from(std::mem::take(&mut buffer)));
            }
            counted = 0;
            tokio::task::yield_now().await;
        }
    }
    let around = protobuf::list(api_version, kind, metadata, length);
    let (mut head, tail) = around.map_err(|e| failed(&kind, &e))?;
    if kept.is_empty() && rest == entries.len() {
        head.extend_from_slice(&buffer);
        head.extend_from_slice(&tail);
        return Ok(Body::Full(head.into()));
    }
    kept.insert(0, head.into());
    kept.push(buffer.into());
    let mut rest = entries.into_iter().skip(rest);
    let again = std::iter::from_fn(move || {
        let mut buffer = Vec::new();
        while buffer.len() < CHUNK
            && let Some(entry) = rest.next()
        {
            match element(&view, &schema, &entry) {
                Ok(bytes) => buffer.extend_from_slice(&bytes),
                Err(error) => tracing::error!(?entry, %error, "encoding an element of a list again"),
            }
        }
        (!buffer.is_empty()).then(|| Bytes::from(buffer))
    });
    let kept = kept.into_iter().filter(|b| !b.is_empty());
    Ok(Body::Lazy(Box::new(kept.chain(again).chain([Bytes::from(tail)]))))
}

fn element(view: &View, schema: &SchemaRef, entry: &SelectedEntry) -> Result<Vec<u8>, Status> {
    let value = parse(&view.element(entry)?)?;
    protobuf::element(schema, &value).map_err(|e| failed(&entry.key, &e))
}

//! The Kubernetes protobuf form of built-in kinds, driven by the numbers in the generated type table.
//!
//! A whole object travels in an envelope: `k8s\0` and a `runtime.Unknown` message with its apiVersion, kind and encoded
//! fields. Source: Kubernetes API concepts, "Kubernetes Protobuf encoding", and the published `generated.proto` files.
//!
//! Laws: what is encoded is byte for byte what Go's generated code writes for the same object (fields by number, maps by
//! key, values that are no pointers always there); decoding gives the JSON form that Go would write, without nulls; it
//! accepts anything that Go accepts, never panics, and takes time linear in the input. Decoded values nest no deeper than
//! [`MAX_DEPTH`].

use kaji_meta::SizeBudget;
use serde_json::Value;
use std::cell::RefCell;

use crate::schema::SchemaRef;

mod decode;
mod encode;
mod layout;
mod raw;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use layout::{Slot, slots};
pub use wire::Error;

/// What protobuf bodies begin with.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// How deep decoded values may nest. Less than JSON readers allow, so that what was taken can be read again.
pub const MAX_DEPTH: usize = 100;

/// An envelope: `runtime.Unknown`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Envelope<'a> {
    /// `apps/v1`; empty if the sender left it out.
    pub api_version: String,
    /// `Deployment`; empty if the sender left it out.
    pub kind: String,
    /// The encoded fields.
    pub raw: &'a [u8],
}

/// Opens an envelope.
///
/// # Errors
/// What upstream's decoder says about bytes that are none.
pub fn open(data: &[u8]) -> Result<Envelope<'_>, Error> {
    if data.is_empty() {
        return Err(Error::Empty("data"));
    }
    let Some(body) = data.strip_prefix(MAGIC) else { return Err(Error::Magic) };
    if body.is_empty() {
        return Err(Error::Empty("body"));
    }
    decode::envelope(body)
}

/// Encodes an envelope around encoded fields.
pub fn seal(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = encode::begin(raw.len() + api_version.len() + kind.len() + 32);
    out.bytes(raw);
    encode::seal(out, api_version, kind)
}

/// Decodes the fields of a message into the JSON form of a value. `apiVersion` and `kind` are not among them.
///
/// # Errors
/// Malformed input, or values that have no JSON form.
pub fn decode(schema: &SchemaRef, raw: &[u8]) -> Result<Value, Error> {
    let mut map = serde_json::Map::new();
    let budget = RefCell::new(SizeBudget::new(kaji_meta::budget::BODY_BYTES));
    decode::Decoder { budget }.message(schema, raw, &mut map, 1)?;
    Ok(Value::Object(map))
}

/// Encodes the fields of a value; `apiVersion`, `kind` and unknown fields are left out.
///
/// # Errors
/// Values that the schema does not allow.
pub fn encode(schema: &SchemaRef, value: &Value) -> Result<Vec<u8>, Error> {
    let mut out = wire::Back::with_capacity(1024);
    encode::message(&mut out, schema, value.as_object())?;
    Ok(out.finish())
}

/// Encodes a whole object with its envelope, as `api_version` and `kind`.
///
/// # Errors
/// Values that the schema does not allow.
pub fn object(schema: &SchemaRef, api_version: &str, kind: &str, value: &Value) -> Result<Vec<u8>, Error> {
    let mut out = encode::begin(1024);
    encode::message(&mut out, schema, value.as_object())?;
    Ok(encode::seal(out, api_version, kind))
}

/// The bytes around the elements of a list: what comes before the first one, and after the last. The elements between
/// them are [`element`]s, `length` bytes in all. `metadata` is the list's; its schema is `ListMeta`.
///
/// # Errors
/// Metadata that is none.
pub fn list(
    api_version: &str,
    kind: &str,
    metadata: &Value,
    length: usize,
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let schema = crate::types::lookup(LIST_META).ok_or(Error::NoSchema)?;
    let mut meta = wire::Back::with_capacity(128);
    encode::message(&mut meta, &schema, metadata.as_object())?;
    meta.prefix(0, 1);
    Ok(encode::around(api_version, kind, &meta.finish(), length))
}

/// Encodes an element of a list (the field `items`, which has the number 2 in every list kind).
///
/// # Errors
/// Values that the schema does not allow.
pub fn element(schema: &SchemaRef, value: &Value) -> Result<Vec<u8>, Error> {
    let mut out = wire::Back::with_capacity(1024);
    encode::message(&mut out, schema, value.as_object())?;
    out.prefix(0, 2);
    Ok(out.finish())
}

/// A watch event with its frame: a length of four bytes, big end first, then a `WatchEvent` that holds `object`, which
/// has a separate envelope.
pub fn event(change: &str, object: &[u8]) -> Vec<u8> {
    let mut out = wire::Back::with_capacity(object.len() + change.len() + 32);
    out.bytes(object);
    out.prefix(0, 1);
    out.prefix(0, 2);
    let mark = out.len();
    out.bytes(change.as_bytes());
    out.prefix(mark, 1);
    let length = u32::try_from(out.len()).unwrap_or(u32::MAX);
    out.bytes(&length.to_be_bytes());
    out.finish()
}

const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

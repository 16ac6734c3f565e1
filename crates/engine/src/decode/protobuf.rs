//! Protobuf bodies: the envelope names the kind, the generated type table says what the fields are.
//!
//! Invariants: what comes out is what the same object in JSON would give; nothing is unknown or duplicate here, as
//! upstream's decoder passes over what it does not know, whatever `fieldValidation` says.

use super::{ExpectedKind, check_kind, prune_empty_metadata, summarize, unsupported};
use crate::registry::Registry;
use kaji_meta::{Status, gvk::split_api_version, text};
use kaji_schema::{SchemaRef, protobuf};
use serde_json::Value;

/// Decodes an object of the wanted kind.
///
/// # Errors
/// 415 for custom resources, which have no protobuf form; 400 with upstream's texts for what is malformed or of another
/// kind.
pub(super) fn object(registry: &Registry, want: &ExpectedKind<'_>, body: &[u8]) -> Result<Value, Status> {
    if want.custom() {
        return Err(unsupported(false));
    }
    let unrecognized = |error: &str| {
        let summary = summarize(body);
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({summary})",
            want.kind
        ))
    };
    let envelope = protobuf::open(body).map_err(|e| unrecognized(&e.to_string()))?;
    let Some((group, version)) = split_api_version(&envelope.api_version) else {
        return Err(unrecognized(&format!("unexpected GroupVersion string: {}", envelope.api_version)));
    };
    check_kind(registry, want, body, &Value::Null, (group, version, &envelope.kind), &unrecognized)?;
    let mut value = protobuf::decode(want.schema, envelope.raw).map_err(|e| {
        let version = text::quote(want.version);
        Status::bad_request(format!("{0} in version {version} cannot be handled as a {0}: {e}", want.kind))
    })?;
    if let Value::Object(map) = &mut value {
        map.insert("apiVersion".into(), want.api_version().into());
        map.insert("kind".into(), want.kind.into());
        if let Some(Value::Object(meta)) = map.get_mut("metadata") {
            prune_empty_metadata(meta);
        }
    }
    Ok(value)
}

/// Decodes a helper object (`DeleteOptions`) of any version; the caller validates its kind.
///
/// # Errors
/// The decoder's text.
pub(crate) fn plain(schema: &SchemaRef, body: &[u8]) -> Result<Value, String> {
    let envelope = protobuf::open(body).map_err(|e| e.to_string())?;
    let mut value = protobuf::decode(schema, envelope.raw).map_err(|e| e.to_string())?;
    if let Value::Object(map) = &mut value {
        for (key, text) in [("apiVersion", envelope.api_version), ("kind", envelope.kind)] {
            if !text.is_empty() {
                map.insert(key.into(), text.into());
            }
        }
    }
    Ok(value)
}

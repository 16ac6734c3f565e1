//! From JSON values to the wire, back to front.
//!
//! Invariant: fields that are no pointers are written even when they have no value, as Go's generated code does.

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use super::decode::SchemaOr;
use super::layout::{self, Slot};
use super::raw::{self, mismatch};
use super::wire::{BYTES, Back, Error, FIXED32, FIXED64, VARINT};
use crate::schema::{Format, Property, Props, Schema, SchemaRef, Type};

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Begins an envelope, with its end.
pub(super) fn begin(capacity: usize) -> Back {
    let mut out = Back::with_capacity(capacity);
    out.bytes(&UNKNOWN_TAIL);
    out
}

/// Ends an envelope around what was written since [`begin`].
pub(super) fn seal(mut out: Back, api_version: &str, kind: &str) -> Vec<u8> {
    out.prefix(UNKNOWN_TAIL.len(), 2);
    type_meta(&mut out, api_version, kind);
    out.bytes(super::MAGIC);
    out.finish()
}

/// `contentEncoding` and `contentType`, both empty.
const UNKNOWN_TAIL: [u8; 4] = [0x1a, 0, 0x22, 0];

fn type_meta(out: &mut Back, api_version: &str, kind: &str) {
    let mark = out.len();
    out.text(2, kind.as_bytes());
    out.text(1, api_version.as_bytes());
    out.prefix(mark, 1);
}

/// What comes before and after `length` bytes of list elements; `metadata` is the encoded field.
pub(super) fn around(api_version: &str, kind: &str, metadata: &[u8], length: usize) -> (Vec<u8>, Vec<u8>) {
    let mut out = Back::with_capacity(metadata.len() + api_version.len() + kind.len() + 40);
    out.bytes(metadata);
    out.varint((metadata.len() + length) as u64);
    out.tag(2, BYTES);
    type_meta(&mut out, api_version, kind);
    out.bytes(super::MAGIC);
    (out.finish(), UNKNOWN_TAIL.to_vec())
}

/// Writes the fields of a struct; `None` is the zero value.
pub(super) fn message(
    out: &mut Back,
    schema: &SchemaRef,
    map: Option<&Map<String, Value>>,
) -> Result<(), Error> {
    let (slots, props) = layout::of(schema).ok_or(Error::NoSchema)?;
    fields(out, props, slots, 0, map)
}

fn fields(
    out: &mut Back,
    props: &Props,
    slots: &[Slot],
    level: usize,
    map: Option<&Map<String, Value>>,
) -> Result<(), Error> {
    let mut rest = slots;
    while let Some(last) = rest.last() {
        let number = last.number(level);
        if last.inlined(level) {
            let inner = rest.iter().rev().take_while(|s| s.number(level) == number).count();
            let (before, these) = rest.split_at(rest.len() - inner);
            let mark = out.len();
            fields(out, props, these, level + 1, map)?;
            out.prefix(mark, number);
            rest = before;
        } else {
            let p = last.property(props).ok_or(Error::NoSchema)?;
            let value = map.and_then(|m| m.get(&*p.name)).filter(|v| !v.is_null());
            field(out, p, number, value)?;
            rest = rest.split_last().map_or(&[], |(_, before)| before);
        }
    }
    Ok(())
}

fn field(out: &mut Back, p: &Property, number: u16, value: Option<&Value>) -> Result<(), Error> {
    let schema = &p.schema;
    match (schema.ty, value) {
        (Type::Array, None) => Ok(()),
        (Type::Array, Some(v)) if !schema.wrapped => {
            let items = schema.items.as_ref().ok_or(Error::NoSchema)?;
            let list = v.as_array().ok_or_else(|| mismatch(v, "a list"))?;
            list.iter().rev().try_for_each(|item| element(out, items, number, Some(item)))
        }
        (Type::Object, value) if schema.properties.is_none() => {
            let Some(value) = value else { return Ok(()) };
            let values = schema.additional.as_deref().ok_or(Error::NoSchema)?;
            let map = value.as_object().ok_or_else(|| mismatch(value, "a map"))?;
            for (key, value) in map.iter().rev() {
                let mark = out.len();
                if !(value.is_null() && matches!(values.ty, Type::Bytes)) {
                    element(out, values, 2, Some(value))?;
                }
                out.text(1, key.as_bytes());
                out.prefix(mark, number);
            }
            Ok(())
        }
        (Type::Bytes, None) => Ok(()),
        (_, None) if p.pointer => Ok(()),
        (_, value) => element(out, schema, number, value),
    }
}

/// Writes a value as field `number`; `None` and null are the zero value.
fn element(out: &mut Back, schema: &SchemaRef, number: u16, value: Option<&Value>) -> Result<(), Error> {
    let value = value.filter(|v| !v.is_null());
    let mark = out.len();
    match schema.ty {
        Type::Boolean => {
            let b = value.map_or(Some(false), Value::as_bool);
            out.varint(u64::from(b.ok_or_else(|| bad(value, "a bool"))?));
            out.tag(number, VARINT);
        }
        Type::Integer => {
            let n = value.map_or(Some(0), Value::as_i64);
            out.varint(n.ok_or_else(|| bad(value, "an integer"))? as u64);
            out.tag(number, VARINT);
        }
        Type::Number => {
            let n = value.map_or(Some(0.0), Value::as_f64).ok_or_else(|| bad(value, "a number"))?;
            if schema.format == Format::Float {
                out.bytes(&(n as f32).to_le_bytes());
                out.tag(number, FIXED32);
            } else {
                out.bytes(&n.to_le_bytes());
                out.tag(number, FIXED64);
            }
        }
        _ => {
            content(out, schema, value)?;
            out.prefix(mark, number);
        }
    }
    Ok(())
}

fn bad(value: Option<&Value>, want: &str) -> Error {
    mismatch(value.unwrap_or(&Value::Null), want)
}

/// Writes what a length goes before.
fn content(out: &mut Back, schema: &SchemaRef, value: Option<&Value>) -> Result<(), Error> {
    match (schema.ty, value) {
        (Type::String | Type::Bytes, None) => Ok(()),
        (Type::String, Some(v)) => {
            out.bytes(v.as_str().ok_or_else(|| mismatch(v, "a string"))?.as_bytes());
            Ok(())
        }
        (Type::Bytes, Some(v)) => {
            let text = v.as_str().ok_or_else(|| mismatch(v, "base64"))?;
            out.bytes(&BASE64.decode(text).map_err(|e| Error::Value(format!("illegal base64 data: {e}")))?);
            Ok(())
        }
        (Type::Quantity, v) => raw::put_quantity(out, v),
        (Type::Time | Type::MicroTime, v) => raw::put_time(out, schema.ty, v),
        (Type::IntOrString, v) => raw::put_int_or_string(out, v),
        (Type::Any, v) => {
            raw::put_json(out, v);
            Ok(())
        }
        (Type::SchemaOr, v) => schema_or(out, schema, v),
        (Type::Array, None) => Ok(()),
        (Type::Array, Some(v)) => {
            let items = schema.items.as_ref().ok_or(Error::NoSchema)?;
            let list = v.as_array().ok_or_else(|| mismatch(v, "a list"))?;
            list.iter().rev().try_for_each(|item| element(out, items, 1, Some(item)))
        }
        (Type::Object, None) => message(out, schema, None),
        (Type::Object, Some(v)) => {
            message(out, schema, Some(v.as_object().ok_or_else(|| mismatch(v, "an object"))?))
        }
        _ => Err(Error::NoSchema),
    }
}

fn schema_or(out: &mut Back, schema: &Schema, value: Option<&Value>) -> Result<(), Error> {
    let props = schema.items.as_ref().ok_or(Error::NoSchema)?;
    let form = SchemaOr::of(schema);
    let one = if form == SchemaOr::Bool { 2 } else { 1 };
    match value {
        None => {}
        Some(v @ Value::Object(_)) => element(out, props, one, Some(v))?,
        Some(Value::Array(list)) if form == SchemaOr::Array => {
            list.iter().rev().try_for_each(|item| element(out, props, 2, Some(item)))?;
        }
        Some(Value::Array(list)) if form == SchemaOr::Strings => {
            for item in list.iter().rev() {
                out.text(2, item.as_str().ok_or_else(|| mismatch(item, "a string"))?.as_bytes());
            }
        }
        Some(Value::Bool(_)) if form == SchemaOr::Bool => {}
        Some(other) => return Err(mismatch(other, "a schema")),
    }
    if form == SchemaOr::Bool {
        let allows = value.is_some_and(|v| v.is_object() || v == &Value::Bool(true));
        out.varint(u64::from(allows));
        out.tag(1, VARINT);
    }
    Ok(())
}

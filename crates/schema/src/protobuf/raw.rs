//! Types with protobuf and JSON forms that have little in common: times, quantities, raw JSON.

use kaji_meta::{MicroTime, Quantity, Time};
use serde::Deserialize as _;
use serde_json::Value;

use super::MAX_DEPTH;
use super::wire::{BYTES, Back, Error, Reader, VARINT};
use crate::schema::Type;

/// The first second of year 1, which is Go's zero time.
const ZERO: i64 = -62_135_596_800;

/// A message of two numbers, 1 and 2.
fn two(raw: &[u8], field: &str) -> Result<(u64, u64), Error> {
    let mut reader = Reader(raw);
    let mut out = (0, 0);
    while !reader.is_empty() {
        match reader.tag()? {
            (1, VARINT) => out.0 = reader.varint()?,
            (2, VARINT) => out.1 = reader.varint()?,
            (1 | 2, wire) => return Err(Error::WireType { wire, field: field.into() }),
            (_, wire) => reader.skip(wire)?,
        }
    }
    Ok(out)
}

/// `Time` and `MicroTime`; the zero time is null.
pub(super) fn time(ty: Type, raw: &[u8]) -> Result<Value, Error> {
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    let (seconds, nanos) = two(raw, "seconds")?;
    let (seconds, nanos) = (seconds as i64, nanos as i32);
    // Go keeps no fraction of a `Time`, and cuts that of a `MicroTime` towards zero.
    let micros = if ty == Type::MicroTime { nanos / 1000 } else { 0 };
    let range = || Error::Value("Time.MarshalJSON: year outside of range [0,9999]".into());
    let time =
        MicroTime::from_unix(seconds, micros).filter(|time| time.unix().0 >= ZERO).ok_or_else(range)?;
    if time.unix() == (ZERO, 0) {
        return Ok(Value::Null);
    }
    if ty == Type::MicroTime {
        return Ok(time.into());
    }
    Time::from_unix(seconds).map(Value::from).ok_or_else(range)
}

/// The content of a `Time` or `MicroTime`.
pub(super) fn put_time(out: &mut Back, ty: Type, value: Option<&Value>) -> Result<(), Error> {
    let Some(value) = value else { return Ok(()) };
    let text = value.as_str().ok_or_else(|| mismatch(value, "a time"))?;
    let bad = |e: &dyn std::fmt::Display| Error::Value(e.to_string());
    let (seconds, nanos) = if ty == Type::MicroTime {
        let (seconds, micros) = MicroTime::parse(text).map_err(|e| bad(&e))?.unix();
        (seconds, i64::from(micros) * 1000)
    } else {
        (Time::parse(text).map_err(|e| bad(&e))?.unix(), 0)
    };
    if (seconds, nanos) == (ZERO, 0) {
        return Ok(());
    }
    out.varint(nanos as u64);
    out.tag(2, VARINT);
    out.varint(seconds as u64);
    out.tag(1, VARINT);
    Ok(())
}

/// A message with field 1 only, a string or bytes.
pub(super) fn only(raw: &[u8]) -> Result<&[u8], Error> {
    let mut reader = Reader(raw);
    let mut out = &raw[..0];
    while !reader.is_empty() {
        match reader.tag()? {
            (1, BYTES) => out = reader.bytes()?,
            (1, wire) => return Err(Error::WireType { wire, field: "raw".into() }),
            (_, wire) => reader.skip(wire)?,
        }
    }
    Ok(out)
}

/// `Quantity`.
pub(super) fn quantity(raw: &[u8]) -> Result<Value, Error> {
    let text = only(raw)?;
    if text.is_empty() {
        return Ok(Value::from("0"));
    }
    let quantity =
        Quantity::parse(&String::from_utf8_lossy(text)).map_err(|e| Error::Value(e.to_string()))?;
    Ok(Value::String(quantity.to_string()))
}

/// The content of a `Quantity`.
pub(super) fn put_quantity(out: &mut Back, value: Option<&Value>) -> Result<(), Error> {
    let parse = |text: &str| {
        let quantity = Quantity::parse(text.trim()).map_err(|e| Error::Value(e.to_string()))?;
        Ok(quantity.to_string())
    };
    let text = match value {
        None => "0".to_owned(),
        Some(Value::String(s)) => parse(s)?,
        Some(n @ Value::Number(_)) => parse(&n.to_string())?,
        Some(other) => return Err(mismatch(other, "a quantity")),
    };
    out.text(1, text.as_bytes());
    Ok(())
}

/// `IntOrString`.
pub(super) fn int_or_string(raw: &[u8]) -> Result<Value, Error> {
    let mut reader = Reader(raw);
    let (mut kind, mut int, mut text) = (0i64, 0i32, "".into());
    while !reader.is_empty() {
        match reader.tag()? {
            (1, VARINT) => kind = reader.varint()? as i64,
            (2, VARINT) => int = reader.varint()? as i32,
            (3, BYTES) => text = String::from_utf8_lossy(reader.bytes()?),
            (n @ 1..=3, wire) => {
                let field = ["", "type", "intVal", "strVal"].get(usize::from(n)).copied().unwrap_or("");
                return Err(Error::WireType { wire, field: field.into() });
            }
            (_, wire) => reader.skip(wire)?,
        }
    }
    match kind {
        0 => Ok(int.into()),
        1 => Ok(text.into_owned().into()),
        _ => Err(Error::Value("impossible IntOrString.Type".into())),
    }
}

/// The content of an `IntOrString`.
pub(super) fn put_int_or_string(out: &mut Back, value: Option<&Value>) -> Result<(), Error> {
    let (kind, int, text) = match value {
        None => (0, 0, ""),
        Some(Value::String(s)) => (1, 0, s.as_str()),
        Some(v) => (0, v.as_i64().ok_or_else(|| mismatch(v, "int32 or string"))?, ""),
    };
    out.text(3, text.as_bytes());
    out.varint(int as u64);
    out.tag(2, VARINT);
    out.varint(kind);
    out.tag(1, VARINT);
    Ok(())
}

/// Raw JSON; none is null. `depth` is that of the value itself.
pub(super) fn json(raw: &[u8], depth: usize) -> Result<Value, Error> {
    let text = only(raw)?;
    if text.is_empty() {
        return Ok(Value::Null);
    }
    let parse = |text: &[u8]| serde_json::from_slice::<Value>(text);
    let value = match parse(text) {
        Ok(value) => value,
        // As Go reads JSON: bytes that are no UTF-8 become U+FFFD.
        Err(_) if std::str::from_utf8(text).is_err() => {
            parse(String::from_utf8_lossy(text).as_bytes()).map_err(|e| Error::Value(e.to_string()))?
        }
        Err(e) => return Err(Error::Value(e.to_string())),
    };
    if depth + height(&value) > MAX_DEPTH {
        return Err(Error::Depth);
    }
    Ok(value)
}

/// `FieldsV1`: the first JSON value of its bytes, whatever follows it, as upstream reads sets when it needs them. Bytes that
/// begin with none, and sets that nest too deep, are no error of the object: they become [`UNREADABLE`].
pub(super) fn fields(raw: &[u8], depth: usize) -> Result<Value, Error> {
    let text = only(raw)?;
    let first = |text: &[u8]| Value::deserialize(&mut serde_json::Deserializer::from_slice(text));
    let value = match first(text) {
        Err(_) if std::str::from_utf8(text).is_err() => first(String::from_utf8_lossy(text).as_bytes()),
        read => read,
    };
    Ok(value.ok().filter(|value| depth + height(value) <= MAX_DEPTH).unwrap_or(UNREADABLE))
}

/// What stands for a set that cannot be read. It is no set either, so that field management does with the entry what it
/// does with one that JSON spelled wrong.
const UNREADABLE: Value = Value::Bool(false);

/// How deep a value nests. What was parsed nests at most as deep as the parser allows.
fn height(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(height).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(height).max().unwrap_or(0),
        _ => 0,
    }
}

/// The content of raw JSON.
pub(super) fn put_json(out: &mut Back, value: Option<&Value>) {
    if let Some(value) = value {
        out.text(1, value.to_string().as_bytes());
    }
}

/// A JSON value in the place of another type.
pub(super) fn mismatch(value: &Value, want: &str) -> Error {
    let mut text = value.to_string();
    if text.len() > 64 {
        let end = (0..=64).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    Error::Value(format!("{text} is not {want}"))
}

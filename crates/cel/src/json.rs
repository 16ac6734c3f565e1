//! JSON as values, each by its declaration; whole numbers are ints.
//! Texts: apiserver `cel/common/valuesunstructured.go`.

use crate::{
    decl::{Decl, DeclKind, ListKind},
    error::Error,
    functions::time,
    value::{List, Map, Text, Value},
};
use base64::Engine;
use kaji_meta::text::go_type;
use serde_json::Value as Json;

static ANY: Decl = Decl { kind: DeclKind::Any, nullable: true, max_elements: 0, min_size: 1, max_key: 0 };
static LOOSE: Decl = Decl { kind: DeclKind::Loose, nullable: true, max_elements: 0, min_size: 1, max_key: 0 };
static ATOMIC: ListKind = ListKind::Atomic;

pub(crate) fn value<'a>(json: &'a Json, decl: &'a Decl) -> Result<Value<'a>, Error> {
    if json.is_null() {
        return match decl.nullable || matches!(decl.kind, DeclKind::Any | DeclKind::Loose) {
            true => Ok(Value::Null),
            false => Err(Error::eval("invalid data, got null for schema with nullable=false")),
        };
    }
    let invalid = |expected: &str| {
        Err(Error::eval(format!("invalid data, expected {expected}, got {}", go_type(json))))
    };
    Ok(match (&decl.kind, json) {
        (DeclKind::Any, _) => any(json, &ANY),
        (DeclKind::Loose, _) => any(json, &LOOSE),
        (DeclKind::IntOrString, Json::String(s)) => Value::String(Text::Borrowed(s)),
        (DeclKind::IntOrString, Json::Number(n)) if n.is_i64() => Value::Int(n.as_i64().unwrap_or_default()),
        (DeclKind::IntOrString, _) => {
            return Err(Error::eval(
                "invalid data, expected XIntOrString value to be either a string or integer",
            ));
        }
        (DeclKind::Bool, Json::Bool(b)) => Value::Bool(*b),
        (DeclKind::Bool, _) => return invalid("bool"),
        (DeclKind::Int, _) => match whole(json) {
            Some(i) => Value::Int(i),
            None => return invalid("int"),
        },
        (DeclKind::Double, Json::Number(n)) => Value::Double(n.as_f64().unwrap_or_default()),
        (DeclKind::Double, _) => return invalid("float"),
        (DeclKind::List { elem, kind }, Json::Array(items)) => Value::List(List::Json { items, elem, kind }),
        (DeclKind::List { .. }, _) => {
            return Err(Error::eval(
                "invalid data, expected an array for the provided schema with type=array",
            ));
        }
        (DeclKind::Map { value }, Json::Object(object)) => Value::Map(Map::Json { object, value }),
        (DeclKind::Object { fields, .. }, Json::Object(object)) => Value::Map(Map::Object { object, fields }),
        (DeclKind::Map { .. } | DeclKind::Object { .. }, _) => {
            return Err(Error::eval("invalid data, expected a map for the provided schema with type=object"));
        }
        (kind, Json::String(s)) => return string(s, kind),
        _ => return invalid("string"),
    })
}

fn string<'a>(s: &'a str, kind: &DeclKind) -> Result<Value<'a>, Error> {
    let failed = |what: &str| Error::eval(format!("Invalid {what} {s}"));
    match kind {
        DeclKind::Duration => {
            time::parse_format_duration(s).map(Value::Duration).ok_or_else(|| failed("duration"))
        }
        DeclKind::Date => {
            time::parse_date(s).map(Value::Timestamp).ok_or_else(|| failed("date formatted string"))
        }
        DeclKind::DateTime => {
            time::parse_date_time(s).map(Value::Timestamp).ok_or_else(|| failed("date-time formatted string"))
        }
        DeclKind::Quantity => kaji_meta::Quantity::parse(s)
            .map(|q| Value::Ext(crate::Ext::Quantity(q.into())))
            .map_err(|_| failed("quantity")),
        DeclKind::Bytes => base64::engine::general_purpose::STANDARD
            .decode(s)
            .map(|b| Value::Bytes(b.into()))
            .map_err(|_| failed("byte formatted string")),
        _ => Ok(Value::String(Text::Borrowed(s))),
    }
}

/// A value of which nothing is declared.
pub(crate) fn undeclared(json: &Json) -> Value<'_> {
    any(json, &ANY)
}

/// A value without a declaration.
fn any<'a>(json: &'a Json, like: &'static Decl) -> Value<'a> {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match n.as_i64().filter(|_| like.kind == DeclKind::Any) {
            Some(i) => Value::Int(i),
            None => Value::Double(n.as_f64().unwrap_or_default()),
        },
        Json::String(s) => Value::String(Text::Borrowed(s)),
        Json::Array(items) => Value::List(List::Json { items, elem: like, kind: &ATOMIC }),
        Json::Object(object) => Value::Map(Map::Json { object, value: like }),
    }
}

/// A number that is whole, written with a fraction or not.
fn whole(json: &Json) -> Option<i64> {
    #[allow(clippy::cast_possible_truncation, reason = "whole and in range")]
    json.as_i64().or_else(|| json.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e18).map(|f| f as i64))
}

//! Conversions between types.

use super::{Called, Native, no_overload, time};
use crate::{
    error::Error,
    value::{TypeValue, Value},
};

pub(super) const DECLARATIONS: &str = "\
type type A type(A)
dyn to_dyn A dyn
bool bool_to_bool bool bool
bool string_to_bool string bool
bytes bytes_to_bytes bytes bytes
bytes string_to_bytes string bytes
double double_to_double double double
double int64_to_double int double
double string_to_double string double
double uint64_to_double uint double
duration duration_to_duration duration duration
duration int64_to_duration int duration
duration string_to_duration string duration
int int64_to_int64 int int
int double_to_int64 double int
int duration_to_int64 duration int
int string_to_int64 string int
int timestamp_to_int64 timestamp int
int uint64_to_int64 uint int
string string_to_string string string
string bool_to_string bool string
string bytes_to_string bytes string
string double_to_string double string
string duration_to_string duration string
string int64_to_string int string
string timestamp_to_string timestamp string
string uint64_to_string uint string
string ip_to_string ip string
string cidr_to_string cidr string
timestamp timestamp_to_timestamp timestamp timestamp
timestamp int64_to_timestamp int timestamp
timestamp string_to_timestamp string timestamp
uint uint64_to_uint64 uint uint
uint double_to_uint64 double uint
uint int64_to_uint64 int uint
uint string_to_uint64 string uint
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "type" => |args| match args {
            [v] => Ok(Value::Type(v.ty())),
            _ => no_overload(),
        },
        "dyn" => |args| match args {
            [v] => Ok(v.clone()),
            _ => no_overload(),
        },
        "bool" => to_bool,
        "bytes" => to_bytes,
        "double" => to_double,
        "duration" => to_duration,
        "int" => to_int,
        "string" => to_string,
        "timestamp" => to_timestamp,
        "uint" => to_uint,
        _ => return None,
    })
}

fn failed<'a>(from: &Value<'_>, to: TypeValue) -> Called<'a> {
    Err(Error::eval(format!("type conversion error from '{}' to '{}'", from.ty().name(), to.name())))
}

fn to_bool<'a>(args: &[Value<'a>]) -> Called<'a> {
    match args {
        [v @ Value::Bool(_)] => Ok(v.clone()),
        [v @ Value::String(s)] => match &**s {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
            _ => failed(v, TypeValue::Bool),
        },
        _ => no_overload(),
    }
}

fn to_bytes<'a>(args: &[Value<'a>]) -> Called<'a> {
    match args {
        [v @ Value::Bytes(_)] => Ok(v.clone()),
        [Value::String(s)] => Ok(Value::Bytes(s.as_bytes().into())),
        _ => no_overload(),
    }
}

#[allow(clippy::cast_precision_loss, reason = "doubles are what was asked for")]
fn to_double<'a>(args: &[Value<'a>]) -> Called<'a> {
    match args {
        [v @ Value::Double(_)] => Ok(v.clone()),
        [Value::Int(i)] => Ok(Value::Double(*i as f64)),
        [Value::Uint(u)] => Ok(Value::Double(*u as f64)),
        [v @ Value::String(s)] => match s.parse::<f64>() {
            // Go refuses numbers beyond the range, but takes infinities that are spelled out.
            Ok(f) if f.is_finite() || !s.contains(|c: char| c.is_ascii_digit()) => Ok(Value::Double(f)),
            _ => failed(v, TypeValue::Double),
        },
        _ => no_overload(),
    }
}

fn to_duration<'a>(args: &[Value<'a>]) -> Called<'a> {
    match args {
        [v @ Value::Duration(_)] => Ok(v.clone()),
        // cel-go reads an int as nanoseconds.
        [Value::Int(i)] => Ok(Value::Duration(*i)),
        [v @ Value::String(s)] => match time::parse_duration(s) {
            Some(d) => Ok(Value::Duration(d)),
            None => failed(v, TypeValue::Duration),
        },
        _ => no_overload(),
    }
}

fn to_int<'a>(args: &[Value<'a>]) -> Called<'a> {
    let overflow = || Error::eval("integer overflow");
    match args {
        [v @ Value::Int(_)] => Ok(v.clone()),
        [Value::Uint(u)] => i64::try_from(*u).map(Value::Int).map_err(|_| overflow()),
        #[allow(clippy::cast_possible_truncation, reason = "in range")]
        [Value::Double(d)] if d.is_finite() && d.abs() < 9_223_372_036_854_775_807.0 => {
            Ok(Value::Int(*d as i64))
        }
        [Value::Double(_)] => Err(overflow()),
        [Value::Duration(d)] => Ok(Value::Int(*d)),
        [Value::Timestamp(t)] => Ok(Value::Int(t.as_second() - i64::from(t.subsec_nanosecond() < 0))),
        [v @ Value::String(s)] => s.parse().map(Value::Int).or_else(|_| failed(v, TypeValue::Int)),
        _ => no_overload(),
    }
}

fn to_uint<'a>(args: &[Value<'a>]) -> Called<'a> {
    let overflow = || Error::eval("unsigned integer overflow");
    match args {
        [v @ Value::Uint(_)] => Ok(v.clone()),
        [Value::Int(i)] => u64::try_from(*i).map(Value::Uint).map_err(|_| overflow()),
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        [Value::Double(d)] if *d >= 0.0 && *d < 18_446_744_073_709_551_615.0 => Ok(Value::Uint(*d as u64)),
        [Value::Double(_)] => Err(overflow()),
        [v @ Value::String(s)] => match s.parse() {
            Ok(u) if !s.starts_with('+') => Ok(Value::Uint(u)),
            _ => failed(v, TypeValue::Uint),
        },
        _ => no_overload(),
    }
}

fn to_timestamp<'a>(args: &[Value<'a>]) -> Called<'a> {
    let overflow = || Error::eval("timestamp overflow");
    match args {
        [v @ Value::Timestamp(_)] => Ok(v.clone()),
        [Value::Int(i)] => jiff::Timestamp::from_second(*i)
            .ok()
            .filter(|t| time::in_range(*t))
            .map(Value::Timestamp)
            .ok_or_else(overflow),
        [v @ Value::String(s)] => match time::parse_date_time(s) {
            Some(t) if time::in_range(t) => Ok(Value::Timestamp(t)),
            Some(_) => Err(overflow()),
            None => failed(v, TypeValue::Timestamp),
        },
        _ => no_overload(),
    }
}

fn to_string<'a>(args: &[Value<'a>]) -> Called<'a> {
    match args {
        [v @ Value::String(_)] => Ok(v.clone()),
        [v] => match text(v)? {
            Some(text) => Ok(Value::text(text)),
            None => no_overload(),
        },
        _ => no_overload(),
    }
}

/// What `string()` makes of a value; none if it takes no such value.
pub(crate) fn text(v: &Value<'_>) -> Result<Option<String>, Error> {
    Ok(Some(match v {
        Value::String(s) => s.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Uint(u) => u.to_string(),
        Value::Double(d) => double_text(*d),
        Value::Bytes(b) => std::str::from_utf8(b)
            .map_err(|_| Error::eval("invalid UTF-8 in bytes, cannot convert to string"))?
            .to_owned(),
        Value::Duration(d) => time::duration_text(*d),
        Value::Timestamp(t) => time::timestamp_text(*t),
        Value::Type(t) => t.name().to_owned(),
        Value::Ext(crate::value::Ext::Ip(ip)) => ip.to_string(),
        Value::Ext(crate::value::Ext::Cidr(cidr)) => cidr.to_string(),
        _ => return Ok(None),
    }))
}

/// Go's `FormatFloat(d, 'g', -1)`: the shortest digits, in scientific form for small and large exponents.
pub(crate) fn double_text(d: f64) -> String {
    text_below(d, 6)
}

/// Go's `%v`, which is scientific later.
pub(crate) fn double_shown(d: f64) -> String {
    text_below(d, 21)
}

fn text_below(d: f64, scientific_from: i32) -> String {
    if d.is_nan() {
        return "NaN".into();
    }
    if d.is_infinite() {
        return if d > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    if d == 0.0 {
        return if d.is_sign_negative() { "-0" } else { "0" }.into();
    }
    let scientific = format!("{d:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..scientific_from).contains(&exponent) {
        return format!("{d}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

//! Path elements: their canonical FieldsV1 spelling, their reading and their printing.
//!
//! The spelling is what upstream writes byte for byte (compact JSON, sorted keys, HTML characters escaped), so sets
//! written by either side are recognised without decoding.

use std::cmp::Ordering;
use std::fmt::Write as _;

use kaji_meta::text::quote;
use serde_json::{Number, Value};

use super::node::ListShape;

/// The key that says "this node itself is a member".
pub(crate) const SELF: &str = ".";

/// The element of an object's field or a map's key.
pub(crate) fn field(name: &str) -> String {
    let mut s = String::with_capacity(name.len() + 2);
    s.push_str("f:");
    s.push_str(name);
    s
}

/// The element of `item` in an associative list.
///
/// # Errors
/// Upstream's text for items that cannot be identified.
pub(crate) fn list_item(list: &ListShape<'_>, item: &Value) -> Result<String, String> {
    if list.keys.is_empty() { set_item(item) } else { keyed_item(list, item) }
}

fn set_item(item: &Value) -> Result<String, String> {
    match item {
        Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
        Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
        Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
        scalar => {
            let mut s = String::from("v:");
            write_json(scalar, &mut s);
            Ok(s)
        }
    }
}

fn keyed_item(list: &ListShape<'_>, item: &Value) -> Result<String, String> {
    let Value::Object(map) = item else {
        let what = if item.is_null() { "a null element" } else { "non-map elements" };
        return Err(format!("associative list with keys may not have {what}"));
    };
    let value = |key: &str| map.get(key).or_else(|| list.items.default_of(key));
    let mut s = String::with_capacity(32);
    s.push_str("k:{");
    let start = s.len();
    let put = |key: &str, s: &mut String| {
        if let Some(v) = value(key) {
            if s.len() > start {
                s.push(',');
            }
            write_string(key, s);
            s.push(':');
            write_json(v, s);
        }
    };
    if let [key] = list.keys {
        put(key, &mut s);
    } else {
        let mut keys: Vec<&str> = list.keys.iter().map(|k| &**k).collect();
        keys.sort_unstable();
        for key in keys {
            put(key, &mut s);
        }
    }
    if s.len() == start {
        let keys: Vec<String> = list.keys.iter().map(|k| quote(k)).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default \
             values for any key fields)",
            keys.join(" ")
        ));
    }
    s.push('}');
    Ok(s)
}

/// Converts an element in any spelling to the canonical one. `None` for kinds that this version does not have.
pub(crate) fn normalise(s: &str) -> Result<Option<String>, String> {
    if s.len() < 2 {
        return Err("key must be 2 characters long:".into());
    }
    if s.as_bytes().get(1) != Some(&b':') {
        return Err(format!("missing colon: {s}"));
    }
    let (kind, rest) = s.split_at(2);
    match kind {
        "f:" => Ok(Some(s.to_owned())),
        "v:" => {
            let value: Value = serde_json::from_str(rest).map_err(|e| e.to_string())?;
            let mut out = String::from("v:");
            write_json(&value, &mut out);
            Ok(Some(out))
        }
        "k:" => {
            let value: Value = serde_json::from_str(rest).map_err(|e| e.to_string())?;
            if !value.is_object() {
                return Err(format!("expected an object: {s}"));
            }
            let mut out = String::from("k:");
            write_json(&value, &mut out);
            Ok(Some(out))
        }
        "i:" => {
            let index: i64 = rest.parse().map_err(|e| format!("{rest:?}: {e}"))?;
            Ok(Some(format!("i:{index}")))
        }
        _ => Ok(None),
    }
}

/// Upstream's human-readable form: `.name`, `[key="value"]`, `[="value"]`, `[0]`.
pub(crate) fn display(element: &str) -> String {
    let (kind, rest) = element.split_at_checked(2).unwrap_or((element, ""));
    match kind {
        "f:" => format!(".{rest}"),
        "i:" => format!("[{rest}]"),
        "v:" => format!("[={}]", serde_json::from_str(rest).map_or_else(|_| rest.to_owned(), |v| show(&v))),
        "k:" => match serde_json::from_str(rest) {
            Ok(Value::Object(map)) => {
                let parts: Vec<String> = map.iter().map(|(k, v)| format!("{k}={}", show(v))).collect();
                format!("[{}]", parts.join(","))
            }
            _ => format!("[{rest}]"),
        },
        _ => "{{invalid path element}}".to_owned(),
    }
}

/// Upstream's order of elements: fields, keys, values, indices; scalars by value, numbers numerically.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    let rank = |s: &str| match s.as_bytes().first() {
        Some(b'f') => 0,
        Some(b'k') => 1,
        Some(b'v') => 2,
        _ => 3,
    };
    let by_kind = rank(a).cmp(&rank(b));
    if by_kind.is_ne() || rank(a) == 0 {
        return by_kind.then_with(|| a.cmp(b));
    }
    let parse =
        |s: &str| s.get(2..).and_then(|s| serde_json::from_str::<Value>(s).ok()).unwrap_or(Value::Null);
    compare_values(&parse(a), &parse(b))
}

/// A total order of JSON values: numbers, strings, booleans, lists, maps, null.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    let rank = |v: &Value| match v {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().partial_cmp(&y.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Array(x), Value::Array(y)) => {
            let first = x.iter().zip(y).map(|(x, y)| compare_values(x, y)).find(|o| o.is_ne());
            first.unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        (Value::Object(x), Value::Object(y)) => {
            let pair = |((ka, va), (kb, vb)): ((&String, &Value), (&String, &Value))| {
                ka.cmp(kb).then_with(|| compare_values(va, vb))
            };
            let first = x.iter().zip(y).map(pair).find(|o| o.is_ne());
            first.unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

fn show(v: &Value) -> String {
    match v {
        Value::String(s) => quote(s),
        Value::Array(list) => format!("[{}]", list.iter().map(show).collect::<Vec<_>>().join(",")),
        Value::Object(map) => map.iter().map(|(k, v)| format!("{k}={}", show(v))).collect(),
        other => {
            let mut s = String::new();
            write_json(other, &mut s);
            s
        }
    }
}

/// Appends `v` as Go's JSON encoder writes it: compact, keys sorted, HTML characters escaped, floats in Go's format.
pub(crate) fn write_json(v: &Value, out: &mut String) {
    match v {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => write_number(n, out),
        Value::String(s) => write_string(s, out),
        Value::Array(list) => {
            out.push('[');
            for (i, v) in list.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json(v, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by_key(|(k, _)| *k);
            out.push('{');
            for (i, (k, v)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(k, out);
                out.push(':');
                write_json(v, out);
            }
            out.push('}');
        }
    }
}

fn write_number(n: &Number, out: &mut String) {
    let result = match (n.as_i64(), n.as_u64(), n.as_f64()) {
        (Some(i), _, _) => write!(out, "{i}"),
        (_, Some(u), _) => write!(out, "{u}"),
        (_, _, Some(f)) => {
            let magnitude = f.abs();
            if f == 0.0 {
                write!(out, "0")
            } else if (1e-6..1e21).contains(&magnitude) {
                write!(out, "{f}")
            } else {
                let s = format!("{f:e}");
                write!(out, "{}", if magnitude >= 1e21 { s.replace('e', "e+") } else { s })
            }
        }
        _ => write!(out, "{n}"),
    };
    debug_assert!(result.is_ok(), "writing to a String cannot fail");
}

fn write_string(s: &str, out: &mut String) {
    out.push('"');
    let plain = |b: u8| b >= 0x20 && !matches!(b, b'"' | b'\\' | b'<' | b'>' | b'&' | 0xe2);
    if s.bytes().all(plain) {
        out.push_str(s);
    } else {
        for c in s.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                    out.push_str(&format!("\\u{:04x}", c as u32));
                }
                c => out.push(c),
            }
        }
    }
    out.push('"');
}

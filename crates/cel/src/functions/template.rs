//! `"...".format([...])`: clauses `%s %d %f %e %b %x %X %o %%`, as cel-go's `ext/strings` version 2 writes them (English
//! digits and separators).

use super::{Called, MAX_TEXT, convert, no_overload};
use crate::{
    error::Error,
    value::{TypeValue, Value},
};

const PRECISION: usize = 6;
/// More digits say nothing and cost memory.
const MAX_PRECISION: usize = 1000;

pub(super) fn format<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::String(template), Value::List(values)] = args else { return no_overload() };
    let mut out = String::with_capacity(template.len());
    let mut next = 0;
    let mut rest: &str = template;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else { return Err(Error::eval("unexpected end of string")) };
        if c == '%' {
            out.push('%');
            rest = &rest[1..];
            continue;
        }
        let value = values.get(next).ok_or_else(|| Error::eval(format!("index {next} out of range")))??;
        next += 1;
        let used = clause(&mut out, rest, &value)?;
        rest = &rest[used..];
        if out.len() > MAX_TEXT {
            return Err(Error::Cost);
        }
    }
    out.push_str(rest);
    Ok(Value::text(out))
}

/// Writes a value as the clause says; answers how long that is.
fn clause(out: &mut String, text: &str, value: &Value<'_>) -> Result<usize, Error> {
    let (mut used, mut precision) = (0, PRECISION);
    if let Some(digits) = text.strip_prefix('.') {
        let invalid = |why: &str| {
            Error::eval(format!("could not parse formatting clause: error while parsing precision: {why}"))
        };
        let len = digits
            .find(|c: char| !c.is_ascii_digit())
            .ok_or_else(|| invalid("could not find end of precision specifier"))?;
        precision = digits[..len].parse().ok().filter(|p| *p <= MAX_PRECISION).ok_or_else(|| {
            invalid(&format!("error while converting precision to integer: {:?}", &digits[..len]))
        })?;
        used = len + 1;
    }
    let Some(kind) = text[used..].chars().next() else { return Err(Error::eval("unexpected end of string")) };
    let during = |message: String| Error::eval(format!("error during formatting: {message}"));
    let name = value.ty().name();
    match kind {
        's' => string(out, value).map_err(during)?,
        'd' => match value {
            Value::Int(_) | Value::Uint(_) => out.push_str(&value.shown()),
            _ => {
                return Err(during(format!("decimal clause can only be used on integers, was given {name}")));
            }
        },
        'f' => match number(value) {
            Some(d) => out.push_str(&fixed(d, precision)),
            None => {
                return Err(during(format!(
                    "fixed-point clause can only be used on doubles, was given {name}"
                )));
            }
        },
        'e' => match number(value) {
            Some(d) => out.push_str(&scientific(d, precision)),
            None => {
                return Err(during(format!(
                    "scientific clause can only be used on doubles, was given {name}"
                )));
            }
        },
        'b' => match value {
            Value::Bool(b) => out.push(if *b { '1' } else { '0' }),
            _ => match magnitude(value) {
                Some((sign, n)) => out.push_str(&format!("{sign}{n:b}")),
                None => {
                    let message = "only integers and bools can be formatted as binary, was given";
                    return Err(during(format!("{message} {name}")));
                }
            },
        },
        'o' => match magnitude(value) {
            Some((sign, n)) => out.push_str(&format!("{sign}{n:o}")),
            None => {
                return Err(during(format!("octal clause can only be used on integers, was given {name}")));
            }
        },
        'x' | 'X' => {
            let text = hex(value).ok_or_else(|| {
                during(format!(
                    "only integers, byte buffers, and strings can be formatted as hex, was given {name}"
                ))
            })?;
            out.push_str(&if kind == 'X' { text.to_ascii_uppercase() } else { text });
        }
        other => {
            return Err(Error::eval(format!(
                "could not parse formatting clause: unrecognized formatting clause \"{other}\""
            )));
        }
    }
    Ok(used + kind.len_utf8())
}

fn magnitude(value: &Value<'_>) -> Option<(&'static str, u64)> {
    match value {
        Value::Int(i) => Some((if *i < 0 { "-" } else { "" }, i.unsigned_abs())),
        Value::Uint(u) => Some(("", *u)),
        _ => None,
    }
}

fn hex(value: &Value<'_>) -> Option<String> {
    let bytes = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect();
    match value {
        Value::String(s) => Some(bytes(s.as_bytes())),
        Value::Bytes(b) => Some(bytes(b)),
        other => magnitude(other).map(|(sign, n)| format!("{sign}{n:x}")),
    }
}

fn number(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Double(d) => Some(*d),
        Value::String(s) => match &**s {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn special(d: f64) -> Option<String> {
    if d.is_nan() {
        return Some("NaN".into());
    }
    d.is_infinite().then(|| if d > 0.0 { "∞" } else { "-∞" }.into())
}

/// With thousands set apart by commas.
fn fixed(d: f64, precision: usize) -> String {
    if let Some(text) = special(d) {
        return text;
    }
    let text = format!("{d:.precision$}");
    let digits = text.trim_start_matches('-');
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut out = String::from(if text.starts_with('-') { "-" } else { "" });
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// Typeset, as Go's message printer does: `1.5 × 10⁰³`.
fn scientific(d: f64, precision: usize) -> String {
    if let Some(text) = special(d) {
        return text;
    }
    let text = format!("{d:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let raised = |c: char| match c {
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '0' => '⁰',
        c => char::from_u32(u32::from('⁴') + u32::from(c) - u32::from('4')).unwrap_or(c),
    };
    let sign = if exponent < 0 { "\u{207b}" } else { "" };
    let power: String = format!("{:02}", exponent.abs()).chars().map(raised).collect();
    format!("{mantissa}\u{202f}×\u{202f}10{sign}{power}")
}

/// `%s` takes values of every type but those of libraries.
fn string(out: &mut String, value: &Value<'_>) -> Result<(), String> {
    match value {
        Value::Null => out.push_str("null"),
        Value::List(_) | Value::Map(_) => nested(out, value)?,
        Value::Ext(_) | Value::Optional(_) => {
            return Err(format!(
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given {}",
                value.ty().name()
            ));
        }
        other => out.push_str(&convert::text(other).map_err(|e| e.to_string())?.unwrap_or_default()),
    }
    Ok(())
}

/// A value within a list or map, as CEL would write it.
fn nested(out: &mut String, value: &Value<'_>) -> Result<(), String> {
    if out.len() > MAX_TEXT {
        return Err(Error::Cost.to_string());
    }
    let failed = |e: Error| e.to_string();
    match value {
        Value::String(s) => out.push_str(&kaji_meta::text::quote(s)),
        Value::Bytes(b) => out.push_str(&format!("b{}", kaji_meta::text::quote(&String::from_utf8_lossy(b)))),
        Value::Double(d) if !d.is_finite() => out.push_str(&format!("{:?}", convert::double_text(*d))),
        Value::Double(d) => out.push_str(&format!("{d:.PRECISION$}")),
        Value::Timestamp(_) | Value::Duration(_) => {
            let name = if matches!(value, Value::Duration(_)) { "duration" } else { "timestamp" };
            let text = convert::text(value).map_err(failed)?.unwrap_or_default();
            out.push_str(&format!("{name}({text:?})"));
        }
        Value::List(list) => {
            out.push('[');
            for (i, element) in list.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                nested(out, &element.map_err(failed)?)?;
            }
            out.push(']');
        }
        Value::Map(map) => {
            let mut entries = Vec::with_capacity(map.len());
            for key in map.keys() {
                if !matches!(key.ty(), TypeValue::String | TypeValue::Bool | TypeValue::Int | TypeValue::Uint)
                {
                    return Err(format!("no formatting function for map key of type {}", key.ty().name()));
                }
                let (mut k, mut v) = (String::new(), String::new());
                nested(&mut k, &key)?;
                nested(&mut v, &map.get(&key).map_err(failed)?.unwrap_or(Value::Null))?;
                entries.push((k, v));
            }
            entries.sort();
            let entries: Vec<String> = entries.into_iter().map(|(k, v)| format!("{k}:{v}")).collect();
            out.push('{');
            out.push_str(&entries.join(", "));
            out.push('}');
        }
        other => string(out, other)?,
    }
    Ok(())
}

//! `"...".format([...])`: clauses `%s %d %f %e %b %x %X %o %%`, as cel-go's `ext/strings` version 2 writes them (English
//! digits and separators).

use super::{Called, MAX_TEXT, convert, no_overload};
use crate::{
    ast::{Expr, Id, Kind},
    error::Error,
    types::Type,
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
        let clause = clause(rest).map_err(Error::eval)?;
        write(&mut out, &clause, &value)?;
        rest = &rest[clause.len..];
        if out.len() > MAX_TEXT {
            return Err(Error::Cost);
        }
    }
    out.push_str(rest);
    Ok(Value::text(out))
}

/// What stands behind a `%`.
struct Clause {
    kind: char,
    precision: usize,
    /// How long it is, in bytes.
    len: usize,
}

/// Reads the clause at the start of `text`.
fn clause(text: &str) -> Result<Clause, String> {
    let (mut used, mut precision) = (0, PRECISION);
    if let Some(digits) = text.strip_prefix('.') {
        let invalid =
            |why: &str| format!("could not parse formatting clause: error while parsing precision: {why}");
        let len = digits
            .find(|c: char| !c.is_ascii_digit())
            .ok_or_else(|| invalid("could not find end of precision specifier"))?;
        precision = digits[..len].parse().ok().filter(|p| *p <= MAX_PRECISION).ok_or_else(|| {
            invalid(&format!(
                "error while converting precision to integer: strconv.Atoi: parsing {:?}: invalid syntax",
                &digits[..len]
            ))
        })?;
        used = len + 1;
    }
    let kind = text[used..].chars().next().ok_or("unexpected end of string")?;
    if !"sdfebxXo".contains(kind) {
        return Err(format!("could not parse formatting clause: unrecognized formatting clause \"{kind}\""));
    }
    Ok(Clause { kind, precision, len: used + kind.len_utf8() })
}

/// What a clause cannot be applied to.
fn refused(kind: char, name: &str) -> String {
    let what = match kind {
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'o' => "octal clause can only be used on integers",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        _ => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
        }
    };
    format!("{what}, was given {name}")
}

fn during(problem: &str) -> String {
    format!("error during formatting: {problem}")
}

/// Checks a format against the arguments that stand in the expression; the problem, and the argument that it is about.
pub(crate) fn check(
    template: &str,
    args: &[Expr],
    ty: &dyn Fn(&Expr) -> Type,
) -> Result<(), (Option<Id>, String)> {
    let (mut rest, mut next) = (template, 0);
    while let Some(at) = rest.find('%') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            rest = after;
            continue;
        }
        if rest.is_empty() {
            return Err((None, "unexpected end of string".into()));
        }
        let Some(arg) = args.get(next) else { return Err((None, format!("index {next} out of range"))) };
        next += 1;
        let clause = clause(rest).map_err(|e| (None, e))?;
        if let Some((id, found)) = misfit(clause.kind, arg, ty) {
            return Err((Some(id), during(&refused(clause.kind, &found.name()))));
        }
        rest = &rest[clause.len..];
    }
    if args.len() > next {
        let message =
            format!("too many arguments supplied to string.format (expected {next}, got {})", args.len());
        return Err((None, message));
    }
    Ok(())
}

/// What of an argument a clause cannot write, and its type.
fn misfit(kind: char, arg: &Expr, ty: &dyn Fn(&Expr) -> Type) -> Option<(Id, Type)> {
    let own = ty(arg);
    let fits = match (kind, &own) {
        (_, Type::Dyn) | ('b' | 'o' | 'd' | 'x' | 'X', Type::Int | Type::Uint) => true,
        ('f' | 'e', Type::Double | Type::String) => true,
        ('b', Type::Bool) | ('x' | 'X', Type::String | Type::Bytes) => true,
        ('s', Type::Object(..) | Type::Optional(_) | Type::Named(_)) => false,
        ('s', _) => true,
        _ => false,
    };
    if !fits {
        return Some((arg.id, own));
    }
    match &arg.kind {
        Kind::List { elements, .. } if kind == 's' => elements.iter().find_map(|e| misfit(kind, e, ty)),
        Kind::Map { entries } if kind == 's' => {
            entries.iter().flat_map(|e| [&e.key, &e.value]).find_map(|e| misfit(kind, e, ty))
        }
        _ => None,
    }
}

/// Writes a value as a clause says.
fn write(out: &mut String, clause: &Clause, value: &Value<'_>) -> Result<(), Error> {
    let Clause { kind, precision, .. } = *clause;
    let name = value.ty().name();
    let refused = || Error::eval(during(&refused(kind, name)));
    match kind {
        'd' => match value {
            Value::Int(_) | Value::Uint(_) => out.push_str(&value.shown()),
            _ => return Err(refused()),
        },
        'f' => out.push_str(&fixed(number(value).ok_or_else(refused)?, precision)),
        'e' => out.push_str(&scientific(number(value).ok_or_else(refused)?)),
        'b' => match value {
            Value::Bool(b) => out.push(if *b { '1' } else { '0' }),
            _ => {
                let (sign, n) = magnitude(value).ok_or_else(refused)?;
                out.push_str(&format!("{sign}{n:b}"));
            }
        },
        'o' => {
            let (sign, n) = magnitude(value).ok_or_else(refused)?;
            out.push_str(&format!("{sign}{n:o}"));
        }
        'x' => out.push_str(&hex(value).ok_or_else(refused)?),
        'X' => out.push_str(&hex(value).ok_or_else(refused)?.to_ascii_uppercase()),
        _ => string(out, value).map_err(|e| Error::eval(during(&e)))?,
    }
    Ok(())
}

fn magnitude(value: &Value<'_>) -> Option<(&'static str, u64)> {
    match value {
        Value::Int(i) => Some((if *i < 0 { "-" } else { "" }, i.unsigned_abs())),
        Value::Uint(u) => Some(("", *u)),
        _ => None,
    }
}

fn hex(value: &Value<'_>) -> Option<String> {
    match value {
        Value::String(s) => Some(kaji_meta::text::hex(s.as_bytes())),
        Value::Bytes(b) => Some(kaji_meta::text::hex(b)),
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

/// Typeset, as Go's message printer does: `1.500000×10⁰³`. It does not ask for the precision.
fn scientific(d: f64) -> String {
    if let Some(text) = special(d) {
        return text;
    }
    let text = format!("{d:.PRECISION$e}");
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
    format!("{mantissa}×10{sign}{power}")
}

/// `%s` takes values of every type but those of libraries.
fn string(out: &mut String, value: &Value<'_>) -> Result<(), String> {
    match value {
        Value::Null => out.push_str("null"),
        Value::List(_) | Value::Map(_) => nested(out, value)?,
        Value::Ext(_) | Value::Optional(_) => {
            return Err(refused('s', value.ty().name()));
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

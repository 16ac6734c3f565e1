//! The value validator: types, enums, ranges, lengths, patterns, formats, junctors.
//!
//! Upstream picks which branch of an `anyOf` or `oneOf` to complain about by counting positive checks; the count is kept
//! here in the same way, or the texts would differ.

use serde_json::{Map, Value};

use crate::at::At;
use crate::schema::{Format, Schema, SchemaRef, Type};

use super::correlate::{Keyed, unchanged};
use super::{Constraints, Failure, Kind, formats};

/// Errors of one value and how many checks it passed.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) errors: Vec<Failure>,
    matches: usize,
}

impl Outcome {
    fn add(&mut self, name: String, kind: Kind) {
        self.push(Failure { name, kind });
    }

    fn push(&mut self, f: Failure) {
        if !self.errors.iter().any(|e| e.same(&f)) {
            self.errors.push(f);
        }
    }

    fn merge(&mut self, other: Outcome) {
        self.matches += other.matches;
        other.errors.into_iter().for_each(|f| self.push(f));
    }

    fn global(&mut self, message: String) {
        self.push(Failure { name: String::new(), kind: Kind::Global { message } });
    }
}

/// Checks one value. `old` is its former self, if that is known: what has not changed may be as wrong as it was.
pub(super) fn check(schema: &Schema, value: &Value, old: Option<&Value>, at: &At<'_>) -> Outcome {
    let mut out = checked(schema, value, old, at);
    if !out.errors.is_empty() && old.is_some_and(|old| unchanged(schema, value, old)) {
        out.errors.clear();
    }
    out
}

fn checked(schema: &Schema, value: &Value, old: Option<&Value>, at: &At<'_>) -> Outcome {
    let mut out = Outcome::default();
    let constraints = schema.constraints.as_deref();
    if value.is_null() {
        out.merge(type_of(schema, value, at));
        out.merge(enumeration(constraints, value, at));
        return out;
    }
    if has_type(schema) {
        out.merge(type_of(schema, value, at));
        out.matches += 1;
    }
    out.merge(junctors(constraints, value, at));
    out.matches += 1;
    match value {
        Value::String(s) => {
            out.merge(string(constraints, s, at));
            out.matches += 1;
            if schema.format != Format::None && !matches!(schema.ty, Type::Integer | Type::Number) {
                out.merge(format(schema, s, at));
                out.matches += 1;
            }
        }
        Value::Number(_) => {
            out.merge(number(schema, value, at));
            out.matches += 2;
        }
        Value::Array(list) => {
            out.merge(array(schema, list, old, at));
            out.matches += 2;
        }
        _ => {}
    }
    out.merge(enumeration(constraints, value, at));
    out.matches += 1;
    if let Value::Object(map) = value {
        out.merge(object(schema, map, old, at));
        out.matches += 1;
    }
    out.matches += 1;
    out
}

fn has_type(schema: &Schema) -> bool {
    schema.ty != Type::Any || schema.format != Format::None
}

/// The names of the allowed JSON types, as the validator joins them.
fn type_names(ty: Type) -> &'static str {
    match ty {
        Type::Object => "object",
        Type::Array => "array",
        Type::Integer => "integer",
        Type::Number => "number",
        Type::Boolean => "boolean",
        Type::IntOrString => "integer,string",
        Type::Any | Type::SchemaOr => "",
        Type::String | Type::Quantity | Type::Time | Type::MicroTime | Type::Duration | Type::Bytes => {
            "string"
        }
    }
}

/// JSON type and the width that the validator ascribes to a value.
fn kind_of(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
        Value::Number(n) if n.is_i64() => ("integer", "int64"),
        Value::Number(_) => ("number", "float64"),
    }
}

fn type_error(at: &At<'_>, want: &str, got: &str) -> Outcome {
    let mut out = Outcome::default();
    let message = format!("{at} in body must be of type {want}: {got:?}");
    out.add(at.to_string(), Kind::Type { value: got.into(), message });
    out
}

/// A whole number in a float, small enough to be exact.
fn is_json_integer(n: f64) -> bool {
    n.is_finite() && n.fract() == 0.0 && n.abs() < 9_007_199_254_740_992.0
}

fn type_of(schema: &Schema, value: &Value, at: &At<'_>) -> Outcome {
    let mut out = Outcome { matches: 1, ..Outcome::default() };
    let names = type_names(schema.ty);
    let (kind, width) = kind_of(value);
    if value.is_null() {
        return if names.is_empty() || schema.nullable { out } else { type_error(at, names, "null") };
    }
    let allows = |t: &str| names.split(',').any(|n| n == t);
    let float_as_int = kind == "number" && value.as_f64().is_some_and(is_json_integer) && allows("integer");
    let int_as_float = kind == "integer" && allows("number");
    let fits = allows(kind) || float_as_int || int_as_float;
    if let Some(format) = formats::name(schema.format) {
        let textual = matches!(value, Value::String(_) | Value::Array(_));
        if !textual && !fits && width != format {
            return type_error(at, format, width);
        }
        // Whether text fits is the format's question.
        if textual && !allows("number") && !allows("integer") {
            return out;
        }
    }
    if !fits {
        out = type_error(at, names, kind);
    }
    out
}

fn enumeration(constraints: Option<&Constraints>, value: &Value, at: &At<'_>) -> Outcome {
    let mut out = Outcome::default();
    let Some(c) = constraints.filter(|c| !c.enumeration.is_empty()) else { return out };
    let same = |e: &Value| match (e, value) {
        (Value::Null, _) => false,
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    };
    if !c.enumeration.iter().any(same) {
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_string);
        let allowed = c.enumeration.iter().map(text).collect();
        out.add(at.to_string(), Kind::Enum { value: value.clone(), allowed });
    }
    out
}

/// Nothing inside a junctor is forgiven by itself.
fn junctors(constraints: Option<&Constraints>, value: &Value, at: &At<'_>) -> Outcome {
    let mut out = Outcome { matches: 1, ..Outcome::default() };
    let Some(c) = constraints else { return out };
    if !c.any_of.is_empty() {
        any_of(&c.any_of, value, at, &mut out);
    }
    if !c.one_of.is_empty() {
        one_of(&c.one_of, value, at, &mut out);
    }
    if !c.all_of.is_empty() {
        let mut valid = 0;
        for s in &c.all_of {
            let r = check(s, value, None, at);
            valid += usize::from(r.errors.is_empty());
            out.merge(r);
        }
        if valid != c.all_of.len() {
            let more = if valid == 0 { ". None validated" } else { "" };
            out.global(format!("{:?} must validate all the schemas (allOf){more}", at.to_string()));
        }
    }
    if let Some(not) = &c.not
        && check(not, value, None, at).errors.is_empty()
    {
        out.global(format!("{:?} must not validate the schema (not)", at.to_string()));
    }
    out
}

fn any_of(schemas: &[Schema], value: &Value, at: &At<'_>, out: &mut Outcome) {
    let mut best: Option<Outcome> = None;
    for s in schemas {
        let r = check(s, value, None, at);
        if r.errors.is_empty() {
            out.merge(r);
            return;
        }
        if best.as_ref().is_none_or(|b| r.matches > b.matches) {
            best = Some(r);
        }
    }
    out.global(format!("{:?} must validate at least one schema (anyOf)", at.to_string()));
    out.merge(best.unwrap_or_default());
}

fn one_of(schemas: &[Schema], value: &Value, at: &At<'_>, out: &mut Outcome) {
    let mut best: Option<Outcome> = None;
    let mut first: Option<Outcome> = None;
    let mut valid = 0;
    for s in schemas {
        let r = check(s, value, None, at);
        if r.errors.is_empty() {
            valid += 1;
            best = None;
            first.get_or_insert(r);
        } else if valid == 0 && best.as_ref().is_none_or(|b| r.matches > b.matches) {
            best = Some(r);
        }
    }
    if valid == 1 {
        out.merge(first.unwrap_or_default());
        return;
    }
    let found =
        if valid == 0 { "Found none valid".to_string() } else { format!("Found {valid} valid alternatives") };
    out.global(format!("{:?} must validate one and only one schema (oneOf). {found}", at.to_string()));
    out.merge(best.unwrap_or_default());
}

fn string(constraints: Option<&Constraints>, s: &str, at: &At<'_>) -> Outcome {
    let mut out = Outcome::default();
    let Some(c) = constraints else { return out };
    if c.max_length.is_some() || c.min_length.is_some() {
        let length = i64::try_from(s.chars().count()).unwrap_or(i64::MAX);
        if let Some(max) = c.max_length.filter(|m| length > *m) {
            out.add(at.to_string(), Kind::TooLong { max });
            return out;
        }
        if let Some(min) = c.min_length.filter(|m| length < *m) {
            let message = format!("{at} in body should be at least {min} chars long");
            out.add(at.to_string(), Kind::Invalid { value: s.into(), message });
            return out;
        }
    }
    if let Some(p) = c.pattern.as_deref().filter(|p| !p.is_match(s)) {
        let message = format!("{at} in body should match '{}'", p.source());
        out.add(at.to_string(), Kind::Invalid { value: s.into(), message });
    }
    out
}

fn format(schema: &Schema, s: &str, at: &At<'_>) -> Outcome {
    match formats::name(schema.format) {
        Some(name) if !formats::is_valid(schema.format, s) => type_error(at, name, s),
        _ => Outcome::default(),
    }
}

/// A float as Go's `%v` prints it.
fn go_float(n: f64) -> String {
    kaji_meta::text::float(n)
}

/// Whether a number can be a value of the schema's type and width; else the complaint about it.
fn range_error(schema: &Schema, n: f64, as_int: Option<i64>, prefix: &str, at: &At<'_>) -> Option<String> {
    let bad = match (schema.ty, schema.format) {
        (Type::Integer, Format::Int32) => as_int.is_none_or(|n| i32::try_from(n).is_err()),
        (Type::Integer, _) => as_int.is_none(),
        (Type::Number, Format::Float) => n.abs() > f64::from(f32::MAX),
        _ => false,
    };
    let ty = type_names(schema.ty);
    bad.then(|| match formats::name(schema.format) {
        Some(f) => format!("{prefix} value must be of type {ty} with format {f} in {at}"),
        None => format!("{prefix} value must be of type {ty} (default format) in {at}"),
    })
}

/// A constraint as an integer, if it is one.
#[allow(clippy::cast_possible_truncation)]
fn whole(n: f64) -> Option<i64> {
    (n.fract() == 0.0 && n.abs() < 9.2e18).then_some(n as i64)
}

fn number(schema: &Schema, value: &Value, at: &At<'_>) -> Outcome {
    let mut out = Outcome::default();
    let n = value.as_f64().unwrap_or(0.0);
    let int = value.as_i64();
    if let Some(message) = range_error(schema, n, int.or_else(|| whole(n)), "Checked", at) {
        out.global(message);
    }
    let Some(c) = schema.constraints.as_deref() else { return out };
    if let Some(m) = c.multiple_of {
        multiple_of(schema, (n, int), m, at, &mut out, value);
    }
    let bounds = [
        (c.maximum, c.exclusive_maximum, "Maximum boundary", true),
        (c.minimum, c.exclusive_minimum, "Minimum boundary", false),
    ];
    for (bound, exclusive, prefix, upper) in bounds {
        let Some(bound) = bound else { continue };
        let bad_bound = range_error(schema, bound, whole(bound), prefix, at);
        #[allow(clippy::cast_possible_truncation)]
        let exact = int.filter(|_| bad_bound.is_none()).map(|i| (i, bound as i64));
        if let Some(message) = bad_bound {
            out.global(message);
        }
        let (order, shown) = match exact {
            Some((i, b)) => (Some(i.cmp(&b)), b.to_string()),
            None => (n.partial_cmp(&bound), go_float(bound)),
        };
        let (beyond, words) = match (upper, exclusive) {
            (true, false) => (order == Some(std::cmp::Ordering::Greater), "less than or equal to"),
            (true, true) => (order.is_some_and(|o| o.is_ge()), "less than"),
            (false, false) => (order == Some(std::cmp::Ordering::Less), "greater than or equal to"),
            (false, true) => (order.is_some_and(|o| o.is_le()), "greater than"),
        };
        if beyond {
            let message = format!("{at} in body should be {words} {shown}");
            out.add(at.to_string(), Kind::Invalid { value: value.clone(), message });
        }
    }
    out
}

fn multiple_of(
    schema: &Schema,
    (n, int): (f64, Option<i64>),
    factor: f64,
    at: &At<'_>,
    out: &mut Outcome,
    value: &Value,
) {
    let bad_factor = range_error(schema, factor, whole(factor), "MultipleOf", at);
    #[allow(clippy::cast_possible_truncation)]
    let exact = int.filter(|_| bad_factor.is_none()).map(|i| (i, factor as i64));
    if let Some(message) = bad_factor {
        out.global(message);
    }
    let (divides, positive, shown) = match exact {
        Some((i, f)) => (f > 0 && i % f == 0, f > 0, f.to_string()),
        None => {
            let quotient = if factor < 1.0 { 1.0 / factor * n } else { n / factor };
            (is_json_integer(quotient), factor > 0.0, go_float(factor))
        }
    };
    let message = if !positive {
        format!("factor MultipleOf declared for {at} must be positive: {shown}")
    } else if !divides {
        format!("{at} in body should be a multiple of {shown}")
    } else {
        return;
    };
    out.add(at.to_string(), Kind::Invalid { value: value.clone(), message });
}

fn array(schema: &Schema, list: &[Value], old: Option<&Value>, at: &At<'_>) -> Outcome {
    let mut out = Outcome::default();
    if let Some(items) = schema.items.as_ref().map(SchemaRef::get) {
        let keyed = Keyed::of(schema, old);
        for (i, v) in list.iter().enumerate() {
            let before = keyed.as_ref().and_then(|k| k.get(v));
            out.merge(check(items, v, before, &at.index(i)));
        }
    }
    let Some(c) = schema.constraints.as_deref() else { return out };
    let size = i64::try_from(list.len()).unwrap_or(i64::MAX);
    if let Some(min) = c.min_items.filter(|m| size < *m) {
        let message = format!("{at} in body should have at least {min} items");
        out.add(at.to_string(), Kind::Invalid { value: size.into(), message });
    }
    if let Some(max) = c.max_items.filter(|m| size > *m) {
        out.add(at.to_string(), Kind::TooMany { actual: list.len(), max });
    }
    if c.unique_items && list.iter().enumerate().any(|(i, v)| list[..i].contains(v)) {
        let message = format!("{at} in body shouldn't contain duplicates");
        out.add(at.to_string(), Kind::Invalid { value: "".into(), message });
    }
    out
}

fn object(schema: &Schema, map: &Map<String, Value>, old: Option<&Value>, at: &At<'_>) -> Outcome {
    let mut out = Outcome::default();
    if let Some(c) = schema.constraints.as_deref() {
        let size = i64::try_from(map.len()).unwrap_or(i64::MAX);
        if let Some(min) = c.min_properties.filter(|m| size < *m) {
            let message = format!("{at} in body should have at least {min} properties");
            out.add(at.to_string(), Kind::Invalid { value: size.into(), message });
        }
        if let Some(max) = c.max_properties.filter(|m| size > *m) {
            out.add(at.to_string(), Kind::TooMany { actual: map.len(), max });
        }
    }
    for (k, v) in map {
        if let Some(child) = schema.child(k) {
            // Versions differ in these without the client's doing.
            let of_type = at.is_root() && matches!(k.as_str(), "apiVersion" | "kind");
            let before = old.filter(|_| !of_type).and_then(|old| old.get(k));
            out.merge(check(child, v, before, &at.field(k)));
        }
    }
    for k in &schema.required {
        if !map.contains_key(&**k) {
            out.add(format!("{at}.{k}"), Kind::Required);
        }
    }
    out
}

//! Equality of values as structured-merge-diff has it, and Go's printing of them in error texts.

use kaji_meta::text::quote;
use serde_json::{Map, Value};

use crate::fieldset::element;

/// Deep equality; integers and floats of the same value are equal.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            x == y || (x.as_f64() == y.as_f64() && (x.is_f64() || y.is_f64()))
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, x)| y.get(k).is_some_and(|y| equal(x, y)))
        }
        _ => a == b,
    }
}

/// Deep equality of two objects, leaving `metadata.managedFields` out.
pub(crate) fn equal_objects(a: &Value, b: &Value) -> bool {
    let (Value::Object(a), Value::Object(b)) = (a, b) else { return equal(a, b) };
    equal_but(a, b, "metadata", |x, y| match (x, y) {
        (Some(Value::Object(x)), Some(Value::Object(y))) => equal_but(x, y, "managedFields", |_, _| true),
        (None, None) => true,
        (Some(x), Some(y)) => equal(x, y),
        _ => false,
    })
}

/// Equality of two maps, one key of which is compared by `special`.
fn equal_but(
    a: &Map<String, Value>,
    b: &Map<String, Value>,
    key: &str,
    special: impl Fn(Option<&Value>, Option<&Value>) -> bool,
) -> bool {
    let rest = |m: &Map<String, Value>| m.len() - usize::from(m.contains_key(key));
    rest(a) == rest(b)
        && a.iter().all(|(k, x)| k == key || b.get(k).is_some_and(|y| equal(x, y)))
        && special(a.get(key), b.get(key))
}

/// Go's `%v` of a decoded JSON value.
pub(crate) fn go_plain(v: &Value) -> String {
    match v {
        Value::Null => "<nil>".into(),
        Value::String(s) => s.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(go_plain).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let parts: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_plain(v))).collect();
            format!("map[{}]", parts.join(" "))
        }
        other => json(other),
    }
}

/// Go's `%#v` of a decoded JSON value.
pub(crate) fn go_syntax(v: &Value) -> String {
    match v {
        Value::Null => "interface {}(nil)".into(),
        Value::String(s) => quote(s),
        Value::Array(list) => {
            format!("[]interface {{}}{{{}}}", list.iter().map(go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let parts: Vec<String> =
                map.iter().map(|(k, v)| format!("{}:{}", quote(k), go_syntax(v))).collect();
            format!("map[string]interface {{}}{{{}}}", parts.join(", "))
        }
        other => json(other),
    }
}

/// Compact JSON as Go's encoder writes it.
pub(crate) fn json(v: &Value) -> String {
    let mut s = String::new();
    element::write_json(v, &mut s);
    s
}

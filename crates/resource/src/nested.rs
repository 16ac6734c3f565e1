//! Reading a nested field of a type that no schema promises, with upstream's texts (`unstructured.NestedInt64` and its like).

use crate::def::Str;
use kaji_meta::text::{go_type, plain};
use serde_json::Value;

/// The value at a path; `None` if there is none.
fn value<'v>(object: &'v Value, path: &[Str]) -> Result<Option<&'v Value>, String> {
    let mut at = object;
    for (i, name) in path.iter().enumerate() {
        match at {
            Value::Null => return Ok(None),
            Value::Object(map) => match map.get(name.as_ref()) {
                Some(below) => at = below,
                None => return Ok(None),
            },
            other => return Err(mismatch(&path[..=i], other, "map[string]interface{}")),
        }
    }
    Ok(Some(at))
}

/// The whole number at a path; `None` if there is nothing.
///
/// # Errors
/// The text for what is no whole number of 64 bits.
pub fn integer(object: &Value, path: &[Str]) -> Result<Option<i64>, String> {
    let found = value(object, path)?;
    found.map(|v| v.as_i64().ok_or_else(|| mismatch(path, v, "int64"))).transpose()
}

/// The text at a path; `None` if there is nothing.
///
/// # Errors
/// The text for what is no string.
pub fn string<'v>(object: &'v Value, path: &[Str]) -> Result<Option<&'v str>, String> {
    let found = value(object, path)?;
    found.map(|v| v.as_str().ok_or_else(|| mismatch(path, v, "string"))).transpose()
}

fn mismatch(path: &[Str], found: &Value, expected: &str) -> String {
    let (path, shown, ty) = (dotted(path), plain(found), go_type(found));
    format!("{path} accessor error: {shown} is of the type {ty}, expected {expected}")
}

/// `.spec.replicas`
pub fn dotted(path: &[Str]) -> String {
    path.iter().fold(String::new(), |s, p| s + "." + p)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn says_what_is_there_instead() {
        let path: Vec<Str> = vec!["spec".into(), "replicas".into()];
        let read = |object: Value| integer(&object, &path);
        assert_eq!(read(json!({"spec": {"replicas": 3}})), Ok(Some(3)));
        assert_eq!((read(json!({})), read(json!({"spec": null}))), (Ok(None), Ok(None)));
        let refused = |object: Value| read(object).unwrap_err();
        assert_eq!(
            refused(json!({"spec": {"replicas": "x"}})),
            ".spec.replicas accessor error: x is of the type string, expected int64"
        );
        assert_eq!(
            refused(json!({"spec": {"replicas": null}})),
            ".spec.replicas accessor error: <nil> is of the type <nil>, expected int64"
        );
        assert_eq!(
            refused(json!({"spec": [1]})),
            ".spec.replicas accessor error: [1] is of the type []interface {}, expected map[string]interface{}"
        );
        assert_eq!(
            string(&json!({"spec": {"replicas": 1.5}}), &path).unwrap_err(),
            ".spec.replicas accessor error: 1.5 is of the type float64, expected string"
        );
    }
}

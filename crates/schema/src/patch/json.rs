//! JSON patch (RFC 6902) with the liberties of the library that upstream uses: `replace` of a missing field adds it,
//! `test` for null holds for a missing field, negative indices count from the end, a missing `value` is null, and only
//! what follows the first `/` of a path counts. `test` compares numbers by value, as the RFC asks.

use kaji_meta::Status;
use serde_json::{Map, Value};

use super::unprocessable;
use crate::managed::equal_values;

/// The most operations that one patch may have.
const MAX_OPERATIONS: usize = 10_000;

/// Applies `patch`, a list of operations. On an error `target` is left half changed.
///
/// # Errors
/// 400 if the patch is no list of objects, 413 if it has more than 10000 operations, 422 if it does not apply.
pub fn json_patch(target: &mut Value, patch: &Value) -> Result<(), Status> {
    let operations = match patch {
        Value::Null => return Ok(()),
        Value::Array(list) => list,
        other => return Err(not_a(other, "Patch")),
    };
    if let Some(bad) = operations.iter().find(|o| !o.is_object() && !o.is_null()) {
        return Err(not_a(bad, "Operation"));
    }
    if operations.len() > MAX_OPERATIONS {
        return Err(Status::request_entity_too_large(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    for operation in operations {
        apply(target, operation).ok_or_else(unprocessable)?;
    }
    Ok(())
}

/// 400 with the text of Go's decoder.
fn not_a(value: &Value, what: &str) -> Status {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    Status::bad_request(format!("json: cannot unmarshal {kind} into Go value of type jsonpatch.{what}"))
}

/// One operation; `None` if it does not apply.
fn apply(target: &mut Value, operation: &Value) -> Option<()> {
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let value = || operation.get("value").cloned().unwrap_or_default();
    match text("op")? {
        "add" => add(target, text("path")?, value()),
        "remove" => remove(target, text("path")?).map(drop),
        "replace" => replace(target, text("path")?, value()),
        "move" => {
            let value = remove(target, text("from")?)?;
            add(target, text("path")?, value)
        }
        "copy" => {
            let value = get(target, text("from")?)?.cloned().unwrap_or_default();
            add(target, text("path")?, value)
        }
        "test" => {
            let path = text("path")?;
            let expected = operation.get("value").unwrap_or(&Value::Null);
            let found = if path.is_empty() { target } else { get(target, path)?.unwrap_or(&Value::Null) };
            equal_values(found, expected).then_some(())
        }
        _ => None,
    }
}

/// What holds the place that a path names.
enum Parent<'a> {
    Object(&'a mut Map<String, Value>),
    List(&'a mut Vec<Value>),
}

fn decode(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// The parent and the last token of a path; `None` if it leads nowhere.
fn parent<'a>(target: &'a mut Value, path: &str) -> Option<(Parent<'a>, String)> {
    let (_, path) = path.split_once('/')?;
    let (parents, last) = path.rsplit_once('/').map_or((None, path), |(p, last)| (Some(p), last));
    let mut at = target;
    for token in parents.into_iter().flat_map(|p| p.split('/')) {
        let token = decode(token);
        at = match at {
            Value::Object(map) => map.get_mut(&token)?,
            Value::Array(list) => {
                let i = index(&token, list.len())?;
                list.get_mut(i)?
            }
            _ => return None,
        };
    }
    match at {
        Value::Object(map) => Some((Parent::Object(map), decode(last))),
        Value::Array(list) => Some((Parent::List(list), decode(last))),
        _ => None,
    }
}

/// An index below `length`, counted from the end if negative. A sign and leading zeros are allowed.
fn index(token: &str, length: usize) -> Option<usize> {
    let i: i64 = token.parse().ok()?;
    let i = if i < 0 { i.checked_add(i64::try_from(length).ok()?)? } else { i };
    usize::try_from(i).ok().filter(|i| *i < length)
}

/// Outer `None`: the path leads nowhere. Inner: an object lacks the field.
fn get<'a>(target: &'a mut Value, path: &str) -> Option<Option<&'a Value>> {
    match parent(target, path)? {
        (Parent::Object(map), key) => Some(map.get(&key)),
        (Parent::List(list), key) => {
            let i = index(&key, list.len())?;
            list.get(i).map(Some)
        }
    }
}

fn add(target: &mut Value, path: &str, value: Value) -> Option<()> {
    match parent(target, path)? {
        (Parent::Object(map), key) => drop(map.insert(key, value)),
        (Parent::List(list), key) if key == "-" => list.push(value),
        // The place after the last element counts here: -1 appends.
        (Parent::List(list), key) => list.insert(index(&key, list.len() + 1)?, value),
    }
    Some(())
}

fn remove(target: &mut Value, path: &str) -> Option<Value> {
    match parent(target, path)? {
        (Parent::Object(map), key) => map.remove(&key),
        (Parent::List(list), key) => Some(list.remove(index(&key, list.len())?)),
    }
}

fn replace(target: &mut Value, path: &str, value: Value) -> Option<()> {
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return None;
        }
        *target = value;
        return Some(());
    }
    match parent(target, path)? {
        (Parent::Object(map), key) => drop(map.insert(key, value)),
        (Parent::List(list), key) => {
            let i = index(&key, list.len())?;
            *list.get_mut(i)? = value;
        }
    }
    Some(())
}

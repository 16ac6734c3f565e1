//! JSON patch (RFC 6902) with the liberties of the library that upstream uses: `replace` of a missing field adds it,
//! `test` for null holds for a missing field, negative indices count from the end, a missing `value` is null, and only
//! what follows the first `/` of a path counts. `test` compares numbers by value, as the RFC requires.

use kaji_meta::{SizeBudget, Status, Work, object};
use serde_json::{Map, Value};

use super::unprocessable;
use crate::managed::equal_values;

/// The most operations that one patch may have.
const MAX_OPERATIONS: usize = 10_000;

/// Bytes of JSON that the copies of one patch may add: each could double what is there. Source: upstream's
/// `JSONPatchMaxCopyBytes`.
const MAX_COPIED: usize = 3 << 20;

/// Applies `patch`, a list of operations. On an error `target` is left half changed.
///
/// # Errors
/// 400 if the patch is no list of objects, 413 if it has more than 10000 operations, 422 if it does not apply, 504 when
/// the time is over.
pub fn json_patch(target: &mut Value, patch: &Value, work: &Work<'_>) -> Result<(), Status> {
    run(target, patch, work)?.map_err(|_| unprocessable())
}

/// The same, telling which operation does not apply, and why.
///
/// # Errors
/// The text of the library that upstream uses.
pub fn json_patch_explained(target: &mut Value, patch: &Value, work: &Work<'_>) -> Result<(), String> {
    let operation = match run(target, patch, work) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(operation)) => operation,
        Err(status) => return Err(status.message),
    };
    Err(why(target, operation))
}

/// Why an operation does not apply to what those before it left.
fn why(target: &mut Value, operation: &Value) -> String {
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let op = text("op").unwrap_or("unknown");
    if !matches!(op, "add" | "remove" | "replace" | "move" | "copy" | "test") {
        return format!("Unexpected kind: {op}");
    }
    let Some(path) = text("path") else {
        return format!("{op} operation failed to decode path: missing value");
    };
    let key = path.rsplit('/').next().unwrap_or_default();
    if let "move" | "copy" = op {
        let from = text("from").unwrap_or_default();
        if parent(target, from).is_none() {
            return format!("{op} operation does not apply: doc is missing from path: {from}: missing value");
        }
        if parent(target, path).is_none() {
            return format!(
                "{op} operation does not apply: doc is missing destination path: {path}: missing value"
            );
        }
        if op == "copy" && get(target, from).is_some() {
            return format!(
                "Unable to complete the copy, the accumulated size increase of copies exceeds the limit {MAX_COPIED}"
            );
        }
        return format!("error in {op} for path: '{from}': missing value");
    }
    match (op, parent(target, path)) {
        ("test", None) if !path.is_empty() => {
            format!("test operation does not apply: is missing path: {path}: missing value")
        }
        ("test", _) => format!("testing value {path} failed: test failed"),
        ("replace", None) => {
            format!("replace operation does not apply: doc is missing path: {path}: missing value")
        }
        ("replace", _) => {
            format!("replace operation does not apply: doc is missing key: {path}: missing value")
        }
        (_, None) => {
            format!("{op} operation does not apply: doc is missing path: \"{path}\": missing value")
        }
        (_, Some((Parent::Object(_), _))) => {
            format!("error in {op} for path: '{path}': Unable to {op} nonexistent key: {key}: missing value")
        }
        (_, Some((Parent::List(_), _))) => format!(
            "error in {op} for path: '{path}': Unable to access invalid index: {key}: invalid index referenced"
        ),
    }
}

/// Applies operations until one does not apply, which is the inner error.
fn run<'p>(target: &mut Value, patch: &'p Value, work: &Work<'_>) -> Result<Result<(), &'p Value>, Status> {
    let operations = match patch {
        Value::Null => return Ok(Ok(())),
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
    let mut copies = Copies { bytes: 0, memory: SizeBudget::default(), work };
    for operation in operations {
        let applied = apply(target, operation, &mut copies);
        if applied.is_none() {
            work.check()?;
        }
        work.step(1)?;
        if applied.is_none() {
            return Ok(Err(operation));
        }
    }
    Ok(Ok(()))
}

/// 400 with the text of Go's decoder.
fn not_a(value: &Value, what: &str) -> Status {
    let kind = object::json_type(value);
    Status::bad_request(format!("json: cannot unmarshal {kind} into Go value of type jsonpatch.{what}"))
}

/// One operation; `None` if it does not apply.
fn apply(target: &mut Value, operation: &Value, copies: &mut Copies<'_>) -> Option<()> {
    let work = copies.work;
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let value = || operation.get("value").cloned().unwrap_or_default();
    match text("op")? {
        "add" => add(target, text("path")?, value(), work),
        "remove" => remove(target, text("path")?, work).map(drop),
        "replace" => replace(target, text("path")?, value()),
        "move" => {
            let value = remove(target, text("from")?, work)?;
            add(target, text("path")?, value, work)
        }
        "copy" => {
            let value = get(target, text("from")?)?.unwrap_or(&Value::Null);
            copies.bytes += value.to_string().len();
            if copies.bytes > MAX_COPIED {
                return None;
            }
            let value = copies.memory.copy(value).ok()?;
            add(target, text("path")?, value, work)
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

/// What a patch has copied so far, and how long it may take.
struct Copies<'w> {
    bytes: usize,
    memory: SizeBudget,
    work: &'w Work<'w>,
}

/// Elements of a list that are moved by as much as one step costs.
const MOVED: usize = 64;

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

fn add(target: &mut Value, path: &str, value: Value, work: &Work<'_>) -> Option<()> {
    match parent(target, path)? {
        (Parent::Object(map), key) => drop(map.insert(key, value)),
        (Parent::List(list), key) if key == "-" => list.push(value),
        // The place after the last element counts here: -1 appends.
        (Parent::List(list), key) => {
            // A change near the beginning of a long list moves all of it.
            work.step(list.len() / MOVED).ok()?;
            list.insert(index(&key, list.len() + 1)?, value);
        }
    }
    Some(())
}

fn remove(target: &mut Value, path: &str, work: &Work<'_>) -> Option<Value> {
    match parent(target, path)? {
        (Parent::Object(map), key) => map.remove(&key),
        (Parent::List(list), key) => {
            work.step(list.len() / MOVED).ok()?;
            Some(list.remove(index(&key, list.len())?))
        }
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

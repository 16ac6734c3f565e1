//! What the server itself does to `metadata`.

use super::Op;
use crate::decode::prune_empty_metadata;
use kaji_meta::{Status, object};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Fields of `metadata` that a client cannot bring along into existence.
const SYSTEM_FIELDS: [&str; 5] =
    ["creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"];

/// Clears the system's fields of a new object.
pub(crate) fn wipe(object: &mut Value) {
    let meta = object::meta_mut(object);
    for field in SYSTEM_FIELDS {
        meta.remove(field);
    }
}

/// Makes the object's namespace that of the request.
///
/// # Errors
/// 400 when it names another one.
pub(crate) fn match_namespace(op: &Op<'_>, object: &mut Value) -> Result<(), Status> {
    let expected = if op.target.res.def.namespaced() { op.target.namespace } else { "" };
    let found = object::namespace(object);
    if found == expected {
        if found.is_empty() {
            object::meta_mut(object).remove("namespace");
        }
        return Ok(());
    }
    if expected.is_empty() {
        object::meta_mut(object).remove("namespace");
    } else if found.is_empty() {
        object::meta_mut(object).insert("namespace".into(), expected.into());
    } else {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Checks the object's name against the path's.
///
/// # Errors
/// 400 with upstream's texts.
pub(crate) fn match_name(object: &Value, name: &str) -> Result<(), Status> {
    match object::name(object) {
        "" => Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        found if found != name => Err(Status::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({name})"
        ))),
        _ => Ok(()),
    }
}

/// Removes owner references that are there twice, with upstream's warning.
pub(crate) fn dedup_owners(op: &Op<'_>, object: &mut Value, after_admission: bool) {
    let Some(Value::Array(refs)) = object.get_mut("metadata").and_then(|m| m.get_mut("ownerReferences"))
    else {
        return;
    };
    if refs.len() < 2 {
        return;
    }
    let mut duplicates = vec![];
    let mut kept: Vec<Value> = Vec::with_capacity(refs.len());
    let mut seen = HashSet::new();
    for r in refs.drain(..) {
        if seen.insert(r.to_string()) {
            kept.push(r);
        } else {
            duplicates.push(object::str_at(&r, &["uid"]).to_owned());
        }
    }
    *refs = kept;
    if duplicates.is_empty() {
        return;
    }
    let after = if after_admission { " after mutating admission happens" } else { "" };
    op.output.warn(format!(
        ".metadata.ownerReferences contains duplicate entries{after}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        duplicates.join(", ")
    ));
}

/// Puts back into `new` what an update cannot change.
pub(crate) fn keep_system_fields(new: &mut Value, old: &Value) {
    let empty = Map::new();
    let old = object::meta(old).unwrap_or(&empty);
    let new = object::meta_mut(new);
    let present = |key: &str| old.get(key).filter(|v| !v.is_null());
    if new.get("uid").and_then(Value::as_str).unwrap_or("").is_empty()
        && let Some(uid) = present("uid")
    {
        new.insert("uid".into(), uid.clone());
    }
    for key in ["creationTimestamp", "deletionTimestamp"] {
        if let Some(v) = present(key) {
            new.insert(key.into(), v.clone());
        }
    }
    if let Some(v) = present("deletionGracePeriodSeconds")
        && new.get("deletionGracePeriodSeconds").is_none_or(Value::is_null)
    {
        new.insert("deletionGracePeriodSeconds".into(), v.clone());
    }
    prune_empty_metadata(new);
    new.remove("selfLink");
}

/// Sets `metadata.generation`; 0 removes it.
pub(crate) fn set_generation(object: &mut Value, generation: i64) {
    let meta = object::meta_mut(object);
    if generation == 0 {
        meta.remove("generation");
    } else {
        meta.insert("generation".into(), generation.into());
    }
}

/// Whether two objects differ outside metadata (and, with `status_apart`, status).
pub(crate) fn content_differs(new: &Value, old: &Value, status_apart: bool) -> bool {
    let empty = Map::new();
    let (new, old) = (new.as_object().unwrap_or(&empty), old.as_object().unwrap_or(&empty));
    let counts =
        |key: &str| !(matches!(key, "metadata" | "apiVersion" | "kind") || (status_apart && key == "status"));
    let covers = |a: &Map<String, Value>, b: &Map<String, Value>| {
        a.iter().filter(|(k, _)| counts(k)).all(|(k, v)| b.get(k) == Some(v))
    };
    !(covers(new, old) && old.iter().filter(|(k, _)| counts(k)).all(|(k, _)| new.contains_key(k)))
}

//! Strategic merge patch: a merge patch that merges lists as the schema says, and applies directives.
//!
//! Directives: `$patch: delete|replace|merge` in maps and in elements of merging lists, `$retainKeys`,
//! `$setElementOrder/<list>` and `$deleteFromPrimitiveList/<list>`. Error texts are upstream's.

use std::collections::HashSet;

use kaji_meta::Status;
use serde_json::{Map, Value};

use super::unprocessable;
use crate::managed::go_plain as plain;
use crate::schema::{Schema, SchemaRef, Type};
use kaji_meta::text::go_type;

mod list;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";

type Object = Map<String, Value>;

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("invalid JSON document")]
    BadDocument,
    #[error("lists of lists are not supported")]
    ListOfLists,
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    #[error("invalid patch format of setElementOrder list")]
    SetElementOrder,
    #[error("map: {} does not contain declared merge key: {key}", plain(map))]
    NoMergeKey { map: Value, key: String },
    #[error("expected a {expected}, but received a {received}")]
    BadArgument { expected: &'static str, received: &'static str },
    #[error("unknown patch type: {} in map: {}", verb_s(directive), plain(map))]
    BadDirective { directive: Value, map: Value },
    #[error("{0}")]
    Other(String),
}

/// Go's `%s` of a decoded JSON value, for directives.
fn verb_s(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Null => "%!s(<nil>)".into(),
        other => format!("%!s({}={})", go_type(other), plain(other)),
    }
}

impl From<Error> for Status {
    fn from(e: Error) -> Status {
        match e {
            Error::BadDocument | Error::PrimitiveList | Error::RetainKeys | Error::SetElementOrder => {
                Status::bad_request(e.to_string())
            }
            Error::ListOfLists => unprocessable(),
            other => crate::managed::failure(other.to_string()),
        }
    }
}

/// The strategic merge of `patch` into `original`, two whole objects of the type `schema`.
///
/// # Errors
/// 400 for malformed directives, 422 for lists of lists, 500 (upstream's choice) for anything else that does not fit.
pub fn strategic_merge(schema: &Schema, original: &Value, patch: &Value) -> Result<Value, Status> {
    let object = |v: &Value| match v {
        Value::Object(map) => Ok(map.clone()),
        Value::Null => Ok(Map::new()),
        _ => Err(Error::BadDocument),
    };
    Ok(Value::Object(merge_map(object(original)?, object(patch)?, Meta::of(schema))?))
}

/// What the schema says about merging.
#[derive(Clone, Copy)]
struct Meta<'s> {
    schema: Option<&'s Schema>,
}

/// How one field merges.
struct FieldMeta<'s> {
    /// Of the field's value, or of its elements if it is a list.
    below: Meta<'s>,
    merge: bool,
    replace: bool,
    merge_key: &'s str,
}

fn go_kind(schema: Option<&Schema>) -> &'static str {
    match schema.map(|s| s.ty) {
        Some(Type::Object) if schema.is_some_and(|s| s.properties.is_some()) => "struct",
        Some(Type::Object) => "map",
        Some(Type::Array) => "slice",
        Some(Type::Integer) => "int",
        Some(Type::Number) => "float64",
        Some(Type::Boolean) => "bool",
        Some(Type::String) => "string",
        _ => "interface",
    }
}

impl<'s> Meta<'s> {
    fn of(schema: &'s Schema) -> Meta<'s> {
        Meta { schema: Some(schema) }
    }

    fn field(&self, key: &str) -> Result<(&'s Schema, FieldMeta<'s>), Error> {
        let Some(properties) = self.schema.and_then(|s| s.properties.as_ref()) else {
            return Err(Error::Other(format!(
                "merging an object in json but data type is not struct, instead is: {}",
                go_kind(self.schema)
            )));
        };
        let found =
            properties.get(key).or_else(|| properties.iter().find(|p| p.name.eq_ignore_ascii_case(key)));
        let Some(property) = found else {
            let name = self.schema.map_or("", Schema::short_name);
            return Err(Error::Other(format!(
                "unable to find api field in struct {name} for the json field {key:?}"
            )));
        };
        let schema = property.schema.get();
        let meta = FieldMeta {
            below: Meta::of(schema),
            merge: schema.patch_strategy.merge,
            replace: schema.patch_strategy.replace,
            merge_key: schema.merge_key.as_deref().unwrap_or(""),
        };
        Ok((schema, meta))
    }

    /// How the list `key` merges.
    fn list(&self, key: &str) -> Result<FieldMeta<'s>, Error> {
        let (schema, mut meta) = self.field(key)?;
        if schema.ty != Type::Array {
            return Err(Error::Other(format!(
                "expected slice or array type, but got: {}",
                go_kind(self.schema)
            )));
        }
        let items = schema.items.as_ref().map(SchemaRef::get);
        if items.is_some_and(|s| s.ty == Type::Array) {
            return Err(Error::Other("unexpected slice of slice".into()));
        }
        meta.below = Meta { schema: items };
        Ok(meta)
    }
}

fn merge_map(mut original: Object, mut patch: Object, meta: Meta<'_>) -> Result<Object, Error> {
    if let Some(directive) = patch.get(PATCH) {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(PATCH);
                Ok(patch)
            }
            Some("delete") => Ok(Map::new()),
            _ => Err(Error::BadDirective { directive: directive.clone(), map: Value::Object(patch) }),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    list::merge_ordered(&mut original, &mut patch, meta)?;
    for (key, value) in patch {
        let deletion = key.starts_with(DELETE_FROM);
        let key = if deletion { target_of(&key, DELETE_FROM)?.to_owned() } else { key };
        if value.is_null() {
            original.remove(&key);
            continue;
        }
        let merged = match (original.remove(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                let (_, field) = meta.field(&key)?;
                Some(Value::Object(if field.replace { new } else { merge_map(old, new, field.below)? }))
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                let field = meta.list(&key)?;
                Some(Value::Array(list::merge(old, new, &field, deletion)?))
            }
            // There is nothing to delete from.
            (old, _) if deletion => old,
            (_, value) => take(value),
        };
        if let Some(merged) = merged {
            original.insert(key, merged);
        }
    }
    Ok(original)
}

/// The list that a directive `prefix/list` is about.
fn target_of<'k>(key: &'k str, prefix: &str) -> Result<&'k str, Error> {
    match key.split_once('/') {
        Some((head, list)) if head == prefix => Ok(list),
        _ if prefix == DELETE_FROM => Err(Error::PrimitiveList),
        _ => Err(Error::SetElementOrder),
    }
}

/// `$retainKeys`: fields of the original that are not listed go.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), Error> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keys) = keys else { return Err(Error::RetainKeys) };
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let listed = |key: &str| keys.contains(key);
    for (key, value) in patch.iter() {
        let exempt = value.is_null() || key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER);
        if !exempt && !listed(key) {
            return Err(Error::RetainKeys);
        }
    }
    original.retain(|key, _| listed(key));
    Ok(())
}

/// A value of the patch that has no counterpart: without nulls and without what carries a directive. `None`: it
/// carries one itself.
fn take(mut value: Value) -> Option<Value> {
    discard_nulls(&mut value);
    without_directives(value)
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(PATCH) => None,
        Value::Object(map) => {
            let kept = map.into_iter().filter_map(|(k, v)| Some((k, without_directives(v)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(list) => Some(Value::Array(list.into_iter().filter_map(without_directives).collect())),
        other => Some(other),
    }
}

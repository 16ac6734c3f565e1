//! The fields of an object by their paths, and what changed between two states.
//!
//! Entries of lists are named by what identifies them (`[name=web]`) where all have it and it differs, else by their place.
//!
//! Invariant: what changes with each write (`resourceVersion`, `managedFields`) is no field.

use serde::Serialize;
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// What identifies an entry of a list, in upstream's types.
const KEYS: &[&str] = &["name", "type", "uid", "containerPort", "port", "mountPath", "key", "ip"];

/// One field that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldChange {
    /// `.spec.replicas`
    pub path: String,
    /// The value before; `None` when there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The value after; `None` when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (sign, value) in [('-', &self.before), ('+', &self.after)] {
            if let Some(value) = value {
                writeln!(f, "{sign} {}: {value}", self.path)?;
            }
        }
        Ok(())
    }
}

/// The fields that have a value of their own, by path.
pub fn leaves(object: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    add(object, String::new(), &mut all);
    all
}

/// What differs between two states.
pub fn changes(before: &Value, after: &Value) -> Vec<FieldChange> {
    let (mut before, mut after) = (leaves(before), leaves(after));
    let paths: BTreeSet<String> = before.keys().chain(after.keys()).cloned().collect();
    let differing = paths.into_iter().filter_map(|path| {
        let (before, after) = (before.remove(&path), after.remove(&path));
        (before != after).then_some(FieldChange { path, before, after })
    });
    differing.collect()
}

fn add(value: &Value, path: String, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, member) in members {
                if !is_record(&path, name) {
                    add(member, format!("{path}{}", step(name)), all);
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let key = KEYS.iter().find(|key| identifies(items, key));
            for (place, item) in items.iter().enumerate() {
                let named = key.and_then(|key| Some((key, item.get(key)?)));
                let entry = match named {
                    Some((key, Value::String(name))) => format!("{path}[{key}={name}]"),
                    Some((key, name)) => format!("{path}[{key}={name}]"),
                    None => format!("{path}[{place}]"),
                };
                add(item, entry, all);
            }
        }
        Value::Null if path.is_empty() => {}
        leaf => {
            all.insert(path, leaf.clone());
        }
    }
}

fn is_record(path: &str, name: &str) -> bool {
    path == ".metadata" && matches!(name, "resourceVersion" | "managedFields")
}

/// `.spec`, or `["a/b"]` for names that are no words.
fn step(name: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '$');
    match !name.is_empty() && name.chars().all(is_word) {
        true => format!(".{name}"),
        false => format!("[{name:?}]"),
    }
}

fn identifies(items: &[Value], key: &str) -> bool {
    let names: Option<Vec<&Value>> =
        items.iter().map(|item| item.as_object().and_then(|map: &Map<_, _>| map.get(key))).collect();
    let Some(names) = names else { return false };
    let texts: BTreeSet<String> = names.iter().map(|name| name.to_string()).collect();
    texts.len() == items.len() && names.iter().all(|name| name.is_string() || name.is_number())
}

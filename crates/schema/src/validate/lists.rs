//! Uniqueness in lists of kind set and map.

use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::{Map, Value};
use std::collections::HashMap;

use crate::at::At;
use crate::schema::{ListKind, Schema};

/// Checks all lists in `value`.
pub(super) fn check(schema: &Schema, value: &Value, at: &At<'_>, base: &Path, out: &mut ErrorList) {
    match value {
        Value::Object(map) => {
            for (k, v) in map.iter().filter(|(_, v)| v.is_object() || v.is_array()) {
                match (schema.property(k), &schema.additional) {
                    (Some(p), _) => check(&p.schema, v, &at.field(k), base, out),
                    (None, Some(a)) => check(a, v, &at.key(k), base, out),
                    (None, None) => {}
                }
            }
        }
        Value::Array(list) => {
            match &schema.list {
                ListKind::Set => {
                    for i in repeated(list) {
                        out.push(Error::duplicate(&at.index(i).path(base), list[i].clone()));
                    }
                }
                ListKind::Map { keys } => map(keys, list, at, base, out),
                ListKind::Atomic => {}
            }
            let Some(items) = &schema.items else { return };
            for (i, v) in list.iter().enumerate() {
                check(items, v, &at.index(i), base, out);
            }
        }
        _ => {}
    }
}

/// The index of the first repetition of each value that occurs more than once.
fn repeated(list: &[Value]) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(list.len());
    let mut out = Vec::new();
    for (i, v) in list.iter().enumerate() {
        let times = seen.entry(v.to_string()).or_insert(0);
        *times += 1;
        if *times == 2 {
            out.push(i);
        }
    }
    out
}

fn map(keys: &[Box<str>], list: &[Value], at: &At<'_>, base: &Path, out: &mut ErrorList) {
    if let Some((i, v)) = list.iter().enumerate().find(|(_, v)| !v.is_object() && !v.is_null()) {
        let detail = "must be an object for an array of list-type map";
        out.push(Error::invalid(&at.index(i).path(base), v.clone(), detail));
        return;
    }
    let key_of = |v: &Value| -> Value {
        let present = keys.iter().filter_map(|k| Some((k.to_string(), v.get(&**k)?.clone())));
        Value::Object(present.collect::<Map<_, _>>())
    };
    let values: Vec<Value> = list.iter().map(key_of).collect();
    for i in repeated(&values) {
        out.push(Error::duplicate(&at.index(i).path(base), values[i].clone()));
    }
}

//! Merging an applied configuration into the live object.
//!
//! Nothing is removed: what the configuration does not mention stays as it is. Lists with identities keep the live
//! order unless the configuration has another.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::fieldset::element;
use crate::fieldset::node::{ListShape, Node, Shape};
use crate::schema::Schema;

/// `config` merged into `live`, both whole objects. `metadata.managedFields` is left out of the result.
///
/// # Errors
/// The text of a list item that cannot be identified.
pub(crate) fn objects(schema: &Schema, live: &Value, config: &Value) -> Result<Value, String> {
    let root = Node::root(schema);
    let (Shape::Map(shape), Value::Object(l), Value::Object(r)) = (root.shape(live), live, config) else {
        let mut out = config.clone();
        if let Some(meta) = out.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("managedFields");
        }
        return Ok(out);
    };
    let mut out = Map::new();
    for (key, left) in l {
        let node = shape.child_or_deduced(key).node;
        let merged = match (r.get(key), left) {
            (right, Value::Object(left)) if key == "metadata" => {
                let none = Map::new();
                let right = right.and_then(Value::as_object).unwrap_or(&none);
                Value::Object(fields(node, left, right, "managedFields")?)
            }
            (Some(right), _) => values(node, left, right)?,
            (None, _) => left.clone(),
        };
        out.insert(key.clone(), merged);
    }
    for (key, right) in r {
        if !l.contains_key(key) {
            out.insert(key.clone(), right.clone());
        }
    }
    Ok(Value::Object(out))
}

fn fields(
    node: Node<'_>,
    left: &Map<String, Value>,
    right: &Map<String, Value>,
    skip: &str,
) -> Result<Map<String, Value>, String> {
    let mut out = Map::new();
    let Shape::Map(shape) = node.static_shape().0 else { return Ok(right.clone()) };
    for (key, l) in left {
        if key == skip {
            continue;
        }
        let merged = match right.get(key) {
            Some(r) => values(shape.child_or_deduced(key).node, l, r)?,
            None => l.clone(),
        };
        out.insert(key.clone(), merged);
    }
    for (key, r) in right {
        if !left.contains_key(key) && key != skip {
            out.insert(key.clone(), r.clone());
        }
    }
    Ok(out)
}

fn values(node: Node<'_>, l: &Value, r: &Value) -> Result<Value, String> {
    if l == r {
        return Ok(l.clone());
    }
    match node.shape(r) {
        Shape::Scalar | Shape::Atomic => Ok(r.clone()),
        Shape::Map(shape) => {
            let none = Map::new();
            let (left, right) = (l.as_object().unwrap_or(&none), r.as_object().unwrap_or(&none));
            if left.is_empty() && right.is_empty() {
                return Ok(r.clone());
            }
            let mut out = Map::new();
            for (key, l) in left {
                let merged = match right.get(key) {
                    Some(r) => values(shape.child_or_deduced(key).node, l, r)?,
                    None => l.clone(),
                };
                out.insert(key.clone(), merged);
            }
            for (key, r) in right {
                if !left.contains_key(key) {
                    out.insert(key.clone(), r.clone());
                }
            }
            Ok(Value::Object(out))
        }
        Shape::List(list) => {
            let whole = r;
            let (l, r) = (elements(l), elements(r));
            if l.is_empty() && r.is_empty() {
                return Ok(whole.clone());
            }
            lists(&list, l, r).map(Value::Array)
        }
    }
}

fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// An associative list, indexed.
struct Indexed<'v> {
    keys: Vec<String>,
    /// The item of a key; null where the key occurs more than once.
    items: BTreeMap<String, &'v Value>,
}

fn index<'v>(list: &ListShape<'_>, values: &'v [Value], duplicates: bool) -> Result<Indexed<'v>, String> {
    static NULL: Value = Value::Null;
    let mut out = Indexed { keys: Vec::with_capacity(values.len()), items: BTreeMap::new() };
    for (i, value) in values.iter().enumerate() {
        let key = element::list_item(list, value).map_err(|e| format!("element {i}: {e}"))?;
        let twice = out.items.contains_key(&key);
        if twice && !duplicates {
            return Err(format!("duplicate entries for key {}", element::display(&key)));
        }
        out.items.insert(key.clone(), if twice { &NULL } else { value });
        out.keys.push(key);
    }
    Ok(out)
}

/// Merges two lists item by item. Items of the configuration come in its order; live-only items keep their place
/// relative to the live items around them.
fn lists(list: &ListShape<'_>, left: &[Value], right: &[Value]) -> Result<Vec<Value>, String> {
    let (l, r) = (index(list, left, true)?, index(list, right, false)?);
    let merge = |key: &str| -> Result<Value, String> {
        match (l.items.get(key), r.items.get(key)) {
            (Some(a), Some(b)) => values(list.items, a, b),
            (Some(a), None) => Ok((*a).clone()),
            (None, Some(b)) => Ok((*b).clone()),
            (None, None) => Ok(Value::Null),
        }
    };
    // The items in both lists, in the configuration's order: the order in which they must come out.
    let mut shared = r.keys.iter().filter(|k| l.items.contains_key(*k));
    let mut next_shared = shared.next();
    let mut merged: BTreeSet<&str> = BTreeSet::new();
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let (mut i, mut j) = (0, 0);
    while i < l.keys.len() || j < r.keys.len() {
        if let (Some(key), Some(other)) = (l.keys.get(i), r.keys.get(j)) {
            if key == other {
                merged.insert(other);
                out.push(merge(key)?);
                (i, j) = (i + 1, j + 1);
                next_shared = shared.next();
                continue;
            }
            if r.items.contains_key(key) && next_shared.is_some_and(|next| next != key) {
                // In both lists, but its turn comes later.
                i += 1;
                continue;
            }
        }
        if let Some(key) = l.keys.get(i) {
            if !r.items.contains_key(key) {
                out.push(left.get(i).cloned().unwrap_or_default());
                i += 1;
                continue;
            }
            if merged.contains(key.as_str()) {
                i += 1;
            }
        }
        if let Some(key) = r.keys.get(j) {
            merged.insert(key);
            out.push(merge(key)?);
            j += 1;
            if next_shared == Some(key) {
                next_shared = shared.next();
            }
        }
    }
    Ok(out)
}

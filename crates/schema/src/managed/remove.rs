//! Removing a set of fields and list items from a value.

use serde_json::{Map, Value};

use crate::fieldset::element::{self, SELF};
use crate::fieldset::node::{ListShape, MapShape, Node, Shape};
use crate::fieldset::{Tree, ops};
use crate::schema::Schema;

/// `value`, a whole object, without the members of `set`.
pub(crate) fn items(schema: &Schema, value: Value, set: &Tree) -> Value {
    if set.is_empty() { value } else { remove(Node::root(schema), value, set) }
}

/// Null where nothing is left, at every depth: what was emptied is not kept as an empty container (structured-merge-diff 6.4.2).
fn remove(node: Node<'_>, value: Value, set: &Tree) -> Value {
    match (node.shape(&value), value) {
        (Shape::Scalar, value) => value,
        (Shape::Map(shape), Value::Object(map)) => from_map(&shape, map, set),
        (Shape::List(shape), Value::Array(list)) => from_list(&shape, list, set),
        _ => Value::Null,
    }
}

fn from_map(shape: &MapShape<'_>, mut map: Map<String, Value>, set: &Tree) -> Value {
    for (key, subset) in set {
        let Some(name) = key.strip_prefix("f:") else { continue };
        let subset = ops::tree(subset);
        if ops::is_member(subset) {
            map.remove(name);
        } else if let Some(value) = map.get_mut(name) {
            *value = remove(shape.child_or_deduced(name).node, value.take(), subset);
        }
    }
    if map.is_empty() { Value::Null } else { Value::Object(map) }
}

fn from_list(shape: &ListShape<'_>, list: Vec<Value>, set: &Tree) -> Value {
    let mut out = Vec::with_capacity(list.len());
    for item in list {
        let subset = element::list_item(shape, &item).ok().and_then(|key| set.get(&key));
        match subset.map(ops::tree) {
            Some(subset) if ops::is_member(subset) => {}
            Some(subset) => {
                debug_assert!(!subset.contains_key(SELF), "a member was handled above");
                out.push(remove(shape.items, item, subset));
            }
            None => out.push(item),
        }
    }
    if out.is_empty() { Value::Null } else { Value::Array(out) }
}

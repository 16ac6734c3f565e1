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

/// Null where nothing is left.
fn remove(node: Node<'_>, value: Value, set: &Tree) -> Value {
    match (node.shape(&value), value) {
        (Shape::Scalar, value) => value,
        (Shape::Map(shape), Value::Object(map)) => from_map(&shape, map, set),
        (Shape::List(shape), Value::Array(list)) => from_list(&shape, list, set),
        _ => Value::Null,
    }
}

/// Removes from inside a value that stays: containers do not vanish when they become empty.
fn remove_inside(node: Node<'_>, value: Value, set: &Tree) -> Value {
    let empty = match &value {
        Value::Object(_) => Value::Object(Map::new()),
        Value::Array(_) => Value::Array(Vec::new()),
        _ => Value::Null,
    };
    match remove(node, value, set) {
        Value::Null => empty,
        left => left,
    }
}

fn from_map(shape: &MapShape<'_>, mut map: Map<String, Value>, set: &Tree) -> Value {
    let mut inside = false;
    for (key, subset) in set {
        let Some(name) = key.strip_prefix("f:") else { continue };
        let subset = ops::tree(subset);
        if ops::is_member(subset) {
            map.remove(name);
        } else if let Some(value) = map.get_mut(name) {
            inside = true;
            *value = remove_inside(shape.child_or_deduced(name).node, value.take(), subset);
        }
    }
    if map.is_empty() && !inside { Value::Null } else { Value::Object(map) }
}

fn from_list(shape: &ListShape<'_>, list: Vec<Value>, set: &Tree) -> Value {
    let mut inside = false;
    let mut out = Vec::with_capacity(list.len());
    for item in list {
        let subset = element::list_item(shape, &item).ok().and_then(|key| set.get(&key));
        match subset.map(ops::tree) {
            Some(subset) if ops::is_member(subset) => {}
            Some(subset) => {
                debug_assert!(!subset.contains_key(SELF), "a member was handled above");
                inside = true;
                out.push(remove_inside(shape.items, item, subset));
            }
            None => out.push(item),
        }
    }
    if out.is_empty() && !inside { Value::Null } else { Value::Array(out) }
}

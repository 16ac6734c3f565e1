//! Field sets of values: the fields that an apply configuration, an added value or a creation sets.

use serde_json::{Map, Value};

use super::Tree;
use super::element;
use super::node::{Child, ListShape, MapShape, Node, Shape};
use super::ops;
use crate::schema::{Omit, Property, Type};

/// Fields of `metadata` (besides apiVersion, kind and metadata itself) that no manager ever owns.
pub(crate) const UNTRACKED_META: [&str; 9] = [
    "clusterName",
    "creationTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Every leaf field and list item that `value` mentions; declared structs are not members themselves.
pub(crate) fn applied(node: Node<'_>, value: &Value) -> Tree {
    let mut out = Map::new();
    applied_below(node, value, &mut out);
    out
}

/// Collects the members below a value; true if the value itself is a leaf.
fn applied_below(node: Node<'_>, value: &Value, out: &mut Tree) -> bool {
    match node.shape(value) {
        Shape::Scalar | Shape::Atomic => true,
        Shape::List(list) => {
            applied_items(&list, value, out);
            false
        }
        Shape::Map(map) => {
            for (key, value) in value.as_object().into_iter().flatten() {
                let Child { node, declared } = map.child_or_deduced(key);
                let mut below = Map::new();
                let leaf = applied_below(node, value, &mut below);
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                if let Some(n) = ops::node(below, leaf || empty || !declared) {
                    out.insert(element::field(key), n);
                }
            }
            false
        }
    }
}

fn applied_items(list: &ListShape<'_>, value: &Value, out: &mut Tree) {
    for item in value.as_array().into_iter().flatten() {
        // Items without an identity have been refused before, or have no owner.
        let Ok(key) = element::list_item(list, item) else { continue };
        if let Some(old) = out.get_mut(&key) {
            // Duplicates are owned as a whole.
            *old = Value::Object(Map::new());
            continue;
        }
        let mut below = Map::new();
        applied_below(list.items, item, &mut below);
        if let Some(n) = ops::node(below, true) {
            out.insert(key, n);
        }
    }
}

/// The node of a value that is wholly new (or wholly removed): itself and everything below it.
///
/// # Errors
/// The text of a list item that cannot be identified.
pub(crate) fn added(node: Node<'_>, value: &Value) -> Result<Tree, String> {
    let mut out = match node.shape(value) {
        Shape::Scalar | Shape::Atomic => return Ok(Map::new()),
        Shape::List(list) => added_items(&list, value)?,
        Shape::Map(map) => {
            let mut out = Map::new();
            for (key, value) in value.as_object().into_iter().flatten() {
                let below = added(map.child_or_deduced(key).node, value)?;
                out.insert(element::field(key), Value::Object(below));
            }
            out
        }
    };
    if !out.is_empty() {
        out.insert(element::SELF.into(), Value::Object(Map::new()));
    }
    Ok(out)
}

fn added_items(list: &ListShape<'_>, value: &Value) -> Result<Tree, String> {
    let mut out = Map::new();
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        let key = element::list_item(list, item).map_err(|e| format!("element {i}: {e}"))?;
        if out.contains_key(&key) {
            out.insert(key, Value::Object(Map::new()));
        } else {
            let below = added(list.items, item)?;
            out.insert(key, Value::Object(below));
        }
    }
    Ok(out)
}

/// What creating `object` writes: everything that differs from the empty object of its type, without the metadata
/// that no manager owns. Fields that Go always writes (structs, fields without `omitempty`) are there before, hence are no
/// members themselves.
///
/// # Errors
/// The text of a list item that cannot be identified.
pub(crate) fn created(node: Node<'_>, object: &Value) -> Result<Tree, String> {
    let mut out = Map::new();
    let (Shape::Map(shape), Value::Object(fields)) = (node.shape(object), object) else { return Ok(out) };
    for (key, value) in fields {
        match key.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                let child = shape.child_or_deduced(key);
                let (Shape::Map(shape), Value::Object(meta)) = (child.node.shape(value), value) else {
                    continue;
                };
                let mut below = Map::new();
                for (key, value) in meta {
                    if !UNTRACKED_META.contains(&key.as_str()) {
                        created_field(&shape, key, value, &mut below)?;
                    }
                }
                if !below.is_empty() {
                    out.insert(element::field(key), Value::Object(below));
                }
            }
            _ => created_field(&shape, key, value, &mut out)?,
        }
    }
    Ok(out)
}

/// What a field holds in the empty object of a Go type.
enum Zero {
    /// It is not there.
    Absent,
    /// `null`: a nil pointer, list or map, or a zero time.
    Null,
    /// A struct with zero in all fields.
    Struct,
    /// Any other zero.
    Scalar(Value),
}

fn zero_of(property: &Property) -> Zero {
    let schema = property.schema.get();
    let present = match property.omit {
        Omit::Never => true,
        Omit::Zero => false,
        Omit::Empty => {
            !property.pointer
                && match schema.ty {
                    Type::Object => schema.properties.is_some(),
                    // Structs in Go, whatever they look like in JSON.
                    Type::Time | Type::MicroTime | Type::Quantity | Type::IntOrString | Type::Duration => {
                        true
                    }
                    _ => false,
                }
        }
    };
    if !present {
        return Zero::Absent;
    }
    if property.pointer {
        return Zero::Null;
    }
    match schema.ty {
        Type::Object if schema.properties.is_some() => Zero::Struct,
        Type::String => Zero::Scalar(Value::String(String::new())),
        Type::Integer | Type::Number | Type::IntOrString => Zero::Scalar(Value::from(0)),
        Type::Boolean => Zero::Scalar(Value::Bool(false)),
        Type::Quantity => Zero::Scalar(Value::from("0")),
        Type::Duration => Zero::Scalar(Value::from("0s")),
        _ => Zero::Null,
    }
}

fn created_field(shape: &MapShape<'_>, key: &str, value: &Value, out: &mut Tree) -> Result<(), String> {
    let node = shape.child_or_deduced(key).node;
    let below = match shape.property(key).map_or(Zero::Absent, zero_of) {
        Zero::Absent => Some(added(node, value)?),
        Zero::Scalar(zero) => (*value != zero).then(Map::new),
        Zero::Null if value.is_null() => None,
        Zero::Null => {
            let mut below = added(node, value)?;
            // The field was there (null); only what is in it is new.
            below.remove(element::SELF);
            Some(below)
        }
        Zero::Struct => match (node.shape(value), value) {
            (Shape::Map(shape), Value::Object(fields)) => {
                let mut below = Map::new();
                for (key, value) in fields {
                    created_field(&shape, key, value, &mut below)?;
                }
                (!below.is_empty()).then_some(below)
            }
            (_, Value::Object(fields)) => (!fields.is_empty()).then(Map::new),
            _ => None,
        },
    };
    if let Some(below) = below {
        out.insert(element::field(key), Value::Object(below));
    }
    Ok(())
}

//! Structured-merge-diff's check that a value fits its schema, with upstream's texts. Only applied configurations and
//! last-applied annotations go through it: everything else has been decoded strictly before.

use std::collections::BTreeSet;

use serde_json::Value;

use super::value::{go_plain, go_syntax};
use crate::fieldset::element;
use crate::fieldset::node::{ListShape, MapShape, Node, ScalarKind, Shape};
use crate::schema::{Schema, Type};
use kaji_meta::text::go_type;

/// Checks a whole object.
///
/// # Errors
/// Upstream's text of everything that does not fit.
pub(crate) fn object(schema: &Schema, value: &Value) -> Result<(), String> {
    let mut errors = Vec::new();
    check(Node::root(schema), value, &mut String::new(), &mut errors);
    match &errors[..] {
        [] => Ok(()),
        [only] => Err(only.clone()),
        many => Err(format!("errors:\n  {}", many.join("\n  "))),
    }
}

fn check(node: Node<'_>, value: &Value, path: &mut String, errors: &mut Vec<String>) {
    if value.is_null() {
        return;
    }
    let mut report = |text: String| {
        errors.push(if path.is_empty() { text } else { format!("{path}: {text}") });
    };
    match expected(node) {
        Expected::Map if !value.is_object() => report(format!("expected map, got &{{{}}}", go_plain(value))),
        Expected::List if !value.is_array() => report(format!("expected list, got &{{{}}}", go_plain(value))),
        Expected::Scalar(kind) => {
            if let Some(text) = scalar(kind, value) {
                report(text);
            }
        }
        _ => match (node.shape(value), value) {
            (Shape::Map(map), Value::Object(_)) => fields(&map, value, path, errors),
            (Shape::List(list), Value::Array(_)) => items(&list, value, path, errors),
            (Shape::Atomic, _) => inside_atomic(node, value, path, errors),
            _ => {}
        },
    }
}

enum Expected {
    Map,
    List,
    Scalar(ScalarKind),
    Anything,
}

fn expected(node: Node<'_>) -> Expected {
    let Node::Typed { schema, .. } = node else { return Expected::Anything };
    match schema.ty {
        Type::Object => Expected::Map,
        Type::Array => Expected::List,
        Type::Any | Type::SchemaOr => Expected::Anything,
        _ => node.scalar_kind().map_or(Expected::Anything, Expected::Scalar),
    }
}

fn scalar(kind: ScalarKind, value: &Value) -> Option<String> {
    match (kind, value) {
        (ScalarKind::Numeric, Value::Number(_))
        | (ScalarKind::String, Value::String(_))
        | (ScalarKind::Boolean, Value::Bool(_))
        | (ScalarKind::Any, Value::Number(_) | Value::String(_) | Value::Bool(_)) => None,
        (ScalarKind::Numeric, _) => Some(format!("expected numeric (int or float), got {}", go_type(value))),
        (ScalarKind::String, _) => {
            Some(format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_syntax(value)))
        }
        (ScalarKind::Boolean, _) => Some(format!("expected boolean, got &{{{}}}", go_plain(value))),
        (ScalarKind::Any, _) => Some(format!("expected any scalar, got &{{{}}}", go_plain(value))),
    }
}

fn below(element: &str, path: &mut String, f: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push_str(&element::display(element));
    f(path);
    path.truncate(length);
}

fn fields(map: &MapShape<'_>, value: &Value, path: &mut String, errors: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let mut undeclared = false;
        below(&element::field(key), path, |path| match map.child(key) {
            Some(child) => check(child.node, value, path, errors),
            None => {
                errors.push(format!("{path}: field not declared in schema"));
                undeclared = true;
            }
        });
        // Upstream stops at the first undeclared field of a map.
        if undeclared {
            return;
        }
    }
}

fn items(list: &ListShape<'_>, value: &Value, path: &mut String, errors: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        let key = match element::list_item(list, item) {
            Ok(key) => key,
            Err(text) => {
                let text = format!("element {i}: {text}");
                errors.push(if path.is_empty() { text } else { format!("{path}: {text}") });
                return;
            }
        };
        if seen.contains(&key) {
            let text = format!("duplicate entries for key {}", element::display(&key));
            errors.push(if path.is_empty() { text } else { format!("{path}: {text}") });
        }
        below(&key, path, |path| check(list.items, item, path, errors));
        seen.insert(key);
    }
}

/// Atomic values are checked too, by index where they are lists.
fn inside_atomic(node: Node<'_>, value: &Value, path: &mut String, errors: &mut Vec<String>) {
    let Some(children) = node.inside() else { return };
    match value {
        Value::Object(_) => {
            if let Shape::Map(map) = children {
                fields(&map, value, path, errors);
            }
        }
        Value::Array(list) => {
            if let Shape::List(shape) = children {
                for (i, item) in list.iter().enumerate() {
                    below(&format!("i:{i}"), path, |path| check(shape.items, item, path, errors));
                }
            }
        }
        _ => {}
    }
}

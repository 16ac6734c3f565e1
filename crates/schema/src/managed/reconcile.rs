//! Entries recorded before a schema changed a field between granular and atomic.

use std::collections::HashMap;

use kaji_meta::{Late, Work};
use serde_json::{Map, Value};

use super::entry::Entry;
use super::{Versions, schema_at};
use crate::fieldset::element::SELF;
use crate::fieldset::node::{Node, Shape};
use crate::fieldset::{Tree, ops};
use crate::schema::SchemaRef;

/// Brings every entry in line with the schema of its version. Entries of versions that no longer exist are
/// dropped by the conversion.
///
/// # Errors
/// When the time is over.
pub(crate) fn entries(
    schema: &SchemaRef,
    live: &Value,
    entries: &mut [Entry],
    (versions, api_version): (&dyn Versions, &str),
    work: &Work<'_>,
) -> Result<(), Late> {
    let mut others: HashMap<String, SchemaRef> = HashMap::new();
    for entry in entries {
        work.step(1 + entry.fields().len())?;
        let schema = if entry.api_version() == api_version {
            schema
        } else {
            let version = entry.api_version().to_owned();
            others.entry(version).or_insert_with(|| schema_at(versions, live, entry.api_version(), schema))
        };
        if let Some(set) = fields(Node::root(schema.get()), entry.fields()) {
            *entry.fields_mut() = set;
        }
    }
    Ok(())
}

/// Managers of fields inside of what has become atomic own the whole of it, and nothing inside. `None`: no change.
pub(crate) fn fields(root: Node<'_>, set: &Tree) -> Option<Tree> {
    let mut whole = Map::new();
    walk(root, set, false, &mut Vec::new(), &mut whole);
    if whole.is_empty() {
        return None;
    }
    let mut out = set.clone();
    ops::subtract_recursively(&mut out, &whole);
    ops::union(&mut out, &whole);
    Some(out)
}

fn walk<'a>(node: Node<'_>, set: &'a Tree, leaf: bool, path: &mut Vec<&'a str>, whole: &mut Tree) {
    let (shape, open) = node.static_shape();
    match shape {
        Shape::Scalar => {}
        // What is undeclared has no such tags.
        _ if open => {}
        Shape::Atomic => {
            if !leaf && ops::has_children(set) {
                ops::insert(whole, path.iter().copied());
            }
        }
        Shape::Map(map) => {
            for (key, below) in set.iter().filter(|(k, _)| *k != SELF) {
                let Some(name) = key.strip_prefix("f:") else { continue };
                if let Some(child) = map.child(name) {
                    descend(child.node, key, below, path, whole);
                }
            }
        }
        Shape::List(list) => {
            for (key, below) in set.iter().filter(|(k, _)| *k != SELF) {
                descend(list.items, key, below, path, whole);
            }
        }
    }
}

fn descend<'a>(node: Node<'_>, key: &'a str, below: &'a Value, path: &mut Vec<&'a str>, whole: &mut Tree) {
    let below = ops::tree(below);
    path.push(key);
    walk(node, below, below.is_empty(), path, whole);
    path.pop();
}

//! What changed between two versions of an object: the fields added, modified and removed.
//!
//! Equal subtrees are skipped before anything is looked up in the schema, so that the cost beyond one deep comparison
//! grows with the change, not with the object.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::value::equal;
use crate::fieldset::from_value::{UNTRACKED_META, added};
use crate::fieldset::node::{ListShape, MapShape, Shape};
use crate::fieldset::{Node, Tree, element, ops};
use crate::schema::Schema;

/// The difference of two objects. No field is in more than one of the sets.
#[derive(Default)]
pub(crate) struct Comparison {
    pub added: Tree,
    pub modified: Tree,
    pub removed: Tree,
}

impl Comparison {
    pub(crate) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

/// Compares two whole objects, leaving out fields that no manager owns (apiVersion, kind, names, versions, …).
///
/// # Errors
/// The text of a list item that cannot be identified.
pub(crate) fn compare_objects(schema: &Schema, live: &Value, new: &Value) -> Result<Comparison, String> {
    compare(schema, live, new, true)
}

/// Compares two whole objects, everything included.
///
/// # Errors
/// The text of a list item that cannot be identified.
pub(crate) fn compare_fully(schema: &Schema, a: &Value, b: &Value) -> Result<Comparison, String> {
    compare(schema, a, b, false)
}

fn compare(schema: &Schema, a: &Value, b: &Value, skip: bool) -> Result<Comparison, String> {
    let (none, null) = (Map::new(), Value::Null);
    let mut walker = Walker { path: Vec::new(), out: Comparison::default() };
    let root = Node::root(schema);
    match (root.shape(a), a, b) {
        (Shape::Map(shape), Value::Object(a), Value::Object(b)) if skip => {
            walker.fields(&shape, a, b, &["apiVersion", "kind", "metadata"])?;
            let (ma, mb) = (object(a.get("metadata"), &none), object(b.get("metadata"), &none));
            let child = shape.child_or_deduced("metadata");
            if let Shape::Map(shape) = child.node.shape(&null) {
                walker.path.push(Step::Field("metadata"));
                walker.fields(&shape, ma, mb, &UNTRACKED_META)?;
                walker.path.pop();
            }
        }
        _ => walker.both(root, a, b)?,
    }
    Ok(walker.out)
}

fn object<'v>(v: Option<&'v Value>, none: &'v Map<String, Value>) -> &'v Map<String, Value> {
    v.and_then(Value::as_object).unwrap_or(none)
}

enum Step<'v> {
    Field(&'v str),
    Item(String),
}

struct Walker<'v> {
    path: Vec<Step<'v>>,
    out: Comparison,
}

#[derive(Clone, Copy)]
enum Side {
    Added,
    Modified,
    Removed,
}

/// The items of a list that share one identity.
#[derive(Default)]
struct Twins<'v> {
    left: Vec<&'v Value>,
    right: Vec<&'v Value>,
}

impl<'v> Walker<'v> {
    fn record(&mut self, side: Side, subtree: Tree) {
        let path: Vec<String> = self
            .path
            .iter()
            .map(|step| match step {
                Step::Field(name) => element::field(name),
                Step::Item(key) => key.clone(),
            })
            .collect();
        let set = match side {
            Side::Added => &mut self.out.added,
            Side::Modified => &mut self.out.modified,
            Side::Removed => &mut self.out.removed,
        };
        ops::attach(set, path.iter().map(String::as_str), subtree);
    }

    fn one(&mut self, side: Side, node: Node<'_>, value: &Value) -> Result<(), String> {
        let subtree = added(node, value)?;
        self.record(side, subtree);
        Ok(())
    }

    fn leaf(&mut self, a: &Value, b: &Value) {
        if !equal(a, b) {
            self.record(Side::Modified, Map::new());
        }
    }

    fn both(&mut self, node: Node<'_>, a: &'v Value, b: &'v Value) -> Result<(), String> {
        if a == b {
            return Ok(());
        }
        let (left, right) = (node.shape(a), node.shape(b));
        // An open type may change its shape: both schemas then apply.
        if std::mem::discriminant(&left) != std::mem::discriminant(&right) {
            self.shaped(&left, a, b)?;
        }
        self.shaped(&right, a, b)
    }

    fn shaped(&mut self, shape: &Shape<'_>, a: &'v Value, b: &'v Value) -> Result<(), String> {
        match shape {
            Shape::Scalar | Shape::Atomic => self.leaf(a, b),
            Shape::Map(shape) => {
                let fields = |v: &'v Value| v.as_object().filter(|m| !m.is_empty());
                match (fields(a), fields(b)) {
                    // Both empty or null: a leaf, so that the two differ.
                    (None, None) => self.leaf(a, b),
                    (Some(a), Some(b)) => self.fields(shape, a, b, &[])?,
                    (Some(a), None) => self.all(Side::Removed, shape, a)?,
                    (None, Some(b)) => self.all(Side::Added, shape, b)?,
                }
            }
            Shape::List(list) => {
                let items = |v: &'v Value| v.as_array().map_or(&[][..], Vec::as_slice);
                if items(a).is_empty() && items(b).is_empty() {
                    self.leaf(a, b);
                } else {
                    self.items(list, items(a), items(b))?;
                }
            }
        }
        Ok(())
    }

    fn all(&mut self, side: Side, shape: &MapShape<'_>, map: &'v Map<String, Value>) -> Result<(), String> {
        for (key, value) in map {
            self.path.push(Step::Field(key));
            self.one(side, shape.child_or_deduced(key).node, value)?;
            self.path.pop();
        }
        Ok(())
    }

    fn fields(
        &mut self,
        shape: &MapShape<'_>,
        a: &'v Map<String, Value>,
        b: &'v Map<String, Value>,
        skip: &[&str],
    ) -> Result<(), String> {
        for (key, left) in a {
            let right = b.get(key);
            if right == Some(left) || skip.contains(&key.as_str()) {
                continue;
            }
            let node = shape.child_or_deduced(key).node;
            self.path.push(Step::Field(key));
            match right {
                Some(right) => self.both(node, left, right)?,
                None => self.one(Side::Removed, node, left)?,
            }
            self.path.pop();
        }
        for (key, right) in b {
            if !a.contains_key(key) && !skip.contains(&key.as_str()) {
                self.path.push(Step::Field(key));
                self.one(Side::Added, shape.child_or_deduced(key).node, right)?;
                self.path.pop();
            }
        }
        Ok(())
    }

    fn items(&mut self, list: &ListShape<'_>, a: &'v [Value], b: &'v [Value]) -> Result<(), String> {
        let mut twins: BTreeMap<String, Twins<'v>> = BTreeMap::new();
        let key = |i: usize, v: &Value| element::list_item(list, v).map_err(|e| format!("element {i}: {e}"));
        for (i, item) in a.iter().enumerate() {
            twins.entry(key(i, item)?).or_default().left.push(item);
        }
        for (i, item) in b.iter().enumerate() {
            twins.entry(key(i, item)?).or_default().right.push(item);
        }
        for (key, Twins { left, right }) in twins {
            self.path.push(Step::Item(key));
            match (&left[..], &right[..]) {
                (&[a], &[b]) => self.both(list.items, a, b)?,
                (&[a], []) => self.one(Side::Removed, list.items, a)?,
                ([], &[b]) => self.one(Side::Added, list.items, b)?,
                // Duplicates count as one leaf.
                ([_, _, ..], [_, _, ..]) => {
                    if left.len() != right.len() || !left.iter().zip(&right).all(|(a, b)| equal(a, b)) {
                        self.record(Side::Modified, Map::new());
                    }
                }
                ([_, _, ..], _) => {
                    if let Some(&item) = right.first() {
                        self.one(Side::Added, list.items, item)?;
                    }
                    self.record(Side::Removed, Map::new());
                }
                (_, [_, _, ..]) => {
                    if let Some(&item) = left.first() {
                        self.one(Side::Removed, list.items, item)?;
                    }
                    self.record(Side::Added, Map::new());
                }
                ([], []) => {}
            }
            self.path.pop();
        }
        Ok(())
    }
}

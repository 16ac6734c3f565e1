//! Sets of field paths, as structured-merge-diff and `metadata.managedFields` have them.
//!
//! A [`FieldSet`] *is* its FieldsV1 JSON tree, so that a stored set is used without being decoded: each key is a path
//! element in canonical spelling (`f:name`, `k:{"a":1,"b":"x"}` with sorted keys, `v:"x"`, `i:0`), each value the
//! subtree below it. Invariants, which every function here keeps and [`FieldSet::from_fields_v1`] establishes:
//! * a node `{}` is a member without children; a node with children is a member exactly if it also has the key `"."`;
//! * no node exists that is neither a member nor has children, and `"."` never stands alone or at the root;
//! * two spellings of one element (`1` and `1.0`, other key order, other escapes) never occur.
//!
//! Because of the last one, comparing elements is comparing strings.

use serde_json::{Map, Value};

use crate::schema::Schema;

pub(crate) mod element;
pub(crate) mod from_value;
pub(crate) mod node;
pub(crate) mod ops;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use element::compare as compare_elements;
pub(crate) use node::Node;

/// A FieldsV1 subtree; see the module text for its invariants.
pub(crate) type Tree = Map<String, Value>;

/// A set of field paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSet(pub(crate) Tree);

impl FieldSet {
    /// The empty set.
    pub fn new() -> FieldSet {
        FieldSet::default()
    }

    /// A set of paths of plain field names, such as `&[&["status"], &["metadata", "labels"]]`.
    pub fn from_paths(paths: &[&[&str]]) -> FieldSet {
        let mut set = FieldSet::new();
        for path in paths {
            set.insert(path);
        }
        set
    }

    /// Adds the field reached by these plain names. Its parents do not become members; an empty path adds nothing.
    pub fn insert(&mut self, names: &[&str]) {
        let elements: Vec<String> = names.iter().map(|n| element::field(n)).collect();
        ops::insert(&mut self.0, elements.iter().map(String::as_str));
    }

    /// True if the field reached by these plain names is a member.
    pub fn contains(&self, names: &[&str]) -> bool {
        let elements: Vec<String> = names.iter().map(|n| element::field(n)).collect();
        ops::contains(&self.0, elements.iter().map(String::as_str))
    }

    /// Reads FieldsV1 JSON from anywhere, in any spelling. Elements of unknown kinds are dropped, as upstream does.
    ///
    /// # Errors
    /// The text of the first element or node that is malformed.
    pub fn from_fields_v1(json: &Value) -> Result<FieldSet, String> {
        ops::parse(json).map(FieldSet)
    }

    /// The FieldsV1 JSON.
    pub fn to_fields_v1(&self) -> Value {
        Value::Object(self.0.clone())
    }

    /// The FieldsV1 JSON, without a copy.
    pub fn into_fields_v1(self) -> Value {
        Value::Object(self.0)
    }

    /// Every leaf field and list item of `value`, which server-side apply makes the applier's own: what
    /// structured-merge-diff calls `ToFieldSet`. `schema` describes a whole object.
    pub fn from_value(schema: &Schema, value: &Value) -> FieldSet {
        FieldSet(from_value::applied(Node::root(schema), value))
    }

    /// True if there is no member.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        ops::len(&self.0)
    }

    /// Members of either set.
    #[must_use]
    pub fn union(&self, other: &FieldSet) -> FieldSet {
        let mut out = self.clone();
        ops::union(&mut out.0, &other.0);
        out
    }

    /// Members of both sets.
    #[must_use]
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        FieldSet(ops::intersection(&self.0, &other.0))
    }

    /// Members of this set that are not members of `other`. Removing a parent keeps its children.
    #[must_use]
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        let mut out = self.clone();
        ops::subtract(&mut out.0, &other.0);
        out
    }

    /// Like [`FieldSet::difference`], but a member of `other` removes everything below it, too.
    #[must_use]
    pub fn recursive_difference(&self, other: &FieldSet) -> FieldSet {
        let mut out = self.clone();
        ops::subtract_recursively(&mut out.0, &other.0);
        out
    }

    /// Every member as upstream prints it (`.spec.containers[name="a"].image`), members of a level before their
    /// children, in upstream's order.
    pub fn paths(&self) -> Vec<String> {
        ops::members(&self.0).iter().map(|path| ops::display(path)).collect()
    }
}

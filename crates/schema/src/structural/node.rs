//! Reading `JSONSchemaProps` from JSON. Go's zero values (`""`, `false`, empty lists and maps) mean "not given".

use serde_json::{Map, Value};

/// One schema object.
#[derive(Clone, Copy)]
pub(super) struct Node<'a>(pub(super) &'a Map<String, Value>);

/// How a child schema hangs below its parent.
#[derive(Clone, Copy)]
pub(super) enum Edge<'a> {
    Property(&'a str),
    Additional,
    Items,
    ItemsAt(usize),
    Clause(&'static str, usize),
    Not,
}

impl<'a> Node<'a> {
    /// `value` as a schema; none if it is no object.
    pub(super) fn of(value: &'a Value) -> Option<Node<'a>> {
        value.as_object().map(Node)
    }

    /// A value that is given: not null.
    pub(super) fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    pub(super) fn flag(self, key: &str) -> bool {
        self.get(key) == Some(&Value::Bool(true))
    }

    /// A string; "" if it is not given.
    pub(super) fn text(self, key: &str) -> &'a str {
        self.get(key).and_then(Value::as_str).unwrap_or("")
    }

    /// "" if no type is given.
    pub(super) fn ty(self) -> &'a str {
        self.text("type")
    }

    pub(super) fn list(self, key: &str) -> &'a [Value] {
        self.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(super) fn strings(self, key: &str) -> impl Iterator<Item = &'a str> {
        self.list(key).iter().filter_map(Value::as_str)
    }

    pub(super) fn map(self, key: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let map = self.get(key).and_then(Value::as_object);
        map.into_iter().flatten().map(|(k, v)| (k.as_str(), v))
    }

    pub(super) fn property(self, name: &str) -> Option<Node<'a>> {
        Node::of(self.get("properties")?.get(name)?)
    }

    /// `items`, if it is one schema.
    pub(super) fn items(self) -> Option<Node<'a>> {
        Node::of(self.get("items")?)
    }

    /// `additionalProperties`, if it is a schema.
    pub(super) fn additional(self) -> Option<Node<'a>> {
        Node::of(self.get("additionalProperties")?)
    }

    pub(super) fn clauses(self, key: &str) -> impl Iterator<Item = (usize, Node<'a>)> {
        self.list(key).iter().enumerate().filter_map(|(i, v)| Some((i, Node::of(v)?)))
    }

    /// All schemas directly below this one.
    pub(super) fn children(self) -> impl Iterator<Item = (Edge<'a>, &'a Value)> {
        let clauses = ["allOf", "oneOf", "anyOf"]
            .into_iter()
            .flat_map(move |k| self.list(k).iter().enumerate().map(move |(i, v)| (Edge::Clause(k, i), v)));
        let items = self.get("items");
        let many = items.and_then(Value::as_array).into_iter().flatten().enumerate();
        let one = [
            (Edge::Additional, self.get("additionalProperties")),
            (Edge::Items, items.filter(|i| !i.is_array())),
            (Edge::Not, self.get("not")),
        ];
        self.map("properties")
            .map(|(k, v)| (Edge::Property(k), v))
            .chain(one.into_iter().filter_map(|(e, v)| Some((e, v?))))
            .chain(clauses)
            .chain(many.map(|(i, v)| (Edge::ItemsAt(i), v)))
            .filter(|(_, v)| v.is_object())
    }
}

//! What makes a schema structural: every value has a type, given once, outside of junctors.
//!
//! Source: the structural schema rules of the CustomResourceDefinition documentation (KEP-1979).

use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::json;

use crate::validate::PatternBudget;

use super::Node;

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// All violations, sorted by text.
pub(super) fn check(root: Node<'_>, path: &Path, patterns: &mut PatternBudget) -> ErrorList {
    let mut c = Checker { errors: ErrorList::new(), patterns };
    c.structure(root, Level::Root, path);
    c.complete_clauses(root, Some(root), path, path);
    c.errors.sort_by_cached_key(ToString::to_string);
    c.errors
}

struct Checker<'p> {
    errors: ErrorList,
    patterns: &'p mut PatternBudget,
}

impl Checker<'_> {
    fn structure(&mut self, n: Node<'_>, level: Level, path: &Path) {
        if n.ty() == "array" && n.items().is_none() {
            self.errors.push(Error::required(&path.child("items"), "must be specified"));
        }
        if let Some(items) = n.items() {
            self.structure(items, Level::Item, &path.child("items"));
        }
        for (k, v) in n.map("properties") {
            if let Some(p) = Node::of(v) {
                self.structure(p, Level::Field, &path.child("properties").key(k));
            }
        }
        if n.get("additionalProperties").is_some() {
            let path = path.child("additionalProperties");
            if level == Level::Root {
                self.errors.push(Error::forbidden(&path, "must not be used at the root"));
            }
            if let Some(a) = n.additional() {
                self.structure(a, Level::Field, &path);
            }
        }
        self.extensions(n, path);
        let first_all_of = n.clauses("allOf").next().is_some_and(|(_, c)| int_or_string_any_of(c));
        self.clauses(n, int_or_string_any_of(n), first_all_of, path);
        self.own_type(n, level, path);
        self.meta(n, level, path);
    }

    fn extensions(&mut self, n: Node<'_>, path: &Path) {
        if !n.flag("x-kubernetes-int-or-string") {
            return;
        }
        for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if n.flag(key) {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                self.errors.push(Error::invalid(&path.child(key), true, detail));
            }
        }
    }

    fn own_type(&mut self, n: Node<'_>, level: Level, path: &Path) {
        let at = path.child("type");
        let embedded = n.flag("x-kubernetes-embedded-resource");
        if embedded && n.ty() != "object" {
            let detail = "must be object if x-kubernetes-embedded-resource is true";
            self.errors.push(match n.ty() {
                "" => Error::required(&at, detail),
                t => Error::invalid(&at, t, detail),
            });
        } else if n.ty().is_empty()
            && !n.flag("x-kubernetes-int-or-string")
            && !n.flag("x-kubernetes-preserve-unknown-fields")
        {
            let detail = match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            };
            self.errors.push(Error::required(&at, detail));
        }
        if embedded && n.get("additionalProperties").is_some() {
            let detail = "must not be used if x-kubernetes-embedded-resource is set";
            self.errors.push(Error::forbidden(&path.child("additionalProperties"), detail));
        }
        if level == Level::Root && !n.ty().is_empty() && n.ty() != "object" {
            self.errors.push(Error::invalid(&at, n.ty(), "must be object at the root"));
        }
    }

    /// Fields that every object has: their schemas may not contradict what they are.
    fn meta(&mut self, n: Node<'_>, level: Level, path: &Path) {
        let embedded = n.flag("x-kubernetes-embedded-resource");
        let of_resource = level == Level::Root || embedded;
        let properties = path.child("properties");
        for name in ["kind", "apiVersion"] {
            if let Some(p) = n.property(name).filter(|p| of_resource && p.ty() != "string") {
                self.errors.push(Error::invalid(
                    &properties.key(name).child("type"),
                    p.ty(),
                    "must be string",
                ));
            }
        }
        if let Some(metadata) = n.property("metadata") {
            let at = properties.key("metadata");
            if of_resource && metadata.ty() != "object" {
                self.errors.push(Error::invalid(&at.child("type"), metadata.ty(), "must be object"));
            }
            let named = |k: &str| k == "name" || k == "generateName";
            let only_names = metadata.map("properties").all(|(k, _)| named(k));
            let given = |v: &serde_json::Value| {
                !matches!(v, serde_json::Value::Null | serde_json::Value::Bool(false))
            };
            let only_type = metadata.0.iter().all(|(k, v)| {
                !given(v) || matches!(k.as_str(), "type" | "default") || k == "properties" && only_names
            });
            if level == Level::Root && !only_type {
                let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
                self.errors.push(Error::forbidden(&at, detail));
            }
        }
        let unknown = n.flag("x-kubernetes-preserve-unknown-fields");
        if embedded && !unknown && n.map("properties").next().is_none() {
            let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                          x-kubernetes-preserve-unknown-fields";
            self.errors.push(Error::required(&properties, detail));
        }
    }

    fn clauses(&mut self, n: Node<'_>, skip_any_of: bool, skip_first_all_of: bool, path: &Path) {
        if !skip_any_of {
            for (i, c) in n.clauses("anyOf") {
                self.nested(c, false, &path.child("anyOf").index(i));
            }
        }
        for (i, c) in n.clauses("allOf") {
            self.nested(c, skip_first_all_of && i == 0, &path.child("allOf").index(i));
        }
        for (i, c) in n.clauses("oneOf") {
            self.nested(c, false, &path.child("oneOf").index(i));
        }
        if let Some(not) = n.get("not").and_then(Node::of) {
            self.nested(not, false, &path.child("not"));
        }
        let pattern = n.text("pattern");
        if !pattern.is_empty()
            && let Err(e) = self.patterns.check(pattern)
        {
            let detail = format!("must be a valid regular expression, but isn't: {e}");
            self.errors.push(Error::invalid(&path.child("pattern"), pattern, detail));
        }
    }

    /// A schema inside a junctor: it restricts values and gives no structure.
    fn nested(&mut self, n: Node<'_>, skip_any_of: bool, path: &Path) {
        self.clauses(n, skip_any_of, false, path);
        if let Some(items) = n.items() {
            self.nested(items, false, &path.child("items"));
        }
        for (k, v) in n.map("properties") {
            if let Some(p) = Node::of(v) {
                self.nested(p, false, &path.child("properties").key(k));
            }
        }
        let additional = n.get("additionalProperties").is_some_and(|a| *a != json!(false));
        let forbidden = [
            ("type", !n.ty().is_empty(), "must be empty to be structural"),
            ("additionalProperties", additional, "must be undefined to be structural"),
            ("default", n.get("default").is_some(), "must be undefined to be structural"),
            ("title", !n.text("title").is_empty(), "must be empty to be structural"),
            ("description", !n.text("description").is_empty(), "must be empty to be structural"),
            ("nullable", n.flag("nullable"), "must be false to be structural"),
            (
                "x-kubernetes-preserve-unknown-fields",
                n.flag("x-kubernetes-preserve-unknown-fields"),
                "must be false to be structural",
            ),
            (
                "x-kubernetes-embedded-resource",
                n.flag("x-kubernetes-embedded-resource"),
                "must be false to be structural",
            ),
            (
                "x-kubernetes-int-or-string",
                n.flag("x-kubernetes-int-or-string"),
                "must be false to be structural",
            ),
            (
                "x-kubernetes-list-map-keys",
                !n.list("x-kubernetes-list-map-keys").is_empty(),
                "must be empty to be structural",
            ),
            (
                "x-kubernetes-list-type",
                n.get("x-kubernetes-list-type").is_some(),
                "must be undefined to be structural",
            ),
            (
                "x-kubernetes-map-type",
                n.get("x-kubernetes-map-type").is_some(),
                "must be undefined to be structural",
            ),
            (
                "x-kubernetes-validations",
                !n.list("x-kubernetes-validations").is_empty(),
                "must be empty to be structural",
            ),
        ];
        for (key, found, detail) in forbidden {
            if found {
                self.errors.push(Error::forbidden(&path.child(key), detail));
            }
        }
        if n.property("metadata").is_some() {
            let at = path.child("properties").key("metadata");
            self.errors.push(Error::forbidden(&at, "must not be specified in a nested context"));
        }
    }

    /// Everything that the clauses of `n` mention must be in the structure `s`.
    fn complete_clauses(&mut self, n: Node<'_>, s: Option<Node<'_>>, s_path: &Path, path: &Path) {
        if let Some(not) = n.get("not").and_then(Node::of) {
            self.complete(not, s, s_path, &path.child("not"));
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            for (i, c) in n.clauses(key) {
                self.complete(c, s, s_path, &path.child(key).index(i));
            }
        }
    }

    fn complete(&mut self, n: Node<'_>, s: Option<Node<'_>>, s_path: &Path, path: &Path) {
        let Some(s) = s else {
            self.errors.push(Error::required(s_path, format!("because it is defined in {path}")));
            return;
        };
        self.complete_clauses(n, Some(s), s_path, path);
        if let Some(items) = n.items() {
            self.complete(items, s.items(), &s_path.child("items"), &path.child("items"));
        }
        for (k, v) in n.map("properties") {
            let Some(p) = Node::of(v) else { continue };
            let (s_path, path) = (s_path.child("properties").key(k), path.child("properties").key(k));
            self.complete(p, s.property(k), &s_path, &path);
        }
    }
}

/// `anyOf: [{type: integer}, {type: string}]`, the only types allowed in junctors.
fn int_or_string_any_of(n: Node<'_>) -> bool {
    n.get("anyOf") == Some(&json!([{"type": "integer"}, {"type": "string"}]))
}

//! Defaults must be values of their schema, without unknown fields. Those inside of metadata must make it valid metadata;
//! what they have too much is dropped when they are used.

use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::{Value, json};

use crate::prune;
use crate::schema::Schema;
use crate::validate;

use super::Node;
use super::build::node as build;

/// Checks the defaults in `schema` and below; `pruned`: they may have no unknown fields. Those below `additionalProperties` are checked separately (they are
/// restricted), those in top-level metadata are forbidden.
pub(super) fn check(schema: &Value, path: &Path, pruned: bool, errors: &mut ErrorList) {
    if let Some(root) = Node::of(schema) {
        let place = SchemaPosition { resource: root, way: None, of_meta: false };
        let mut check = Check { pruned, errors };
        check.node(root, path, &place, true);
    }
}

/// Whether a default has something that is dropped when it is used.
pub(super) fn unpruned(schema: &Value) -> bool {
    Node::of(schema).is_some_and(|root| any_unpruned(root, &build(root), None))
}

fn any_unpruned(n: Node<'_>, root: &Schema, way: Option<&Way<'_>>) -> bool {
    let below = |n, field| any_unpruned(n, root, Some(&Way { before: way, field }));
    n.get("default").is_some_and(|default| !prune::prune(root, &mut placed(default, way), true).is_empty())
        || n.items().is_some_and(|items| below(items, None))
        || n.additional().is_some_and(|values| below(values, Some("*")))
        || n.map("properties").any(|(k, v)| Node::of(v).is_some_and(|property| below(property, Some(k))))
}

/// A step from the embedded resource (or the root) that a schema belongs to.
struct Way<'a> {
    before: Option<&'a Way<'a>>,
    /// A field; none for the elements of a list.
    field: Option<&'a str>,
}

/// Where a schema stands.
struct SchemaPosition<'a> {
    /// The schema of the resource around it.
    resource: Node<'a>,
    way: Option<&'a Way<'a>>,
    /// It is that of apiVersion, kind or metadata, or of something in it.
    of_meta: bool,
}

struct Check<'e> {
    pruned: bool,
    errors: &'e mut ErrorList,
}

impl Check<'_> {
    fn node<'a>(&mut self, n: Node<'a>, path: &Path, place: &SchemaPosition<'a>, root: bool) {
        let embedded = n.flag("x-kubernetes-embedded-resource");
        let own = SchemaPosition { resource: n, way: None, of_meta: false };
        let place = if embedded { &own } else { place };
        if let Some(default) = n.get("default") {
            let path = path.child("default");
            match place.of_meta {
                true => self.in_meta(n, default, place, &path),
                false => self.plain(n, default, &path),
            }
        }
        if let Some(items) = n.items() {
            let way = Way { before: place.way, field: None };
            let below = SchemaPosition { resource: place.resource, way: Some(&way), of_meta: place.of_meta };
            self.node(items, &path.child("items"), &below, false);
        }
        for (k, v) in n.map("properties") {
            let Some(property) = Node::of(v) else { continue };
            let way = Way { before: place.way, field: Some(k) };
            let of_meta =
                place.of_meta || (embedded || root) && matches!(k, "apiVersion" | "kind" | "metadata");
            let below = SchemaPosition { resource: place.resource, way: Some(&way), of_meta };
            self.node(property, &path.child("properties").key(k), &below, false);
        }
    }

    fn plain(&mut self, n: Node<'_>, default: &Value, path: &Path) {
        let schema = build(n);
        if self.pruned && prune::has_unknown(&schema, default) {
            self.errors.push(Error::invalid(path, default.clone(), "must not have unknown fields"));
        }
        let found = validate::embedded(&schema, default, path);
        self.errors.extend(if found.is_empty() {
            validate::values(&schema, default, None, path)
        } else {
            found
        });
    }

    fn in_meta(&mut self, n: Node<'_>, default: &Value, place: &SchemaPosition<'_>, path: &Path) {
        let schema = Schema { embedded_resource: true, ..build(place.resource) };
        let found: Vec<String> = validate::embedded(&schema, &around(default, place.way), &Path::root())
            .iter()
            .map(ToString::to_string)
            .collect();
        let why = match &found[..] {
            [] => return self.errors.extend(validate::values(&build(n), default, None, path)),
            [only] => only.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        self.errors.push(Error::invalid(
            path,
            default.clone(),
            format!("must result in valid metadata: {why}"),
        ));
    }
}

/// What has nothing but this value, at the end of the way.
fn placed(value: &Value, way: Option<&Way<'_>>) -> Value {
    let mut value = value.clone();
    let mut next = way;
    while let Some(step) = next {
        value = match step.field {
            Some(field) => Value::Object([(field.to_owned(), value)].into_iter().collect()),
            None => Value::Array(vec![value]),
        };
        next = step.before;
    }
    value
}

/// The same as a resource.
fn around(value: &Value, way: Option<&Way<'_>>) -> Value {
    let mut value = placed(value, way);
    for (field, given) in [("apiVersion", "validation/v1"), ("kind", "Validation")] {
        if value.get(field).is_none()
            && let Value::Object(map) = &mut value
        {
            map.insert(field.to_owned(), json!(given));
        }
    }
    value
}

//! From JSON to [`Schema`]. Nothing is checked here.

use serde_json::{Value, json};

use crate::prune::{object_meta, prune};
use crate::schema::{ListKind, MapKind, Property, Props, Schema, SchemaRef, Type};
use crate::validate::{Constraints, Pattern, parse_format};

use super::Node;
use super::intern::intern;

/// Builds the schema that `value` (a JSONSchemaProps object) describes. What is malformed counts as not given.
pub fn build(value: &Value) -> Schema {
    Node::of(value).map_or_else(Schema::default, node)
}

/// As [`build`], for a definition of before `v1` that keeps what its schemas do not name.
pub fn build_preserving(value: &Value) -> Schema {
    let mut value = value.clone();
    preserve(&mut value);
    build(&value)
}

/// Lets objects at every depth keep unknown fields.
fn preserve(schema: &mut Value) {
    const KEEP: &str = "x-kubernetes-preserve-unknown-fields";
    let Value::Object(map) = schema else { return };
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(preserve);
    }
    if let Some(items) = map.get_mut("items") {
        preserve(items);
    }
    if let Some(values) = map.get_mut("additionalProperties") {
        if values.as_bool() == Some(true) {
            *values = json!({"nullable": true});
        }
        preserve(values);
    }
    let ty = map.get("type").and_then(Value::as_str).unwrap_or_default();
    if matches!(ty, "" | "object") || ty == "array" && !map.contains_key("items") {
        map.insert(KEEP.to_owned(), true.into());
    }
}

/// Where a node stands.
#[derive(Clone, Copy)]
enum Place {
    Plain,
    /// In the metadata of an embedded resource: the server's own schema for what stands there; none for a field that metadata has not.
    Metadata(Option<&'static Schema>),
}

impl Place {
    fn child(self, parent: &Schema, name: &str) -> Place {
        match self {
            Place::Plain if parent.embedded_resource && name == "metadata" => {
                Place::Metadata(Some(object_meta()))
            }
            Place::Plain => Place::Plain,
            Place::Metadata(own) => Place::Metadata(own.and_then(|own| Some(own.child(name)?.get()))),
        }
    }

    fn items(self) -> Place {
        match self {
            Place::Plain => Place::Plain,
            Place::Metadata(own) => Place::Metadata(own.and_then(|own| Some(own.items.as_ref()?.get()))),
        }
    }

    fn values(self) -> Place {
        match self {
            Place::Plain => Place::Plain,
            Place::Metadata(own) => Place::Metadata(own.and_then(|own| Some(own.additional.as_ref()?.get()))),
        }
    }
}

pub(super) fn node(n: Node<'_>) -> Schema {
    placed(n, Place::Plain)
}

fn placed(n: Node<'_>, place: Place) -> Schema {
    let ty = if n.flag("x-kubernetes-int-or-string") { Type::IntOrString } else { type_of(n.ty()) };
    let mut s = Schema {
        ty,
        format: parse_format(n.text("format"), ty),
        nullable: n.flag("nullable"),
        preserve_unknown: n.flag("x-kubernetes-preserve-unknown-fields"),
        embedded_resource: n.flag("x-kubernetes-embedded-resource"),
        list: list_kind(n),
        list_declared: n.get("x-kubernetes-list-type").is_some(),
        map: if n.text("x-kubernetes-map-type") == "atomic" { MapKind::Atomic } else { MapKind::Granular },
        items: n.items().map(|i| intern(placed(i, place.items()))),
        additional: additional(n, place.values()).map(Box::new),
        required: n.strings("required").map(Box::from).collect(),
        constraints: constraints(n).map(Box::new),
        ..Schema::default()
    };
    let property = |(k, v)| Some(Property::new(k, intern(placed(Node::of(v)?, place.child(&s, k)))));
    let properties: Vec<Property> = n.map("properties").filter_map(property).collect();
    if !properties.is_empty() {
        s.properties = Some(Props::new(properties));
    }
    let known = match place {
        Place::Plain => Some(&s),
        Place::Metadata(own) => own,
    };
    // A default for a field that metadata has not is none.
    if let (Some(default), Some(known)) = (n.get("default"), known) {
        let mut default = default.clone();
        prune(known, &mut default, false);
        s.default = Some(Box::new(default));
    }
    s
}

fn type_of(name: &str) -> Type {
    match name {
        "object" => Type::Object,
        "array" => Type::Array,
        "string" => Type::String,
        "integer" => Type::Integer,
        "number" => Type::Number,
        "boolean" => Type::Boolean,
        _ => Type::Any,
    }
}

fn list_kind(n: Node<'_>) -> ListKind {
    match n.text("x-kubernetes-list-type") {
        "set" => ListKind::Set,
        "map" => ListKind::Map { keys: n.strings("x-kubernetes-list-map-keys").map(Box::from).collect() },
        _ => ListKind::Atomic,
    }
}

fn additional(n: Node<'_>, place: Place) -> Option<SchemaRef> {
    match n.get("additionalProperties")? {
        Value::Bool(true) => Some(intern(Schema { nullable: true, ..Schema::default() })),
        Value::Object(o) => Some(intern(placed(Node(o), place))),
        _ => None,
    }
}

fn constraints(n: Node<'_>) -> Option<Constraints> {
    let number = |k: &str| n.get(k).and_then(Value::as_f64);
    let size = |k: &str| n.get(k).and_then(Value::as_i64);
    let clauses = |k: &str| n.clauses(k).map(|(_, c)| node(c)).collect::<Box<[Schema]>>();
    let pattern = n.text("pattern");
    let c = Constraints {
        maximum: number("maximum"),
        minimum: number("minimum"),
        exclusive_maximum: n.flag("exclusiveMaximum"),
        exclusive_minimum: n.flag("exclusiveMinimum"),
        multiple_of: number("multipleOf"),
        max_length: size("maxLength"),
        min_length: size("minLength"),
        max_items: size("maxItems"),
        min_items: size("minItems"),
        max_properties: size("maxProperties"),
        min_properties: size("minProperties"),
        unique_items: n.flag("uniqueItems"),
        pattern: (!pattern.is_empty()).then(|| Box::new(Pattern::new(pattern))),
        enumeration: n.list("enum").into(),
        all_of: clauses("allOf"),
        any_of: clauses("anyOf"),
        one_of: clauses("oneOf"),
        not: n.get("not").and_then(Node::of).map(|c| Box::new(node(c))),
    };
    (!c.is_empty()).then_some(c)
}

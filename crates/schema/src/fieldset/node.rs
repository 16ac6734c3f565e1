//! A schema as structured-merge-diff sees it: each value is a scalar, an atomic whole, an associative list or a
//! granular map.

use std::sync::OnceLock;

use serde_json::Value;

use crate::schema::{Format, ListKind, MapKind, Property, Schema, SchemaRef, Type};
use crate::types;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The schema of one value, or what stands in for it where there is none.
#[derive(Clone, Copy)]
pub(crate) enum Node<'s> {
    /// Declared.
    Typed {
        schema: &'s Schema,
        /// Undeclared fields are kept: this schema or one above it says `x-kubernetes-preserve-unknown-fields`.
        preserve: bool,
        /// The root of an API object, or a resource embedded in one: has apiVersion, kind and metadata in any case.
        resource: bool,
    },
    /// Undeclared but kept: maps are granular, lists atomic.
    Deduced,
    /// Raw JSON: atomic.
    Untyped,
}

/// How one value merges.
pub(crate) enum Shape<'s> {
    /// A leaf that is no container.
    Scalar,
    /// A container that is kept or replaced whole.
    Atomic,
    /// A set or a list of maps with keys.
    List(ListShape<'s>),
    /// Field by field.
    Map(MapShape<'s>),
}

/// An associative list.
#[derive(Clone, Copy)]
pub(crate) struct ListShape<'s> {
    /// Empty for a set of scalars.
    pub keys: &'s [Box<str>],
    pub items: Node<'s>,
}

/// A granular map or struct.
#[derive(Clone, Copy)]
pub(crate) struct MapShape<'s> {
    schema: Option<&'s Schema>,
    preserve: bool,
    resource: bool,
}

/// What a field of a map holds.
pub(crate) struct Child<'s> {
    pub node: Node<'s>,
    /// Named in the schema, unlike a key of a map.
    pub declared: bool,
}

/// What a scalar must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScalarKind {
    Numeric,
    String,
    Boolean,
    Any,
}

impl<'s> Node<'s> {
    /// The schema of a whole API object.
    pub(crate) fn root(schema: &'s Schema) -> Node<'s> {
        Node::Typed { schema, preserve: false, resource: true }
    }

    fn below(schema: &'s Schema, preserve: bool) -> Node<'s> {
        Node::Typed { schema, preserve, resource: schema.embedded_resource }
    }

    /// How `value` merges here.
    pub(crate) fn shape(self, value: &Value) -> Shape<'s> {
        let (schema, preserve, resource) = match self {
            Node::Typed { schema, preserve, resource } => {
                (schema, preserve || schema.preserve_unknown, resource)
            }
            Node::Deduced => return deduced(value),
            Node::Untyped => return untyped(value),
        };
        match schema.ty {
            Type::Object => map_shape(schema, preserve, resource),
            Type::Array => list_shape(schema, preserve),
            // One value, whatever is in it.
            Type::Any if schema.short_name() == "RawExtension" => Shape::Atomic,
            // Several types are possible: the value decides. Null could be any of them and reads as a map.
            Type::Any if schema.preserve_unknown || schema.properties.is_some() => match value {
                Value::Array(_) if schema.items.is_some() => list_shape(schema, preserve),
                Value::Array(_) => Shape::Atomic,
                Value::Object(_) | Value::Null => map_shape(schema, preserve, resource),
                _ => Shape::Scalar,
            },
            Type::Any | Type::SchemaOr => untyped(value),
            // In custom resources this is a schema without a type to structured-merge-diff.
            Type::IntOrString if schema.name.is_none() => deduced(value),
            _ => Shape::Scalar,
        }
    }

    /// The shape that the schema alone gives, and whether it leaves the type open and undeclared.
    pub(crate) fn static_shape(self) -> (Shape<'s>, bool) {
        match self {
            Node::Deduced => (Shape::Map(MapShape { schema: None, preserve: true, resource: false }), true),
            Node::Untyped => (Shape::Atomic, false),
            Node::Typed { .. } => {
                let shape = self.shape(&Value::Null);
                let open = matches!(&shape, Shape::Map(map) if map.is_free_form());
                let atomic = matches!(self, Node::Typed { schema, .. }
                    if matches!(schema.ty, Type::Any | Type::SchemaOr) && matches!(shape, Shape::Scalar));
                (if atomic { Shape::Atomic } else { shape }, open)
            }
        }
    }

    /// What a scalar here must be; `None` if this is no scalar type.
    pub(crate) fn scalar_kind(self) -> Option<ScalarKind> {
        let Node::Typed { schema, .. } = self else { return Some(ScalarKind::Any) };
        Some(match schema.ty {
            Type::Integer | Type::Number => ScalarKind::Numeric,
            Type::Boolean => ScalarKind::Boolean,
            Type::String if matches!(schema.format, Format::None | Format::Byte) => ScalarKind::String,
            Type::Bytes | Type::Duration => ScalarKind::String,
            Type::Object | Type::Array => return None,
            _ => ScalarKind::Any,
        })
    }

    /// What is in an atomic container, if that is declared: as if it were not atomic.
    pub(crate) fn inside(self) -> Option<Shape<'s>> {
        let Node::Typed { schema, preserve, resource } = self else { return None };
        let preserve = preserve || schema.preserve_unknown;
        match schema.ty {
            Type::Object => Some(Shape::Map(MapShape { schema: Some(schema), preserve, resource })),
            Type::Array => {
                let items = Node::below(schema.items.as_ref()?.get(), preserve);
                Some(Shape::List(ListShape { keys: &[], items }))
            }
            _ => None,
        }
    }

    /// The default of the field `name` of the objects described here.
    pub(crate) fn default_of(self, name: &str) -> Option<&'s Value> {
        match self {
            Node::Typed { schema, .. } => schema.property(name)?.scalar_default(),
            _ => None,
        }
    }
}

fn deduced<'s>(value: &Value) -> Shape<'s> {
    match value {
        Value::Array(_) => Shape::Atomic,
        Value::Object(_) | Value::Null => {
            Shape::Map(MapShape { schema: None, preserve: true, resource: false })
        }
        _ => Shape::Scalar,
    }
}

fn untyped<'s>(value: &Value) -> Shape<'s> {
    match value {
        Value::Array(_) | Value::Object(_) => Shape::Atomic,
        _ => Shape::Scalar,
    }
}

fn map_shape(schema: &Schema, preserve: bool, resource: bool) -> Shape<'_> {
    match schema.map {
        MapKind::Atomic => Shape::Atomic,
        MapKind::Granular => Shape::Map(MapShape { schema: Some(schema), preserve, resource }),
    }
}

fn list_shape(schema: &Schema, preserve: bool) -> Shape<'_> {
    let items = || schema.items.as_ref().map_or(Node::Untyped, |s| Node::below(s.get(), preserve));
    match &schema.list {
        ListKind::Atomic => Shape::Atomic,
        ListKind::Set => Shape::List(ListShape { keys: &[], items: items() }),
        ListKind::Map { keys } => Shape::List(ListShape { keys, items: items() }),
    }
}

impl<'s> MapShape<'s> {
    /// The declared property `name`.
    pub(crate) fn property(&self, name: &str) -> Option<&'s Property> {
        self.schema?.property(name)
    }

    /// What the field `name` holds; `None` if the schema does not allow it.
    pub(crate) fn child(&self, name: &str) -> Option<Child<'s>> {
        if self.resource
            && let Some(node) = self.resource_field(name)
        {
            return Some(Child { node, declared: true });
        }
        let Some(schema) = self.schema else { return Some(Child { node: Node::Deduced, declared: false }) };
        if let Some(property) = schema.property(name) {
            return Some(Child { node: Node::below(property.schema.get(), self.preserve), declared: true });
        }
        match &schema.additional {
            Some(values) => Some(Child { node: Node::below(values.get(), self.preserve), declared: false }),
            None if self.preserve || schema.properties.as_ref().is_none_or(|p| p.is_empty()) => {
                Some(Child { node: Node::Deduced, declared: false })
            }
            None => None,
        }
    }

    /// Like [`MapShape::child`], but forgiving: what is not allowed is treated as undeclared.
    pub(crate) fn child_or_deduced(&self, name: &str) -> Child<'s> {
        self.child(name).unwrap_or(Child { node: Node::Deduced, declared: false })
    }

    /// The fields that every resource has, where the schema says nothing (better) about them.
    fn resource_field(&self, name: &str) -> Option<Node<'s>> {
        static META: OnceLock<Option<SchemaRef>> = OnceLock::new();
        static STRING: OnceLock<Schema> = OnceLock::new();
        match name {
            "metadata" if self.property(name).is_none_or(|p| p.schema.get().name.is_none()) => {
                let meta = META.get_or_init(|| types::lookup(OBJECT_META)).as_ref()?;
                Some(Node::below(meta.get(), false))
            }
            "apiVersion" | "kind" if self.property(name).is_none() => {
                Some(Node::below(STRING.get_or_init(|| Schema::of(Type::String)), false))
            }
            _ => None,
        }
    }

    fn is_free_form(&self) -> bool {
        self.schema.is_none_or(|s| {
            !self.resource && s.additional.is_none() && s.properties.as_ref().is_none_or(|p| p.is_empty())
        })
    }
}

//! Values of an evaluation. JSON stays where it is: lists and maps borrow it and turn single elements into values when
//! they are looked at.

use crate::{
    constructed::Struct,
    decl::{Decl, DeclKind, Field, ListKind},
    error::Error,
    functions::{
        authz::{Check, Decision},
        format::NamedFormat,
        net::Cidr,
        semver::Semver,
        urls::Url,
    },
    json,
    types::Named,
};
use kaji_meta::Quantity;
use serde_json::{Map as Object, Value as Json};
use std::{collections::BTreeMap, net::IpAddr, ops::Deref, sync::Arc};

/// Text, borrowed from data or made by the evaluation.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// A part of the data.
    Borrowed(&'a str),
    /// Made.
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(s) => s,
            Text::Shared(s) => s,
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl PartialOrd for Text<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

/// A CEL value.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number without sign.
    Uint(u64),
    /// A number.
    Double(f64),
    /// Text.
    String(Text<'a>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A moment.
    Timestamp(jiff::Timestamp),
    /// A span, in nanoseconds.
    Duration(i64),
    /// A type.
    Type(TypeValue),
    /// A list.
    List(List<'a>),
    /// A map or an object.
    Map(Map<'a>),
    /// A value or none.
    Optional(Option<Arc<Value<'a>>>),
    /// An object that the expression made.
    Struct(Arc<Struct<'a>>),
    /// A value of a library.
    Ext(Ext),
}

/// A type as a value; parameters of lists and maps are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TypeValue {
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    Type,
    List,
    Map,
    Optional,
    Named(Named),
}

impl TypeValue {
    /// The name that `string(type(x))` and messages show.
    pub fn name(self) -> &'static str {
        match self {
            TypeValue::Null => "null_type",
            TypeValue::Bool => "bool",
            TypeValue::Int => "int",
            TypeValue::Uint => "uint",
            TypeValue::Double => "double",
            TypeValue::String => "string",
            TypeValue::Bytes => "bytes",
            TypeValue::Timestamp => "google.protobuf.Timestamp",
            TypeValue::Duration => "google.protobuf.Duration",
            TypeValue::Type => "type",
            TypeValue::List => "list",
            TypeValue::Map => "map",
            TypeValue::Optional => "optional_type",
            TypeValue::Named(named) => named.name(),
        }
    }
}

/// A value of a library.
#[derive(Clone, Debug)]
pub enum Ext {
    /// `quantity("1Gi")`.
    Quantity(Arc<Quantity>),
    /// `url("https://...")`.
    Url(Arc<Url>),
    /// `ip("10.0.0.1")`.
    Ip(IpAddr),
    /// `cidr("10.0.0.0/8")`.
    Cidr(Cidr),
    /// `format.dns1123Label()`.
    Format(&'static NamedFormat),
    /// `semver("1.2.3")`.
    Semver(Arc<Semver>),
    /// `authorizer`.
    Authorizer(Arc<Check>),
    /// `authorizer.path("/healthz")`.
    PathCheck(Arc<Check>),
    /// `authorizer.group("apps")`.
    GroupCheck(Arc<Check>),
    /// `authorizer.group("apps").resource("deployments")`.
    ResourceCheck(Arc<Check>),
    /// `authorizer.path("/healthz").check("get")`.
    Decision(Arc<Decision>),
}

/// A list.
#[derive(Clone, Debug)]
pub enum List<'a> {
    /// Data.
    Json {
        /// The elements.
        items: &'a [Json],
        /// What they are.
        elem: &'a Decl,
        /// How the list compares.
        kind: &'a ListKind,
    },
    /// Made by the evaluation; keeps how the list that it was made of compares.
    Constructed(Arc<Vec<Value<'a>>>, Option<&'a ListKind>),
}

/// A map or an object.
#[derive(Clone, Debug)]
pub enum Map<'a> {
    /// Data with named fields.
    Object {
        /// The data.
        object: &'a Object<String, Json>,
        /// Its fields, by escaped name.
        fields: &'a BTreeMap<String, Field>,
    },
    /// Data with any keys.
    Json {
        /// The data.
        object: &'a Object<String, Json>,
        /// What its values are.
        value: &'a Decl,
    },
    /// Made by the evaluation.
    Constructed(Arc<Constructed<'a>>),
}

/// A map in the order in which it was made.
#[derive(Clone, Debug, Default)]
pub struct Constructed<'a> {
    entries: Vec<(Value<'a>, Value<'a>)>,
    index: BTreeMap<Key<'a>, usize>,
    /// What looking a key up gives that is absent; it is not `in` the map for that.
    default: Option<Value<'a>>,
}

/// A key of a map: numbers are equal whatever their types.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key<'a> {
    Bool(bool),
    Number(i128),
    String(Text<'a>),
}

impl<'a> Key<'a> {
    pub(crate) fn of(value: &Value<'a>) -> Option<Key<'a>> {
        match value {
            Value::Bool(b) => Some(Key::Bool(*b)),
            Value::Int(i) => Some(Key::Number(i128::from(*i))),
            Value::Uint(u) => Some(Key::Number(i128::from(*u))),
            #[allow(clippy::cast_possible_truncation, reason = "whole and in range")]
            Value::Double(d) if d.fract() == 0.0 && d.abs() < 1e19 => Some(Key::Number(*d as i128)),
            Value::String(s) => Some(Key::String(s.clone())),
            _ => None,
        }
    }
}

impl<'a> Constructed<'a> {
    /// Adds an entry; false when the key is there already.
    pub(crate) fn insert(&mut self, key: Value<'a>, value: Value<'a>) -> Result<bool, Error> {
        let Some(index) = Key::of(&key) else {
            return Err(Error::eval("unsupported key type"));
        };
        if self.index.contains_key(&index) {
            return Ok(false);
        }
        self.index.insert(index, self.entries.len());
        self.entries.push((key, value));
        Ok(true)
    }

    /// The same map, keys that are absent having this value.
    pub(crate) fn or_default(mut self, value: Value<'a>) -> Self {
        self.default = Some(value);
        self
    }

    fn find(&self, key: &Key<'_>) -> Option<&Value<'a>> {
        self.index.get(key).and_then(|at| self.entries.get(*at)).map(|(_, value)| value)
    }
}

impl<'a> Value<'a> {
    /// Text that the evaluation made.
    pub fn text(text: impl Into<Arc<str>>) -> Value<'a> {
        Value::String(Text::Shared(text.into()))
    }

    /// A list that the evaluation made.
    pub fn list(elements: Vec<Value<'a>>) -> Value<'a> {
        Value::List(List::Constructed(Arc::new(elements), None))
    }

    /// An optional that holds a value.
    pub fn some(value: Value<'a>) -> Value<'a> {
        Value::Optional(Some(Arc::new(value)))
    }

    /// The value of JSON of which nothing is declared.
    pub fn any(json: &'a Json) -> Value<'a> {
        json::undeclared(json)
    }

    /// The value of JSON that `decl` describes.
    pub fn of_json(json: &'a Json, decl: &'a Decl) -> Result<Value<'a>, Error> {
        json::value(json, decl)
    }

    /// The type of the value.
    pub fn ty(&self) -> TypeValue {
        match self {
            Value::Null => TypeValue::Null,
            Value::Bool(_) => TypeValue::Bool,
            Value::Int(_) => TypeValue::Int,
            Value::Uint(_) => TypeValue::Uint,
            Value::Double(_) => TypeValue::Double,
            Value::String(_) => TypeValue::String,
            Value::Bytes(_) => TypeValue::Bytes,
            Value::Timestamp(_) => TypeValue::Timestamp,
            Value::Duration(_) => TypeValue::Duration,
            Value::Type(_) => TypeValue::Type,
            Value::List(_) => TypeValue::List,
            Value::Map(_) => TypeValue::Map,
            Value::Optional(_) => TypeValue::Optional,
            Value::Struct(constructed) => TypeValue::Named(constructed.named()),
            Value::Ext(ext) => TypeValue::Named(ext.named()),
        }
    }

    /// What `size()` says, and 1 for values that have no size; the measure of costs.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Value::String(s) => s.chars().count() as u64,
            Value::Bytes(b) => b.len() as u64,
            Value::List(l) => l.len() as u64,
            Value::Map(m) => m.len() as u64,
            Value::Optional(Some(v)) => v.size(),
            Value::Ext(Ext::Ip(ip)) => {
                if ip.is_ipv4() {
                    4
                } else {
                    16
                }
            }
            Value::Ext(Ext::Cidr(cidr)) => u64::from(cidr.prefix.div_ceil(8)),
            _ => 1,
        }
    }

    /// cel-go's name for what holds such a value.
    pub(crate) fn go_type(&self) -> &'static str {
        match self {
            Value::Null => "types.Null",
            Value::Bool(_) => "types.Bool",
            Value::Int(_) => "types.Int",
            Value::Uint(_) => "types.Uint",
            Value::Double(_) => "types.Double",
            Value::String(_) => "types.String",
            Value::Bytes(_) => "types.Bytes",
            Value::Timestamp(_) => "types.Timestamp",
            Value::Duration(_) => "types.Duration",
            Value::Type(_) => "*types.Type",
            Value::Optional(_) => "*types.Optional",
            Value::List(_) | Value::Map(_) | Value::Struct(_) | Value::Ext(_) => "ref.Val",
        }
    }

    /// The value as messages show it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Value::String(s) => s.to_string(),
            Value::Bool(b) => b.to_string(),
            Value::Int(i) => i.to_string(),
            Value::Uint(u) => u.to_string(),
            Value::Double(d) => crate::functions::convert::double_shown(*d),
            other => other.ty().name().to_owned(),
        }
    }
}

impl Ext {
    pub(crate) fn named(&self) -> Named {
        match self {
            Ext::Quantity(_) => Named::Quantity,
            Ext::Url(_) => Named::Url,
            Ext::Ip(_) => Named::Ip,
            Ext::Cidr(_) => Named::Cidr,
            Ext::Format(_) => Named::Format,
            Ext::Semver(_) => Named::Semver,
            Ext::Authorizer(_) => Named::Authorizer,
            Ext::PathCheck(_) => Named::PathCheck,
            Ext::GroupCheck(_) => Named::GroupCheck,
            Ext::ResourceCheck(_) => Named::ResourceCheck,
            Ext::Decision(_) => Named::Decision,
        }
    }
}

impl<'a> List<'a> {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            List::Json { items, .. } => items.len(),
            List::Constructed(list, _) => list.len(),
        }
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at a place; none beyond the end.
    pub fn get(&self, index: usize) -> Option<Result<Value<'a>, Error>> {
        match self {
            List::Json { items, elem, .. } => items.get(index).map(|json| json::value(json, elem)),
            List::Constructed(list, _) => list.get(index).cloned().map(Ok),
        }
    }

    /// All elements, in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, Error>> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    pub(crate) fn kind(&self) -> Option<&'a ListKind> {
        match self {
            List::Json { kind, .. } => Some(kind),
            List::Constructed(_, kind) => *kind,
        }
    }
}

impl<'a> Map<'a> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        match self {
            Map::Object { object, .. } | Map::Json { object, .. } => object.len(),
            Map::Constructed(constructed) => constructed.entries.len(),
        }
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key; none if it is absent. A null field of an object counts as absent.
    pub fn get(&self, key: &Value<'_>) -> Result<Option<Value<'a>>, Error> {
        match (self, key) {
            (Map::Constructed(constructed), key) => {
                let found = Key::of(key).and_then(|key| constructed.find(&key));
                Ok(found.or(constructed.default.as_ref()).cloned())
            }
            (_, Value::String(key)) => self.field(key),
            (Map::Json { value: Decl { kind: DeclKind::Any | DeclKind::Loose, .. }, .. }, _) => Ok(None),
            _ => Err(Error::Overload),
        }
    }

    /// Whether a key is there.
    pub(crate) fn contains(&self, key: &Value<'_>) -> Result<bool, Error> {
        match self {
            Map::Constructed(constructed) => {
                Ok(Key::of(key).is_some_and(|key| constructed.find(&key).is_some()))
            }
            map => map.get(key).map(|found| found.is_some()),
        }
    }

    /// The value of a key that is text.
    pub(crate) fn field(&self, name: &str) -> Result<Option<Value<'a>>, Error> {
        match self {
            Map::Object { object, fields } => {
                let Some(field) = crate::escape::find(fields, name) else { return Ok(None) };
                match object.get(&field.name) {
                    None | Some(Json::Null) => Ok(None),
                    Some(json) => json::value(json, &field.decl).map(Some),
                }
            }
            Map::Json { object, value } if value.kind == DeclKind::Loose => {
                let unescaped = crate::escape::unescape(name);
                let found = object.get(unescaped.as_deref().unwrap_or(name));
                found.map(|json| json::value(json, value)).transpose()
            }
            Map::Json { object, value } => object.get(name).map(|json| json::value(json, value)).transpose(),
            Map::Constructed(constructed) => {
                let found = constructed.find(&Key::String(Text::Borrowed(name)));
                Ok(found.or(constructed.default.as_ref()).cloned())
            }
        }
    }

    /// All keys.
    pub fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Map::Object { object, fields } => fields
                .iter()
                .filter(|(_, f)| object.contains_key(&f.name))
                .map(|(escaped, _)| Value::String(Text::Borrowed(escaped)))
                .collect(),
            Map::Json { object, .. } => object.keys().map(|k| Value::String(Text::Borrowed(k))).collect(),
            Map::Constructed(constructed) => constructed.entries.iter().map(|(k, _)| k.clone()).collect(),
        }
    }
}

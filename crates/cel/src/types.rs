//! Types as the checker sees them.

use crate::decl::{Decl, DeclKind, ListKind};
use std::{fmt, sync::Arc};

/// A type. Equality is exact; what may stand for what is decided in `unify`.
#[derive(Clone, Debug)]
pub enum Type {
    /// Anything; checked when evaluated.
    Dyn,
    /// The type of what did not check.
    Error,
    /// `null`.
    Null,
    /// `bool`.
    Bool,
    /// `int`, 64 bits.
    Int,
    /// `uint`, 64 bits.
    Uint,
    /// `double`.
    Double,
    /// `string`.
    String,
    /// `bytes`.
    Bytes,
    /// A moment.
    Timestamp,
    /// A span of time.
    Duration,
    /// `list(T)`.
    List(Arc<Type>),
    /// `map(K, V)`.
    Map(Arc<(Type, Type)>),
    /// `optional_type(T)`.
    Optional(Arc<Type>),
    /// `type(T)`, or `type` alone.
    Type(Option<Arc<Type>>),
    /// A type of a library.
    Named(Named),
    /// An object described by a schema; the name identifies it.
    Object(Arc<str>, Arc<Decl>),
    /// A part of an object that expressions make, by its name: `Object.spec`. Its fields may be anything.
    Part(Arc<str>),
    /// A variable of the checker, or a parameter of an overload (below [`FRESH`]).
    Param(u32),
}

/// Parameters from here on are the checker's own.
pub(crate) const FRESH: u32 = 1000;

/// Types that libraries bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Named {
    Quantity,
    Url,
    Ip,
    Cidr,
    Format,
    Semver,
    Authorizer,
    PathCheck,
    GroupCheck,
    ResourceCheck,
    Decision,
    JsonPatch,
    Object,
}

impl Named {
    pub(crate) const ALL: [Named; 13] = [
        Named::Quantity,
        Named::Url,
        Named::Ip,
        Named::Cidr,
        Named::Format,
        Named::Semver,
        Named::Authorizer,
        Named::PathCheck,
        Named::GroupCheck,
        Named::ResourceCheck,
        Named::Decision,
        Named::JsonPatch,
        Named::Object,
    ];

    /// The name that messages show.
    pub fn name(self) -> &'static str {
        match self {
            Named::Quantity => "kubernetes.Quantity",
            Named::Url => "kubernetes.URL",
            Named::Ip => "net.IP",
            Named::Cidr => "net.CIDR",
            Named::Format => "kubernetes.NamedFormat",
            Named::Semver => "kubernetes.Semver",
            Named::Authorizer => "kubernetes.authorization.Authorizer",
            Named::PathCheck => "kubernetes.authorization.PathCheck",
            Named::GroupCheck => "kubernetes.authorization.GroupCheck",
            Named::ResourceCheck => "kubernetes.authorization.ResourceCheck",
            Named::Decision => "kubernetes.authorization.Decision",
            Named::JsonPatch => "JSONPatch",
            Named::Object => "Object",
        }
    }
}

impl Type {
    /// `list(element)`.
    pub fn list(element: Type) -> Type {
        Type::List(Arc::new(element))
    }

    /// `map(key, value)`.
    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new((key, value)))
    }

    /// `optional_type(of)`.
    pub fn optional(of: Type) -> Type {
        Type::Optional(Arc::new(of))
    }

    /// The type of a declaration. Objects in it are named after the way to them from `name`.
    pub fn of_decl(decl: &Arc<Decl>, name: &str) -> Type {
        match &decl.kind {
            DeclKind::Any | DeclKind::Loose | DeclKind::IntOrString => Type::Dyn,
            DeclKind::Bool => Type::Bool,
            DeclKind::Int => Type::Int,
            DeclKind::Double => Type::Double,
            DeclKind::String => Type::String,
            DeclKind::Bytes => Type::Bytes,
            DeclKind::Duration => Type::Duration,
            DeclKind::Date | DeclKind::DateTime => Type::Timestamp,
            DeclKind::Quantity => Type::Named(Named::Quantity),
            DeclKind::List { elem, .. } => Type::list(Type::of_decl(elem, &format!("{name}.@idx"))),
            DeclKind::Map { value } => {
                Type::map(Type::String, Type::of_decl(value, &format!("{name}.@elem")))
            }
            DeclKind::Object { name: Some(name), .. } => Type::Object(name.clone(), decl.clone()),
            DeclKind::Object { .. } => Type::Object(name.into(), decl.clone()),
        }
    }

    /// A declaration of what such a value is; of what only libraries know, any. Source: apiserver's
    /// `convertCelTypeToDeclType`.
    pub(crate) fn to_decl(&self) -> Decl {
        match self {
            Type::Bool => Decl::bool(),
            Type::Int => Decl::int(),
            Type::Double => Decl::double(),
            Type::String => Decl::string("", None, None),
            Type::Bytes => Decl::string("byte", None, None),
            Type::Timestamp => Decl::string("date-time", None, None),
            Type::Duration => Decl::string("duration", None, None),
            Type::List(of) => Decl::list(of.to_decl(), ListKind::Atomic, None),
            Type::Map(of) if of.0 == Type::String => Decl::map(of.1.to_decl(), None),
            _ => Decl::any(),
        }
    }

    /// The field of an object.
    pub(crate) fn field(&self, field: &str) -> Option<Type> {
        let Type::Object(name, decl) = self else { return None };
        let DeclKind::Object { fields, .. } = &decl.kind else { return None };
        crate::escape::find(fields, field).map(|f| Type::of_decl(&f.decl, &format!("{name}.{field}")))
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    /// The name without parameters.
    pub(crate) fn name(&self) -> String {
        match self {
            Type::List(_) => "list".into(),
            Type::Map(_) => "map".into(),
            Type::Optional(_) => "optional_type".into(),
            Type::Type(_) => "type".into(),
            Type::Null => "null_type".into(),
            Type::Timestamp => "google.protobuf.Timestamp".into(),
            Type::Duration => "google.protobuf.Duration".into(),
            other => other.to_string(),
        }
    }

    /// The type by the names that declarations have, parameters included; messages of the checker use shorter ones.
    pub(crate) fn declared(&self) -> String {
        match self {
            Type::List(of) | Type::Optional(of) | Type::Type(Some(of)) => {
                format!("{}({})", self.name(), of.declared())
            }
            Type::Map(of) => format!("{}({}, {})", self.name(), of.0.declared(), of.1.declared()),
            other => other.name(),
        }
    }

    /// The type without `optional_type`, and whether it was one.
    pub(crate) fn unwrap_optional(&self) -> (Type, bool) {
        match self {
            Type::Optional(of) => ((**of).clone(), true),
            other => (other.clone(), false),
        }
    }

    /// Of a size that does not depend on the value.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
            Type::Optional(of) => of.is_scalar(),
            _ => false,
        }
    }
}

impl PartialEq for Type {
    fn eq(&self, other: &Type) -> bool {
        use std::mem::discriminant;
        match (self, other) {
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => a == b,
            (Type::Map(a), Type::Map(b)) => a == b,
            (Type::Type(a), Type::Type(b)) => a == b,
            (Type::Named(a), Type::Named(b)) => a == b,
            (Type::Object(a, _), Type::Object(b, _)) => a == b,
            (Type::Part(a), Type::Part(b)) => a == b,
            (Type::Param(a), Type::Param(b)) => a == b,
            _ => discriminant(self) == discriminant(other),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => f.write_str("dyn"),
            Type::Error => f.write_str("!error!"),
            Type::Null => f.write_str("null"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::String => f.write_str("string"),
            Type::Bytes => f.write_str("bytes"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::List(of) => write!(f, "list({of})"),
            Type::Map(of) => write!(f, "map({}, {})", of.0, of.1),
            Type::Optional(of) => write!(f, "optional_type({of})"),
            Type::Type(Some(of)) => write!(f, "type({of})"),
            Type::Type(None) => f.write_str("type"),
            Type::Named(named) => f.write_str(named.name()),
            Type::Object(name, _) | Type::Part(name) => f.write_str(name),
            Type::Param(n) if *n >= FRESH => write!(f, "_var{}", n - FRESH),
            Type::Param(n) => write!(f, "{}", char::from_u32(*n).unwrap_or('?')),
        }
    }
}

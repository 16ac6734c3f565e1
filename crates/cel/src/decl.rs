//! Declarations: the type of a JSON value, which the caller derives from a schema. They give values their
//! types when expressions are checked and when they are evaluated, and bound sizes when costs are estimated.

use std::{collections::BTreeMap, sync::Arc};

/// The largest request that a server reads, in bytes: what no schema bounds is bounded by it.
pub const MAX_REQUEST_BYTES: u64 = 3 * 1024 * 1024;
const MAX_DURATION: u64 = 32;
const MAX_DATE_TIME: u64 = 32;
const DATE: u64 = 12;

/// One JSON value.
#[derive(Clone, Debug, PartialEq)]
pub struct Decl {
    /// What it is.
    pub kind: DeclKind,
    /// `null` is a separate value.
    pub nullable: bool,
    /// The most characters, bytes, elements or entries that it can have; 0 for what has no size.
    pub max_elements: u64,
    /// The fewest bytes in which it can be written as JSON.
    pub min_size: u64,
    /// The most characters of a map's keys, as estimates of costs have it.
    pub max_key: u64,
}

/// How a list compares with others and joins them (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListKind {
    /// In order.
    #[default]
    Atomic,
    /// Without regard to order.
    Set,
    /// By the values of these properties.
    Map(Vec<String>),
}

/// A field of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name in JSON; expressions use the escaped form.
    pub name: String,
    /// What it holds.
    pub decl: Arc<Decl>,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub enum DeclKind {
    /// Any JSON; its type is dyn.
    Any,
    /// Any JSON as Go decodes what it knows nothing of: numbers are doubles, and keys are found by their escaped names,
    /// too. Its type is dyn.
    Loose,
    /// A string or a whole number; its type is dyn.
    IntOrString,
    /// `type: boolean`.
    Bool,
    /// `type: integer`.
    Int,
    /// `type: number`.
    Double,
    /// `type: string`.
    String,
    /// A string of `format: byte`.
    Bytes,
    /// A string of `format: duration`.
    Duration,
    /// A string of `format: date`.
    Date,
    /// A string of `format: date-time`.
    DateTime,
    /// A quantity, of the library's type.
    Quantity,
    /// `type: array`.
    List {
        /// The elements.
        elem: Arc<Decl>,
        /// How it compares.
        kind: ListKind,
    },
    /// `additionalProperties`.
    Map {
        /// The values; keys are strings.
        value: Arc<Decl>,
    },
    /// `properties`, by escaped name. Fields that expressions cannot see are absent.
    Object {
        /// The name of its type, if it has one of its own; else it is named after the way to it.
        name: Option<Arc<str>>,
        /// The fields.
        fields: BTreeMap<String, Field>,
    },
}

impl Decl {
    fn scalar(kind: DeclKind, max_elements: u64, min_size: u64) -> Decl {
        Decl { kind, nullable: false, max_elements, min_size, max_key: 0 }
    }

    /// Any JSON value; estimates know nothing of its size.
    pub fn any() -> Decl {
        Decl::scalar(DeclKind::Any, 0, 1)
    }

    /// Any JSON value as upstream gives claims of tokens to expressions; see [`DeclKind::Loose`].
    pub fn loose() -> Decl {
        Decl::scalar(DeclKind::Loose, 0, 1)
    }

    /// `x-kubernetes-int-or-string`.
    pub fn int_or_string(max_length: Option<u64>) -> Decl {
        Decl::scalar(DeclKind::IntOrString, string_bound(max_length), 1)
    }

    /// `type: boolean`.
    pub fn bool() -> Decl {
        Decl::scalar(DeclKind::Bool, 0, 4)
    }

    /// `type: integer`.
    pub fn int() -> Decl {
        Decl::scalar(DeclKind::Int, 0, 1)
    }

    /// `type: number`.
    pub fn double() -> Decl {
        Decl::scalar(DeclKind::Double, 0, 1)
    }

    /// `type: string` in some format, with `maxLength` (in characters) or the lengths of an enumeration.
    pub fn string(format: &str, max_length: Option<u64>, longest_choice: Option<u64>) -> Decl {
        match format {
            "byte" => Decl::scalar(DeclKind::Bytes, max_length.unwrap_or(MAX_REQUEST_BYTES - 2), 2),
            "duration" => Decl::scalar(DeclKind::Duration, MAX_DURATION, 3),
            "date" => Decl::scalar(DeclKind::Date, DATE, DATE),
            "date-time" => Decl::scalar(DeclKind::DateTime, MAX_DATE_TIME, 21),
            _ => {
                let bound = match (max_length, longest_choice) {
                    (None, Some(longest)) => longest,
                    (max, _) => string_bound(max),
                };
                Decl::scalar(DeclKind::String, bound, 2)
            }
        }
    }

    /// A list of `elem`, of at most `max_items`.
    pub fn list(elem: Decl, kind: ListKind, max_items: Option<u64>) -> Decl {
        let most = max_items.unwrap_or((MAX_REQUEST_BYTES - 2) / (elem.min_size + 1));
        Decl::scalar(DeclKind::List { elem: Arc::new(elem), kind }, most, 2)
    }

    /// A map of strings to `value`, of at most `max_properties`.
    pub fn map(value: Decl, max_properties: Option<u64>) -> Decl {
        let most = max_properties.unwrap_or((MAX_REQUEST_BYTES - 2) / (value.min_size + 6));
        Decl::scalar(DeclKind::Map { value: Arc::new(value) }, most, 2)
    }

    /// An object of these fields: JSON name, declaration, and whether it is always sent (required and without default).
    pub fn object(list: impl IntoIterator<Item = (String, Decl, bool)>) -> Decl {
        let mut fields = BTreeMap::new();
        let mut min_size = 2_u64;
        for (name, decl, sent) in list {
            if sent {
                min_size = min_size.saturating_add(name.len() as u64 + decl.min_size + 4);
            }
            if let Some(escaped) = crate::escape::escape(&name) {
                fields.insert(escaped, Field { name, decl: Arc::new(decl) });
            }
        }
        Decl::scalar(DeclKind::Object { name: None, fields }, 0, min_size)
    }

    /// The same object, its type having that name. Objects of one name are of one type.
    pub fn named(mut self, of: &str) -> Decl {
        if let DeclKind::Object { name, .. } = &mut self.kind {
            *name = Some(of.into());
        }
        self
    }

    /// The same map, its keys at most so long.
    pub fn keys_up_to(mut self, max_key: u64) -> Decl {
        self.max_key = max_key;
        self
    }

    /// The same, null allowed or not.
    pub fn nullable(mut self, nullable: bool) -> Decl {
        self.nullable = nullable;
        self
    }

    /// The field of that escaped name.
    pub fn field(&self, escaped: &str) -> Option<&Arc<Decl>> {
        match &self.kind {
            DeclKind::Object { fields, .. } => fields.get(escaped).map(|f| &f.decl),
            _ => None,
        }
    }

    /// What the elements of a list or the values of a map are.
    pub fn element(&self) -> Option<&Arc<Decl>> {
        match &self.kind {
            DeclKind::List { elem, .. } => Some(elem),
            DeclKind::Map { value } => Some(value),
            _ => None,
        }
    }

    /// How many values of this declaration at most stand side by side in one request.
    pub fn max_cardinality(&self) -> u64 {
        MAX_REQUEST_BYTES / (self.min_size + 1)
    }
}

/// `maxLength` counts characters, of up to four bytes each.
fn string_bound(max_length: Option<u64>) -> u64 {
    max_length.map_or(MAX_REQUEST_BYTES - 2, |m| m.saturating_mul(4))
}

//! The value validations of a schema node.

use serde_json::Value;

use super::pattern::Pattern;
use crate::schema::Schema;

/// Everything in a schema that restricts values without giving structure.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Constraints {
    pub maximum: Option<f64>,
    pub minimum: Option<f64>,
    pub exclusive_maximum: bool,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub unique_items: bool,
    pub pattern: Option<Box<Pattern>>,
    pub enumeration: Box<[Value]>,
    /// Clauses have the structure's shape, without types ([`crate::Type::Any`] throughout).
    pub all_of: Box<[Schema]>,
    pub any_of: Box<[Schema]>,
    pub one_of: Box<[Schema]>,
    pub not: Option<Box<Schema>>,
}

impl Constraints {
    /// Nothing is restricted.
    pub fn is_empty(&self) -> bool {
        *self == Constraints::default()
    }
}

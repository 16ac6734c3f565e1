//! Validation of custom resources against their schemas, with the error texts of upstream's OpenAPI validator.
//!
//! Three things are checked: values (types, ranges, patterns, enums, junctors), uniqueness in lists of kind set and map,
//! and type and object metadata of embedded resources. Rules in CEL are evaluated by the crate `apiextensions`.
//!
//! On update, errors in parts that did not change are forgiven ([`validate_update`], KEP-4008): an object that was valid
//! under an older schema stays editable.

use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::at::At;
use crate::schema::Schema;

mod constraints;
pub mod correlate;
mod embedded;
mod formats;
mod lists;
mod pattern;
mod value;

pub use constraints::Constraints;
pub(crate) use formats::parse as parse_format;
pub use formats::{mail_address, request_uri, unrecognized as unrecognized_formats};
pub use pattern::{Pattern, PatternBudget};

/// Validates `value`; errors are below `path`.
pub fn validate(schema: &Schema, value: &Value, path: &Path) -> ErrorList {
    let mut errors = values(schema, value, None, path);
    errors.extend(embedded(schema, value, path));
    errors.extend(lists(schema, value, None, path));
    errors
}

/// Validates `new`, forgiving what is wrong in parts that are as they were in `old`.
pub fn validate_update(schema: &Schema, new: &Value, old: &Value, path: &Path) -> ErrorList {
    let mut errors = values(schema, new, Some(old), path);
    errors.extend(embedded(schema, new, path));
    errors.extend(lists(schema, new, Some(old), path));
    errors
}

/// Types, ranges, patterns, enums and junctors. What is wrong in parts that are as they were in `old` is forgiven.
pub fn values(schema: &Schema, value: &Value, old: Option<&Value>, path: &Path) -> ErrorList {
    let result = value::check(schema, value, old, &At::ROOT);
    result.errors.into_iter().map(|e| e.into_field_error(path)).collect()
}

/// Type and object metadata of embedded resources.
pub fn embedded(schema: &Schema, value: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    embedded::check(schema, value, &At::ROOT, path, &mut errors);
    errors
}

/// Uniqueness in lists of kind set and map; not required where `old` lacked it.
pub fn lists(schema: &Schema, value: &Value, old: Option<&Value>, path: &Path) -> ErrorList {
    let repeated = |value: &Value| {
        let mut errors = ErrorList::new();
        lists::check(schema, value, &At::ROOT, path, &mut errors);
        errors
    };
    let errors = repeated(value);
    if !errors.is_empty() && old.is_some_and(|old| !repeated(old).is_empty()) {
        return ErrorList::new();
    }
    errors
}

/// An error of the value validator, before it is placed.
pub(crate) struct Failure {
    /// Where, as the validator prints it (".a" for undeclared children of the root).
    name: String,
    kind: Kind,
}

enum Kind {
    Required,
    Type {
        value: Value,
        message: String,
    },
    Invalid {
        value: Value,
        message: String,
    },
    Enum {
        value: Value,
        allowed: Vec<String>,
    },
    TooLong {
        max: i64,
    },
    TooMany {
        actual: usize,
        max: i64,
    },
    /// An error without place: it is reported at the root.
    Global {
        message: String,
    },
}

impl Failure {
    fn into_field_error(self, base: &Path) -> Error {
        let name = self.name.strip_prefix('.').unwrap_or(&self.name);
        let path = if name.is_empty() { base.clone() } else { base.child(name) };
        let size = |n: i64| usize::try_from(n).unwrap_or(0);
        match self.kind {
            Kind::Required => Error::required(&path, ""),
            Kind::Type { value, message } => Error::type_invalid(&path, value, message),
            Kind::Invalid { value, message } => Error::invalid(&path, value, message),
            Kind::Enum { value, allowed } => {
                let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
                Error::not_supported(&path, value, &allowed)
            }
            Kind::TooLong { max } => Error::too_long(&path, "", size(max)),
            Kind::TooMany { actual, max } => Error::too_many(&path, actual, size(max)),
            Kind::Global { message } => Error::invalid(base, "", message),
        }
    }

    /// Two failures with one text are one.
    fn same(&self, other: &Failure) -> bool {
        let text = |f: &Failure| match &f.kind {
            Kind::Required => format!("{} required", f.name),
            Kind::Type { message, .. } | Kind::Invalid { message, .. } | Kind::Global { message } => {
                message.clone()
            }
            Kind::Enum { allowed, .. } => format!("{} {allowed:?}", f.name),
            Kind::TooLong { max } => format!("{} long {max}", f.name),
            Kind::TooMany { max, .. } => format!("{} many {max}", f.name),
        };
        std::mem::discriminant(&self.kind) == std::mem::discriminant(&other.kind) && text(self) == text(other)
    }
}

#[cfg(test)]
mod tests;

//! Structural schemas: from the JSON of a CustomResourceDefinition's `openAPIV3Schema` to a [`Schema`].
//!
//! [`from_json_schema`] checks everything that upstream checks of the schema part of a definition (unsupported keywords,
//! structural rules, merge annotations, defaults), with its error texts, and builds the schema; [`build`] only builds, for
//! definitions that are already stored. Rules in CEL are not compiled here; [`Structural::has_rules`] says whether there
//! are any.
//!
//! Equal parts are shared by all schemas of the process (see `intern`): most nodes of a typical schema occur in others too.

use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::schema::Schema;
use crate::validate::PatternBudget;

mod build;
mod defaults;
mod intern;
mod invariants;
mod keywords;
mod node;

pub use build::{build, build_preserving};
use node::Node;

/// A checked schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Structural {
    /// The schema.
    pub schema: Schema,
    /// There is an `x-kubernetes-validations` rule somewhere in it.
    pub has_rules: bool,
}

/// Checks `schema` (the value of `openAPIV3Schema`, found at `path`) and builds it. `status_subresource`: the version has a
/// status subresource, which restricts what may stand at the root.
pub fn from_json_schema(
    schema: &Value,
    path: &Path,
    status_subresource: bool,
) -> Result<Structural, ErrorList> {
    let errors = check(schema, path, status_subresource, true);
    if errors.is_empty() {
        Ok(Structural { schema: build(schema), has_rules: has_rules(schema) })
    } else {
        Err(errors)
    }
}

/// The errors of [`from_json_schema`]. `pruned_defaults`: defaults may have no unknown fields, as it is unless there have
/// been such before.
pub fn check(schema: &Value, path: &Path, status_subresource: bool, pruned_defaults: bool) -> ErrorList {
    check_within(schema, path, status_subresource, pruned_defaults, &mut PatternBudget::default())
}

/// The same for one of several schemas; their patterns are bounded together.
pub fn check_within(
    schema: &Value,
    path: &Path,
    status_subresource: bool,
    pruned_defaults: bool,
    patterns: &mut PatternBudget,
) -> ErrorList {
    let Some(root) = Node::of(schema) else { return ErrorList::new() };
    let mut errors = ErrorList::new();
    if status_subresource {
        keywords::root_with_status(root, path, &mut errors);
    }
    if root.flag("nullable") {
        errors.push(Error::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    let unsupported = keywords::unsupported(root);
    if unsupported.is_none() {
        let mut found = invariants::check(root, path, patterns);
        if found.is_empty() {
            defaults::check(schema, path, pruned_defaults, &mut found);
        }
        errors.append(&mut found);
    }
    keywords::check(root, path, &mut errors);
    if let Some(message) = unsupported.filter(|_| errors.is_empty()) {
        errors.push(Error::invalid(path, "", message));
    }
    errors
}

/// Whether a structural schema has a default with fields that are unknown, those of metadata included.
pub fn has_unpruned_defaults(schema: &Value) -> bool {
    Node::of(schema).is_some_and(|root| {
        keywords::unsupported(root).is_none() && {
            let mut patterns = PatternBudget::default();
            invariants::check(root, &Path::root(), &mut patterns).is_empty()
        }
    }) && defaults::unpruned(schema)
}

/// What makes `schema` not structural.
///
/// # Errors
/// Why that cannot be decided: a keyword that is not supported.
pub fn violations(schema: &Value, path: &Path) -> Result<ErrorList, String> {
    let Some(root) = Node::of(schema) else { return Ok(ErrorList::new()) };
    match keywords::unsupported(root) {
        Some(message) => Err(message),
        None => Ok(invariants::check(root, path, &mut PatternBudget::default())),
    }
}

/// Whether any `x-kubernetes-validations` rule is declared in `schema`.
pub fn has_rules(schema: &Value) -> bool {
    let Some(n) = Node::of(schema) else { return false };
    !n.list("x-kubernetes-validations").is_empty() || n.children().any(|(_, c)| has_rules(c))
}

#[cfg(test)]
pub(crate) fn unchecked(schema: &Value) -> Schema {
    build(schema)
}

#[cfg(test)]
mod tests;

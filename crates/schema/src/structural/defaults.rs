//! Defaults must be values of their schema, without unknown fields.

use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::prune::prune;
use crate::validate::validate;

use super::{Node, build};

/// Checks the defaults in `schema` and below. Those below `additionalProperties` are checked elsewhere (they are
/// restricted), those in top-level metadata are forbidden.
pub(super) fn check(schema: &Value, path: &Path, errors: &mut ErrorList) {
    let Some(n) = Node::of(schema) else { return };
    if let Some(default) = n.get("default") {
        let path = path.child("default");
        let s = build(schema);
        let mut pruned = default.clone();
        if !prune(&s, &mut pruned, s.embedded_resource).is_empty() {
            errors.push(Error::invalid(&path, default.clone(), "must not have unknown fields"));
        }
        errors.extend(validate(&s, default, &path));
    }
    if let Some(items) = n.get("items") {
        check(items, &path.child("items"), errors);
    }
    for (k, v) in n.map("properties") {
        check(v, &path.child("properties").key(k), errors);
    }
}

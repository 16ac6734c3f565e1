//! Warnings about finalizers of custom objects, which upstream does not refuse whatever they are called.
//! Source: apiextensions-apiserver, `registry/customresource/validator.go`.

use kaji_meta::{object, text::quote, validation::is_qualified_name};
use serde_json::Value;
use std::collections::BTreeSet;

/// The finalizers that the server itself uses.
const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];

/// Texts about the finalizers that a write adds.
pub(crate) fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let before: BTreeSet<&str> = old.into_iter().flat_map(object::finalizers).collect();
    let added: BTreeSet<&str> = object::finalizers(new).filter(|name| !before.contains(name)).collect();
    added.into_iter().flat_map(about).collect()
}

fn about(name: &str) -> Vec<String> {
    let mut said = is_qualified_name(name);
    if !name.contains('/') && !STANDARD.contains(&name) {
        let including = if name.contains('.') { " including a path (/)" } else { "" };
        said.push(format!(
            "prefer a domain-qualified finalizer name{including} to avoid accidental conflicts with other finalizer writers"
        ));
    }
    let name = quote(name);
    said.into_iter().map(|text| format!("metadata.finalizers: {name}: {text}")).collect()
}

//! Between the messages of CRI and the types of `kaji-containers`. Pure.
//!
//! Invariant: a number on the wire that is not known becomes the value that promises least.

pub mod container;
pub mod image;
pub mod sandbox;
pub mod security;
pub mod signals;
pub mod stats;
pub mod status;

use std::collections::BTreeMap;

/// A map's entries as a filter takes them.
fn labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    labels.clone()
}

//! Claim templates of pods and workloads: the spec is that of a PersistentVolumeClaim, the metadata is less.

use super::value::Fields;
pub use crate::core::persistentvolumeclaims::validate_spec as spec;
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;

/// Metadata of a template: only labels and annotations may be set.
pub fn template_metadata(errs: &mut ErrorList, path: &Path, metadata: &Value) {
    errs.extend(validation::validate_annotations(metadata.at("annotations"), &path.child("annotations")));
    errs.extend(validation::validate_labels(metadata.at("labels"), &path.child("labels")));
    for (field, v) in metadata.as_object().into_iter().flatten() {
        if !v.is_null() && !matches!(field.as_str(), "annotations" | "labels") {
            errs.push(Error::forbidden(&path.child(field), "cannot be set"));
        }
    }
}

//! Claim templates of pods and workloads: the spec is that of a PersistentVolumeClaim, the metadata is less.

use super::value::Fields;
pub use crate::core::persistentvolumeclaims::validate_spec as spec;
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;

/// The fields of a template's metadata that may not be set, in the order and the spelling of upstream's messages.
const FORBIDDEN: [(&str, &str); 13] = [
    ("name", "name"),
    ("generateName", "generateName"),
    ("namespace", "namespace"),
    ("selfLink", "selfLink"),
    ("uid", "uID"),
    ("resourceVersion", "resourceVersion"),
    ("generation", "generation"),
    ("creationTimestamp", "creationTimestamp"),
    ("deletionTimestamp", "deletionTimestamp"),
    ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
    ("ownerReferences", "ownerReferences"),
    ("finalizers", "finalizers"),
    ("managedFields", "managedFields"),
];

/// Metadata of a template: only labels and annotations may be set. Source: `ValidateTemplateObjectMeta`.
pub fn template_metadata(errs: &mut ErrorList, path: &Path, metadata: &Value) {
    errs.extend(validation::validate_annotations(metadata.at("annotations"), &path.child("annotations")));
    errs.extend(validation::validate_labels(metadata.at("labels"), &path.child("labels")));
    for (field, shown) in FORBIDDEN {
        // Zero values are those that Go takes for not given.
        let given = match metadata.at(field) {
            Value::Null => false,
            Value::Number(n) => field == "deletionGracePeriodSeconds" || n.as_i64() != Some(0),
            Value::String(text) => !text.is_empty(),
            _ => true,
        };
        if given {
            errs.push(Error::forbidden(&path.child(shown), "cannot be set"));
        }
    }
}

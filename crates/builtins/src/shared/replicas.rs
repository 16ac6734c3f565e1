//! What ReplicaSets and ReplicationControllers have in common: table and status.

use super::{check, table, value::Fields};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
};
use serde_json::Value;

/// Validates the status of a ReplicaSet or ReplicationController.
pub fn status(errs: &mut ErrorList, object: &Value) {
    let path = Path::new("status");
    let s = object.at("status");
    let counters = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    check::not_negative_fields(errs, &path, s, &counters);
    check::not_above_replicas(
        errs,
        &path,
        s,
        &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
    );
    available_not_above_ready(errs, &path, s, "cannot be greater than readyReplicas");
}

/// `availableReplicas` may not exceed `readyReplicas`.
pub fn available_not_above_ready(errs: &mut ErrorList, path: &Path, status: &Value, text: &str) {
    let available = status.int("availableReplicas");
    if available > status.int("readyReplicas") {
        errs.push(Error::invalid(&path.child("availableReplicas"), available, text));
    }
}

/// The cells that both kinds begin with; the selector is the caller's.
pub fn row(object: &Value, selector: String, now: jiff::Timestamp) -> Vec<Value> {
    let [names, images] = table::containers(object.at("spec").at("template").at("spec"));
    vec![
        table::name(object),
        object.at("spec").int("replicas").into(),
        object.at("status").int("replicas").into(),
        object.at("status").int("readyReplicas").into(),
        table::age(object, now),
        names,
        images,
        selector.into(),
    ]
}

//! Fields behind features that are off by default are dropped on write, unless the stored object uses them already.

use super::CONTAINER_LISTS;
use crate::shared::{
    Fields,
    value::{drop_field, list_mut, object_mut},
};
use kaji_meta::Features;
use serde_json::Value;

/// Drops disabled fields of a pod spec.
pub fn disabled_fields(features: Features, spec: &mut Value, old: Option<&Value>) {
    // ContainerStopSignals
    let signals = |s: &Value| {
        CONTAINER_LISTS.iter().flat_map(|l| s.list(l)).any(|c| c.at("lifecycle").has("stopSignal"))
    };
    if !old.is_some_and(signals) {
        for list in CONTAINER_LISTS {
            for c in list_mut(spec, list) {
                if let Some(l) = object_mut(c, "lifecycle").filter(|l| l.has("stopSignal")) {
                    drop_field(l, "stopSignal");
                    if l.as_object().is_some_and(|m| m.is_empty()) {
                        drop_field(c, "lifecycle");
                    }
                }
            }
        }
    }
    // GenericWorkload
    if !features.generic_workload && !old.is_some_and(|o| o.has("schedulingGroup")) {
        drop_field(spec, "schedulingGroup");
    }
}

/// Drops disabled fields of the pod template at `path` below an object.
pub fn of_template(features: Features, object: &mut Value, path: &[&str], old: Option<&Value>) {
    let Some(template) = path.iter().try_fold(object, |v, k| v.get_mut(*k)) else { return };
    let old = old.map(|o| path.iter().fold(o, |v, k| v.at(k)).at("spec"));
    if let Some(spec) = object_mut(template, "spec") {
        disabled_fields(features, spec, old);
    }
}

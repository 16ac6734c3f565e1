//! A custom resource: its definition, some objects, and at times the deletion of the definition, which takes the objects along.
//!
//! Invariant: objects come after their definition, and nothing is done with them after its deletion.

use super::{Action, DEFINITIONS, NAMESPACE, Step, later};
use crate::faults::Dice;
use serde_json::json;

const GROUP: &str = "example.com";

pub(super) fn resources(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let (plural, kind) = (format!("{name}s"), format!("Kind{name}"));
    let count = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"count": {"type": "integer", "minimum": 0}}}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": {"plural": plural, "singular": name, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": count}}]}});
    let path = format!("{DEFINITIONS}/{plural}.{GROUP}");
    steps.push(Step::new(begin, Action::Create(DEFINITIONS, definition)));
    let mut at = begin + 1_000;
    for index in 0..1 + dice.below(4) {
        let object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind,
            "metadata": {"name": format!("{name}-{index}"), "namespace": NAMESPACE}, "spec": {"count": index}});
        let own = format!("/apis/{GROUP}/v1/namespaces/{NAMESPACE}/{plural}/{name}-{index}");
        at += dice.below(10_000);
        steps.push(Step::new(at, Action::CreateServed(object)));
        if dice.once_in(2) {
            let patch = json!({"spec": {"count": dice.below(100)}});
            steps.push(Step::new(later(dice, &mut at), Action::Patch(own.clone(), patch)));
        }
        if dice.once_in(3) {
            steps.push(Step::new(later(dice, &mut at), Action::Delete(own, "Background")));
        }
    }
    if dice.once_in(2) {
        steps.push(Step::new(later(dice, &mut at), Action::Delete(path, "Background")));
    }
}

/// The name of a custom resource's definition.
#[cfg(test)]
pub(super) fn definition_of(object: &serde_json::Value) -> String {
    let name = object["kind"].as_str().unwrap_or_default().trim_start_matches("Kind");
    format!("{name}s.{GROUP}")
}

/// The path of a custom resource's collection.
#[cfg(test)]
pub(super) fn path_of(object: &serde_json::Value) -> String {
    let name = object["kind"].as_str().unwrap_or_default().trim_start_matches("Kind");
    format!("/apis/{GROUP}/v1/namespaces/{NAMESPACE}/{name}s")
}

//! `matchLabelKeys` of affinity terms and spread constraints: on creation of a pod, the keys become expressions of the
//! selector with the pod's own values (KEP-3633, KEP-3243).

use crate::shared::{
    Fields,
    value::{list_mut, object_mut},
};
use serde_json::{Value, json};

/// Adds the expressions to a new pod's selectors.
pub fn apply_label_keys(pod: &mut Value) {
    let labels = pod.at("metadata").at("labels").clone();
    let Some(spec) = object_mut(pod, "spec") else { return };
    if let Some(affinity) = object_mut(spec, "affinity") {
        for kind in ["podAffinity", "podAntiAffinity"] {
            let Some(a) = object_mut(affinity, kind) else { continue };
            for weighted in list_mut(a, "preferredDuringSchedulingIgnoredDuringExecution") {
                if let Some(term) = object_mut(weighted, "podAffinityTerm") {
                    add(term, &labels);
                }
            }
            for term in list_mut(a, "requiredDuringSchedulingIgnoredDuringExecution") {
                add(term, &labels);
            }
        }
    }
    for constraint in list_mut(spec, "topologySpreadConstraints") {
        add(constraint, &labels);
    }
}

fn add(holder: &mut Value, labels: &Value) {
    let mut new = vec![];
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in holder.strings(field) {
            if let Some(value) = labels.opt_text(key) {
                new.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    let Some(selector) = object_mut(holder, "labelSelector").filter(|_| !new.is_empty()) else { return };
    match selector.get_mut("matchExpressions") {
        Some(Value::Array(list)) => list.append(&mut new),
        _ => selector["matchExpressions"] = new.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_expressions() {
        let mut pod = json!({
            "metadata": {"labels": {"app": "a", "rev": "1"}},
            "spec": {"topologySpreadConstraints": [
                {"matchLabelKeys": ["rev", "none"], "labelSelector": {"matchLabels": {"app": "a"}}},
                {"matchLabelKeys": ["rev"]}
            ]}
        });
        apply_label_keys(&mut pod);
        assert_eq!(
            pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"],
            json!([{"key": "rev", "operator": "In", "values": ["1"]}])
        );
        assert_eq!(pod["spec"]["topologySpreadConstraints"][1], json!({"matchLabelKeys": ["rev"]}));
    }
}

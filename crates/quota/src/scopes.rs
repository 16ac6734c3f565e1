//! Scopes: the pods and claims that a quota counts.

use crate::{evaluator::Evaluator, pods};
use kaji_meta::object;
use serde_json::Value;

/// One condition of a quota.
struct Requirement<'a> {
    scope: &'a str,
    operator: &'a str,
    values: Vec<&'a str>,
}

/// `spec.scopes` and `spec.scopeSelector` of a quota.
fn requirements(quota: &Value) -> impl Iterator<Item = Requirement<'_>> {
    let plain = object::strs_at(quota, &["spec", "scopes"]).map(|scope| Requirement {
        scope,
        operator: "Exists",
        values: vec![],
    });
    let selected = object::arr_at(quota, &["spec", "scopeSelector", "matchExpressions"]).iter();
    plain.chain(selected.map(|e| Requirement {
        scope: object::str_at(e, &["scopeName"]),
        operator: object::str_at(e, &["operator"]),
        values: object::strs_at(e, &["values"]).collect(),
    }))
}

/// Whether an object is in the scopes of a quota. Only pods and claims have scopes.
pub(crate) fn in_scopes(quota: &Value, evaluator: &Evaluator, item: &Value) -> bool {
    requirements(quota).all(|r| match evaluator {
        Evaluator::Pods => pod_matches(&r, item),
        Evaluator::Claims => r.scope == "VolumeAttributesClass" && selects(&r, &attribute_classes(item)),
        _ => false,
    })
}

fn pod_matches(r: &Requirement<'_>, pod: &Value) -> bool {
    match r.scope {
        "Terminating" => pods::terminating(pod),
        "NotTerminating" => !pods::terminating(pod),
        "BestEffort" => pods::best_effort(pod),
        "NotBestEffort" => !pods::best_effort(pod),
        "CrossNamespacePodAffinity" => pods::crosses_namespaces(pod),
        "PriorityClass" => {
            let class = object::str_at(pod, &["spec", "priorityClassName"]);
            selects(r, &if class.is_empty() { vec![] } else { vec![class] })
        }
        _ => false,
    }
}

/// Whether any of these names is selected; of no names, whether their absence is.
fn selects(r: &Requirement<'_>, names: &[&str]) -> bool {
    match r.operator {
        "Exists" => !names.is_empty(),
        "DoesNotExist" => names.is_empty(),
        "In" => names.iter().any(|n| r.values.contains(n)),
        "NotIn" => names.is_empty() || names.iter().any(|n| !r.values.contains(n)),
        _ => false,
    }
}

/// The volume attributes classes that a claim has, requests, or is being moved to.
fn attribute_classes(claim: &Value) -> Vec<&str> {
    let paths: [&[&str]; 3] = [
        &["spec", "volumeAttributesClassName"],
        &["status", "currentVolumeAttributesClassName"],
        &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
    ];
    let mut names: Vec<&str> =
        paths.iter().map(|p| object::str_at(claim, p)).filter(|n| !n.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

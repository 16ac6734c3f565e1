//! Scopes: the pods and claims that a quota counts.

use crate::{evaluator::Evaluator, pods};
use kaji_meta::object;
use serde_json::Value;
use std::fmt;

/// One condition of a quota.
pub(crate) struct Requirement<'a> {
    pub scope: &'a str,
    operator: &'a str,
    values: Vec<&'a str>,
}

impl<'a> Requirement<'a> {
    /// A `ScopedResourceSelectorRequirement`.
    pub fn of(requirement: &'a Value) -> Self {
        Requirement {
            scope: object::str_at(requirement, &["scopeName"]),
            operator: object::str_at(requirement, &["operator"]),
            values: object::strs_at(requirement, &["values"]).collect(),
        }
    }
}

/// As Go prints the type.
impl fmt::Display for Requirement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{} {} [{}]}}", self.scope, self.operator, self.values.join(" "))
    }
}

/// `spec.scopes` and `spec.scopeSelector` of a quota.
pub(crate) fn requirements(quota: &Value) -> impl Iterator<Item = Requirement<'_>> {
    let plain = object::strs_at(quota, &["spec", "scopes"]).map(|scope| Requirement {
        scope,
        operator: "Exists",
        values: vec![],
    });
    let selected = object::arr_at(quota, &["spec", "scopeSelector", "matchExpressions"]).iter();
    plain.chain(selected.map(Requirement::of))
}

/// Whether an object is in the scopes of a quota. Only pods and claims have scopes.
pub(crate) fn in_scopes(quota: &Value, evaluator: &Evaluator, item: &Value) -> bool {
    requirements(quota).all(|r| matches(evaluator, &r, item))
}

/// Those of the conditions that an object meets.
pub(crate) fn matching<'a>(
    evaluator: &Evaluator,
    item: &Value,
    requirements: impl Iterator<Item = Requirement<'a>>,
) -> impl Iterator<Item = Requirement<'a>> {
    requirements.filter(|r| matches(evaluator, r, item))
}

fn matches(evaluator: &Evaluator, r: &Requirement<'_>, item: &Value) -> bool {
    match evaluator {
        Evaluator::Pods => pod_matches(r, item),
        Evaluator::Claims => r.scope == "VolumeAttributesClass" && selects(r, &attribute_classes(item)),
        _ => false,
    }
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

//! Writes of a kubelet to its own Node: labels, taints and owner references.

use super::new;
use kaji_engine::{Attributes, Operation};
use kaji_meta::{Status, object, semantic_equal, text::quote};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Labels of Kubernetes that kubelets set.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

pub(super) fn check(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let quoted = quote(node);
    if a.name != node {
        return Err(a.forbidden(format!("node {quoted} is not allowed to modify node {}", quote(a.name))));
    }
    match a.operation {
        Operation::Create => {
            if !new(a)["spec"]["configSource"].is_null() {
                let text = format!("node {quoted} is not allowed to create pods with a non-nil configSource");
                return Err(a.forbidden(text));
            }
            let forbidden = forbidden_labels(new(a), &Value::Null);
            if !forbidden.is_empty() {
                let labels = forbidden.join(", ");
                return Err(a.forbidden(format!(
                    "node {quoted} is not allowed to set the following labels: {labels}"
                )));
            }
        }
        Operation::Update => return update(a, &quoted),
        Operation::Delete | Operation::Connect => {}
    }
    Ok(())
}

fn update(a: &Attributes<'_>, quoted: &str) -> Result<(), Status> {
    let (new, old) = (new(a), a.old.unwrap_or(&Value::Null));
    let source = |node: &Value| node["spec"]["configSource"].clone();
    if !source(new).is_null() && !semantic_equal(&source(new), &source(old)) {
        let text =
            format!("node {quoted} is not allowed to update configSource to a new non-nil configSource");
        return Err(a.forbidden(text));
    }
    let same = |path: &[&str]| {
        let list = |node| object::arr_at(node, path);
        list(new).len() == list(old).len()
            && list(new).iter().zip(list(old)).all(|(n, o)| semantic_equal(n, o))
    };
    // A node that could remove its taints could draw pods to itself.
    if !same(&["spec", "taints"]) {
        return Err(a.forbidden(format!("node {quoted} is not allowed to modify taints")));
    }
    if !same(&["metadata", "ownerReferences"]) {
        return Err(a.forbidden(format!("node {quoted} is not allowed to modify ownerReferences")));
    }
    let forbidden = forbidden_labels(new, old);
    if !forbidden.is_empty() {
        return Err(a.forbidden(format!("is not allowed to modify labels: {}", forbidden.join(", "))));
    }
    Ok(())
}

/// Changed labels by which pods are steered to trusted nodes, or that Kubernetes keeps for itself.
pub(super) fn forbidden_labels(new: &Value, old: &Value) -> Vec<String> {
    let labels = |node| object::labels(node).collect::<BTreeMap<&str, &str>>();
    let (new, old) = (labels(new), labels(old));
    let keys: BTreeSet<&str> = new.keys().chain(old.keys()).copied().collect();
    let changed = keys.into_iter().filter(|key| new.get(key) != old.get(key));
    changed.filter(|key| forbidden(key)).map(str::to_owned).collect()
}

/// Whether a domain is another one or below it.
fn within(domain: &str, whole: &str) -> bool {
    domain.strip_suffix(whole).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn forbidden(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let kubernetes = within(domain, "kubernetes.io") || within(domain, "k8s.io");
    let kubelets = KUBELET_LABELS.contains(&key)
        || within(domain, "kubelet.kubernetes.io")
        || within(domain, "node.kubernetes.io");
    within(domain, "node-restriction.kubernetes.io") || kubernetes && !kubelets
}

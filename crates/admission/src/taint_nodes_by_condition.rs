//! `TaintNodesByCondition`: a new node is tainted as not ready, so that no pod is scheduled to it before its kubelet reports.

use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Status, object};
use kaji_resource::BoxFuture;
use serde_json::{Value, json};

/// The plugin.
pub(super) struct TaintNodesByCondition;

impl Admission for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::MUTATING.when(operation == Operation::Create && (group, resource) == ("", "nodes"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        if let Some(node) = a.object.as_deref_mut() {
            taint(node);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Adds the not-ready taint; the node lifecycle controller removes it.
fn taint(node: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let mut taints = object::arr_at(node, &["spec", "taints"]).to_vec();
    if !taints.iter().any(|t| t["key"] == taint["key"] && t["effect"] == taint["effect"]) {
        taints.push(taint);
        object::set_at(node, &["spec", "taints"], taints);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_nodes_are_not_ready() {
        let mut node =
            json!({"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}});
        taint(&mut node);
        taint(&mut node);
        assert_eq!(
            node["spec"]["taints"][1],
            json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
        );
        assert_eq!(node["spec"]["taints"].as_array().unwrap().len(), 2);
    }
}

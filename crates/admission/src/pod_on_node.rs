//! A change of the spec of a pod that is on a node: what the plugins that compare it with the node have in common.
//!
//! Invariant: a write that leaves the spec as it is never needs the node; its pod may be on one that is gone.

use crate::find;
use kaji_engine::{Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Status, object, semantic_equal, text::quote};
use serde_json::Value;
use std::sync::Arc;

/// Plugins see such a change as it will be stored.
pub(crate) fn phases(group: &str, resource: &str, operation: Operation) -> Phases {
    Phases::VALIDATING.when(operation == Operation::Update && (group, resource) == ("", "pods"))
}

/// The change.
pub(crate) struct SpecChange<'a> {
    pub pod: &'a Value,
    pub old: &'a Value,
    node: &'a str,
}

impl<'a> SpecChange<'a> {
    /// `None` if the pod has no node, or its spec stays as it is.
    pub(crate) fn of(a: &'a Attributes<'_>) -> Option<SpecChange<'a>> {
        let (pod, old) = (a.new_object()?, a.old?);
        let node = object::str_at(pod, &["spec", "nodeName"]);
        let changed = !node.is_empty() && !semantic_equal(&pod["spec"], &old["spec"]);
        changed.then_some(SpecChange { pod, old, node })
    }

    /// The node.
    ///
    /// # Errors
    /// 403 if there is none of this name.
    pub(crate) async fn node(&self, a: &Attributes<'_>) -> Result<Arc<Value>, Status> {
        let node = find(a, &GroupResource::new("", "nodes"), self.node).await?;
        node.ok_or_else(|| a.forbidden(format!("node {} not found", quote(self.node))))
    }
}

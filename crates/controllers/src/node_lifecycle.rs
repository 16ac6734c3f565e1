//! The life cycle of nodes: taints that say of a node what its conditions say, so that new pods do not go where they could not
//! run, and the [`monitor`] of their health, which also taints nodes so that their pods are replaced on others.
//! Source: Kubernetes' "Taint nodes by condition"; upstream's node lifecycle controller does this.
//!
//! Invariants of the taints by condition:
//! - Only the `NoSchedule` taints of the keys below are kept; all others are left alone.
//! - A write names the uid and resourceVersion that it was decided for: it writes all taints at once.

mod health;
mod leases;
mod metrics;
mod monitor;
#[cfg(test)]
mod tests;
mod zones;

use crate::{Descriptor, Start};
use kaji_runtime::{
    Controller, Cx, Informers, Key, PatchKind, Plan, Reconciler, View, Write,
    client::Target,
    objects::{Node, Taint},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Condition, status, taint.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", "node.kubernetes.io/not-ready"),
    ("Ready", "Unknown", "node.kubernetes.io/unreachable"),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const EFFECT: &str = "NoSchedule";

const COMPONENT: &str = "node-taints";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "node-lifecycle-controller",
    components: &[COMPONENT, monitor::COMPONENT],
    service_account: Some("node-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        vec![controller(informers), monitor::controller(informers, config.loops.nodes)]
    }),
};

/// The controller of taints by condition.
fn controller(informers: &Arc<Informers>) -> Controller {
    Controller::new(Taints, informers).reads::<Node>(|change, _| {
        let due = |node: &&Arc<Node>| taints(node, jiff::Timestamp::UNIX_EPOCH) != node.spec.taints;
        change.new.iter().filter(due).map(|node| node.metadata.key()).collect()
    })
}

struct Taints;

/// The keys that a node is to be tainted with.
fn wanted(node: &Node) -> Vec<&'static str> {
    let is = |kind: &str, status: &str| {
        node.status.conditions.iter().any(|c| c.kind == kind && c.status == status)
    };
    let by_condition = BY_CONDITION.iter().filter(|(kind, status, _)| is(kind, status));
    let cordoned = node.spec.unschedulable.then_some(UNSCHEDULABLE);
    by_condition.map(|(_, _, key)| *key).chain(cordoned).collect()
}

/// Whether a taint is one that follows from conditions.
fn ours(taint: &Taint) -> bool {
    let known = BY_CONDITION.iter().any(|(_, _, key)| taint.key == *key) || taint.key == UNSCHEDULABLE;
    known && taint.effect == EFFECT
}

/// The taints as they should be.
fn taints(node: &Node, now: jiff::Timestamp) -> Vec<Taint> {
    // Before its kubelet has said anything, a node stays as admission marked it.
    if !node.status.conditions.iter().any(|c| c.kind == "Ready") && !node.spec.unschedulable {
        return node.spec.taints.clone();
    }
    let wanted = wanted(node);
    let keep = |t: &&Taint| !ours(t) || wanted.contains(&t.key.as_str());
    let mut taints: Vec<Taint> = node.spec.taints.iter().filter(keep).cloned().collect();
    for key in wanted {
        if !taints.iter().any(|t| t.key == key && t.effect == EFFECT) {
            let time_added = Some(now);
            taints.push(Taint { key: key.into(), effect: EFFECT.into(), time_added, ..Taint::default() });
        }
    }
    taints
}

impl Reconciler for Taints {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "node_lifecycle_controller"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let nodes = view.get::<Node>();
        let Some(node) = nodes.by_key(key) else { return Plan::nothing() };
        let taints = taints(node, cx.now);
        if taints == node.spec.taints {
            return Plan::nothing();
        }
        Plan::nothing().then(patch_taints(node, &taints))
    }
}

/// Replaces all taints of a node, which has to be as the view shows it.
pub(crate) fn patch_taints(node: &Node, taints: &[Taint]) -> Write {
    let meta = &node.metadata;
    Write::Patch {
        target: Target::of::<Node>("", &meta.name),
        kind: PatchKind::Merge,
        body: json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "spec": {"taints": taints.iter().map(taint_value).collect::<Vec<_>>()},
        }),
    }
}

/// A taint as a node's spec has it.
pub(crate) fn taint_value(taint: &Taint) -> Value {
    let mut value = json!({"key": taint.key, "effect": taint.effect});
    if !taint.value.is_empty() {
        value["value"] = taint.value.as_str().into();
    }
    if let Some(time) = taint.time_added {
        value["timeAdded"] = crate::shared::conditions::seconds(time).to_string().into();
    }
    value
}

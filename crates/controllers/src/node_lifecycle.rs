//! Taints that say of a node what its conditions say: new pods do not go where they could not run.
//! Source: Kubernetes' "Taint nodes by condition"; upstream's node lifecycle controller does this.
//!
//! Invariants:
//! - Only the `NoSchedule` taints of the keys below are kept; all others are left alone.
//! - A write names the uid and resourceVersion that it was decided for: it writes all taints at once.

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
    components: &[COMPONENT],
    service_account: Some("node-controller"),
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The controller.
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

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let nodes = view.get::<Node>();
        let Some(node) = nodes.by_key(key) else { return Plan::nothing() };
        let taints = taints(node, cx.now);
        if taints == node.spec.taints {
            return Plan::nothing();
        }
        let meta = &node.metadata;
        Plan::nothing().then(Write::Patch {
            target: Target::of::<Node>("", &meta.name),
            kind: PatchKind::Merge,
            body: json!({
                "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
                "spec": {"taints": taints.iter().map(value).collect::<Vec<_>>()},
            }),
        })
    }
}

fn value(taint: &Taint) -> Value {
    let mut value = json!({"key": taint.key, "effect": taint.effect});
    if !taint.value.is_empty() {
        value["value"] = taint.value.as_str().into();
    }
    if let Some(time) = taint.time_added {
        value["timeAdded"] = crate::shared::conditions::seconds(time).to_string().into();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{reconcile, snapshot, text};
    use expect_test::expect;

    fn plan(spec: Value, conditions: &[(&str, &str)]) -> String {
        let conditions: Vec<Value> =
            conditions.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect();
        let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "7"}, "spec": spec,
            "status": {"conditions": conditions}});
        text(&reconcile(&Taints, &View::default().with(snapshot::<Node>([node])), "", "n", &[]))
    }

    #[test]
    fn sets_taints_from_conditions() {
        let new = json!({"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}, {"key": "mine", "value": "v", "effect": "NoSchedule"}]});
        let all = [
            plan(new.clone(), &[]),
            plan(new.clone(), &[("Ready", "False")]),
            plan(new.clone(), &[("Ready", "True")]),
            plan(new, &[("Ready", "Unknown"), ("DiskPressure", "True"), ("MemoryPressure", "False")]),
            plan(json!({"unschedulable": true}), &[("Ready", "True")]),
            plan(json!({}), &[("Ready", "True"), ("PIDPressure", "True"), ("NetworkUnavailable", "True")]),
        ];
        expect![[r#"
            =
            =
            merge /api/v1/nodes/n {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"effect":"NoExecute","key":"node.kubernetes.io/not-ready"},{"effect":"NoSchedule","key":"mine","value":"v"}]}}
            =
            merge /api/v1/nodes/n {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"effect":"NoExecute","key":"node.kubernetes.io/not-ready"},{"effect":"NoSchedule","key":"mine","value":"v"},{"effect":"NoSchedule","key":"node.kubernetes.io/unreachable","timeAdded":"2025-01-01T12:00:00Z"},{"effect":"NoSchedule","key":"node.kubernetes.io/disk-pressure","timeAdded":"2025-01-01T12:00:00Z"}]}}
            =
            merge /api/v1/nodes/n {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"effect":"NoSchedule","key":"node.kubernetes.io/unschedulable","timeAdded":"2025-01-01T12:00:00Z"}]}}
            =
            merge /api/v1/nodes/n {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"effect":"NoSchedule","key":"node.kubernetes.io/network-unavailable","timeAdded":"2025-01-01T12:00:00Z"},{"effect":"NoSchedule","key":"node.kubernetes.io/pid-pressure","timeAdded":"2025-01-01T12:00:00Z"}]}}
        "#]].assert_eq(&all.join("=\n"));
    }
}

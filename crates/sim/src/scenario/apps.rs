//! Deployments, stateful sets and daemon sets that are scaled, rolled, paused and deleted; budgets and evictions; claims; autoscalers.
//!
//! Invariant: of `maxSurge` and `maxUnavailable` one is not zero.

use super::{
    AUTOSCALERS, Action, BUDGETS, DAEMON_SETS, DEPLOYMENTS, NAMESPACE, STATEFUL_SETS, Step, deletion, later,
    template, workload_object,
};
use crate::faults::Dice;
use serde_json::{Value, json};

/// One of some values.
pub(super) fn pick(dice: &Dice, values: &[Value]) -> Value {
    values[usize::try_from(dice.below(values.len() as u64)).unwrap_or(0)].clone()
}

/// Another revision.
fn rolled(dice: &Dice, name: &str) -> Value {
    json!({"spec": {"template": template(name, &format!("image:{}", dice.below(4)))}})
}

pub(super) fn deployment(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let unavailable = pick(dice, &[json!(0), json!(1), json!(2), json!("25%"), json!("50%")]);
    let mut surge = pick(dice, &[json!(0), json!(1), json!(2), json!("25%"), json!("100%")]);
    if unavailable == 0 && surge == 0 {
        surge = json!(1);
    }
    let spec = json!({"replicas": 1 + dice.below(8), "strategy": {"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}});
    let object = workload_object("apps/v1", "Deployment", name, &spec);
    steps.push(Step::new(begin, Action::Create(DEPLOYMENTS, object)));
    let (path, mut at) = (format!("{DEPLOYMENTS}/{name}"), begin);
    for _ in 0..dice.below(5) {
        let patch = match dice.below(4) {
            0 => json!({"spec": {"replicas": dice.below(10)}}),
            1..=2 => rolled(dice, name),
            _ => json!({"spec": {"paused": dice.once_in(2)}}),
        };
        steps.push(Step::new(later(dice, &mut at), Action::Patch(path.clone(), patch)));
    }
    let resumed = json!({"spec": {"paused": false}});
    steps.push(Step::new(later(dice, &mut at), Action::Patch(path.clone(), resumed)));
    deletion(dice, path, &mut at, steps);
}

pub(super) fn stateful_set(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let policy = if dice.once_in(2) { "OrderedReady" } else { "Parallel" };
    let most = pick(dice, &[Value::Null, Value::Null, json!(2), json!("50%")]);
    let rolling = if most.is_null() { json!({}) } else { json!({"maxUnavailable": most}) };
    let spec = json!({"replicas": 1 + dice.below(5), "serviceName": name, "podManagementPolicy": policy,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}});
    let object = workload_object("apps/v1", "StatefulSet", name, &spec);
    ordered(dice, name, object, begin, steps);
}

/// A stateful set's life.
fn ordered(dice: &Dice, name: &str, object: Value, begin: u64, steps: &mut Vec<Step>) {
    steps.push(Step::new(begin, Action::Create(STATEFUL_SETS, object)));
    let (path, mut at) = (format!("{STATEFUL_SETS}/{name}"), begin);
    for _ in 0..dice.below(4) {
        let patch = match dice.below(2) {
            0 => json!({"spec": {"replicas": dice.below(6)}}),
            _ => rolled(dice, name),
        };
        steps.push(Step::new(later(dice, &mut at), Action::Patch(path.clone(), patch)));
    }
    deletion(dice, path, &mut at, steps);
}

/// A stateful set of pods with volumes of the default class.
pub(super) fn with_claims(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let retention = |dice: &Dice| pick(dice, &[json!("Retain"), json!("Delete")]);
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let spec = json!({"replicas": 1 + dice.below(4), "serviceName": name, "volumeClaimTemplates": [claim],
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": retention(dice), "whenScaled": retention(dice)}});
    let object = workload_object("apps/v1", "StatefulSet", name, &spec);
    ordered(dice, name, object, begin, steps);
}

pub(super) fn daemon_set(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let rolling = [
        json!({"maxUnavailable": 1}),
        json!({"maxUnavailable": "50%"}),
        json!({"maxSurge": 1, "maxUnavailable": 0}),
    ];
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": pick(dice, &rolling)});
    let object = workload_object("apps/v1", "DaemonSet", name, &json!({"updateStrategy": strategy}));
    steps.push(Step::new(begin, Action::Create(DAEMON_SETS, object)));
    let (path, mut at) = (format!("{DAEMON_SETS}/{name}"), begin);
    for _ in 0..dice.below(3) {
        steps.push(Step::new(later(dice, &mut at), Action::Patch(path.clone(), rolled(dice, name))));
    }
    deletion(dice, path, &mut at, steps);
}

/// A deployment with a budget, of which pods are evicted.
pub(super) fn budgeted(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let replicas = 2 + dice.below(5);
    let object = workload_object("apps/v1", "Deployment", name, &json!({"replicas": replicas}));
    steps.push(Step::new(begin, Action::Create(DEPLOYMENTS, object)));
    let least = 1 + dice.below(replicas - 1);
    let bounds = [
        json!({"minAvailable": least}),
        json!({"minAvailable": least}),
        json!({"minAvailable": "60%"}),
        json!({"maxUnavailable": 1}),
        json!({"maxUnavailable": "40%"}),
    ];
    let mut spec = pick(dice, &bounds);
    spec["selector"] = json!({"matchLabels": {"app": name}});
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    steps.push(Step::new(begin, Action::Create(BUDGETS, budget)));
    let mut at = begin + 10_000;
    for _ in 0..dice.below(8) {
        at += dice.below(3_000);
        steps.push(Step::new(at, Action::Evict(name.to_owned())));
    }
}

/// A deployment that is scaled by how much its pods use of what they request.
pub(super) fn autoscaled(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let annotated = |dice: &Dice| {
        let usage = pick(dice, &["2m", "4m", "8m", "15m", "30m"].map(Value::from));
        json!({"sim.kaji.dev/cpu-usage": usage})
    };
    let mut object = workload_object("apps/v1", "Deployment", name, &json!({"replicas": 1 + dice.below(4)}));
    object["spec"]["template"]["metadata"]["annotations"] = annotated(dice);
    steps.push(Step::new(begin, Action::Create(DEPLOYMENTS, object)));
    let target = json!({"type": "Utilization", "averageUtilization": 50});
    let scaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"minReplicas": 1, "maxReplicas": 6,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]}});
    steps.push(Step::new(begin, Action::Create(AUTOSCALERS, scaler)));
    let (path, mut at) = (format!("{DEPLOYMENTS}/{name}"), begin);
    for _ in 0..dice.below(3) {
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotated(dice)}}}});
        steps.push(Step::new(later(dice, &mut at), Action::Patch(path.clone(), patch)));
    }
}

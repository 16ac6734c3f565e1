//! Pods that the scheduler has to place with care: more important ones on full nodes, spread ones, ones that keep apart, gangs.
//!
//! Invariant: in the end all pods fit.

use super::{Action, DEPLOYMENTS, NAMESPACE, POD_GROUPS, PRIORITY_CLASSES, Step, later, workload_object};
use crate::faults::Dice;
use serde_json::{Value, json};

/// What half of a simulated node's processors is, but for what small pods need.
const NEARLY_HALF: &str = "15";

/// Unimportant pods fill the nodes; important ones come, take the place of some, and go again.
pub(super) fn preemption(dice: &Dice, nodes: u16, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let places = 2 * u64::from(nodes);
    let mut at = begin;
    for (suffix, value, replicas) in [("low", -10, places), ("high", 1_000, 1 + dice.below(places))] {
        let name = format!("{name}-{suffix}");
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value});
        steps.push(Step::new(at, Action::Create(PRIORITY_CLASSES, class)));
        let mut object = workload_object("apps/v1", "Deployment", &name, &json!({"replicas": replicas}));
        let spec = &mut object["spec"]["template"]["spec"];
        spec["priorityClassName"] = json!(name);
        spec["containers"][0]["resources"]["requests"]["cpu"] = json!(NEARLY_HALF);
        steps.push(Step::new(at, Action::Create(DEPLOYMENTS, object)));
        later(dice, &mut at);
    }
    let path = format!("{DEPLOYMENTS}/{name}-high");
    steps.push(Step::new(later(dice, &mut at), Action::Delete(path, "Background")));
}

fn replicated(dice: &Dice, name: &str, pod: &Value, replicas: u64, begin: u64, steps: &mut Vec<Step>) {
    // Without surplus pods: they would not fit beside the former ones.
    let spec = json!({"replicas": replicas, "strategy": {"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}});
    let mut object = workload_object("apps/v1", "Deployment", name, &spec);
    let spec = &mut object["spec"]["template"]["spec"];
    for (field, value) in pod.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let mut other = object["spec"]["template"].clone();
    other["spec"]["containers"][0]["image"] = json!("image:2");
    steps.push(Step::new(begin, Action::Create(DEPLOYMENTS, object)));
    let (path, mut at) = (format!("{DEPLOYMENTS}/{name}"), begin);
    if dice.once_in(2) {
        let rolled = json!({"spec": {"template": other}});
        steps.push(Step::new(later(dice, &mut at), Action::Patch(path, rolled)));
    }
}

/// Pods that must be spread over the nodes.
pub(super) fn spread(dice: &Dice, nodes: u16, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let constraint = json!({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": name}}});
    let replicas = 1 + dice.below(2 * u64::from(nodes));
    replicated(dice, name, &json!({"topologySpreadConstraints": [constraint]}), replicas, begin, steps);
}

/// Pods of which each has a node of its own.
pub(super) fn apart(dice: &Dice, nodes: u16, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let term =
        json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": name}}});
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let replicas = 1 + dice.below(u64::from(nodes));
    replicated(dice, name, &json!({"affinity": affinity}), replicas, begin, steps);
}

/// Pods of which all are scheduled, or none. They run on: a pod that has ended does not count for its group, so that one which takes
/// the place of a failed pod would wait for others that have succeeded.
pub(super) fn gang(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let count = 2 + dice.below(4);
    let group = json!({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}}});
    let mut object = workload_object("apps/v1", "Deployment", name, &json!({"replicas": count}));
    object["spec"]["template"]["spec"]["schedulingGroup"] = json!({"podGroupName": name});
    // The group may come after its pods.
    let first = [Action::Create(POD_GROUPS, group), Action::Create(DEPLOYMENTS, object)];
    let late = dice.below(20_000);
    let times = if dice.once_in(2) { [begin, begin + late] } else { [begin + late, begin] };
    steps.extend(times.into_iter().zip(first).map(|(at, action)| Step::new(at, action)));
}

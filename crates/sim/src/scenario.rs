//! What happens in a run, and when: what a user does, and what befalls machines and processes. Drawn from the seed.
//!
//! Invariant: names are unique in a scenario, and every object that is patched or deleted was created in an earlier step.

use crate::faults::Dice;
use serde_json::{Value, json};

/// What is done in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Creates an object; its path is that of the collection.
    Create(&'static str, Value),
    /// Patches an object (merge patch).
    Patch(String, Value),
    /// Deletes an object with a propagation policy.
    Delete(String, &'static str),
    /// Evicts a pod that a budget's selector matches.
    Evict(String),
    /// A node reaches the server no more, for so many seconds.
    Partition(String, u64),
    /// The processes of the control loops are killed and started again.
    RestartLoops,
    /// The process of the server is killed and started again.
    RestartServer,
    /// The store's disk is full for so many seconds.
    FullDisk(u64),
    /// The machine's clock is set forward by so many seconds, or back.
    ClockStep(i64),
}

/// An action and its time, in milliseconds since the workload began.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// When.
    pub at_millis: u64,
    /// What.
    pub action: Action,
}

const NAMESPACE: &str = "default";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const STATEFUL_SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

/// Draws what a user does.
#[must_use]
pub fn workload(dice: &Dice) -> Vec<Step> {
    let mut steps = vec![];
    if dice.once_in(3) {
        steps.push(Step { at_millis: 0, action: quota(20 + dice.below(20)) });
    }
    for index in 0..2 + dice.below(4) {
        let begin = dice.below(60_000);
        match dice.below(6) {
            0..=1 => deployment(dice, &format!("d{index}"), begin, &mut steps),
            2 => stateful_set(dice, &format!("s{index}"), begin, &mut steps),
            3 => daemon_set(dice, &format!("e{index}"), begin, &mut steps),
            4 => job(dice, &format!("j{index}"), begin, &mut steps),
            _ => budgeted(dice, &format!("b{index}"), begin, &mut steps),
        }
    }
    steps
}

/// Draws what happens to machines and processes, in the first minutes.
#[must_use]
pub fn disturbances(dice: &Dice, nodes: u16) -> Vec<Step> {
    let mut steps = vec![];
    for _ in 0..dice.below(3) {
        steps.push(Step { at_millis: dice.below(240_000), action: Action::RestartLoops });
    }
    if dice.once_in(3) {
        steps.push(Step { at_millis: dice.below(240_000), action: Action::RestartServer });
    }
    if nodes > 1 && dice.once_in(4) {
        let node = format!("sim-{}", 1 + dice.below(u64::from(nodes)));
        let action = Action::Partition(node, 20 + dice.below(600));
        steps.push(Step { at_millis: dice.below(180_000), action });
    }
    if dice.once_in(5) {
        let action = Action::FullDisk(1 + dice.below(90));
        steps.push(Step { at_millis: dice.below(240_000), action });
    }
    for _ in 0..dice.below(3) {
        let seconds = i64::try_from(dice.below(120)).unwrap_or(0);
        let action = Action::ClockStep(if dice.once_in(2) { -(seconds / 4) } else { seconds });
        steps.push(Step { at_millis: dice.below(240_000), action });
    }
    steps
}

fn template(name: &str, image: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": image,
            "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}}}]},
    })
}

fn workload_object(version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["selector"] = json!({"matchLabels": {"app": name}});
    spec["template"] = template(name, "image:1");
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
}

/// Later steps of an object: at growing times after its creation.
fn later(dice: &Dice, at: &mut u64) -> u64 {
    *at += 500 + dice.below(60_000);
    *at
}

fn deletion(dice: &Dice, path: String, at: &mut u64, steps: &mut Vec<Step>) {
    if dice.once_in(3) {
        let policies = ["Foreground", "Background"];
        let policy = policies[usize::try_from(dice.below(2)).unwrap_or(0)];
        steps.push(Step { at_millis: later(dice, at), action: Action::Delete(path, policy) });
    }
}

fn deployment(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let (surge, unavailable) = (dice.below(3), dice.below(2));
    let spec = json!({"replicas": 1 + dice.below(8), "strategy": {"type": "RollingUpdate", "rollingUpdate":
        {"maxSurge": surge.max(u64::from(unavailable == 0)), "maxUnavailable": unavailable}}});
    let object = workload_object("apps/v1", "Deployment", name, &spec);
    steps.push(Step { at_millis: begin, action: Action::Create(DEPLOYMENTS, object) });
    let (path, mut at) = (format!("{DEPLOYMENTS}/{name}"), begin);
    for _ in 0..dice.below(5) {
        let patch = match dice.below(3) {
            0 => json!({"spec": {"replicas": dice.below(10)}}),
            1 => json!({"spec": {"template": template(name, &format!("image:{}", dice.below(4)))}}),
            _ => json!({"spec": {"paused": dice.once_in(2)}}),
        };
        steps.push(Step { at_millis: later(dice, &mut at), action: Action::Patch(path.clone(), patch) });
    }
    let resumed = json!({"spec": {"paused": false}});
    steps.push(Step { at_millis: later(dice, &mut at), action: Action::Patch(path.clone(), resumed) });
    deletion(dice, path, &mut at, steps);
}

fn stateful_set(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let policy = if dice.once_in(2) { "OrderedReady" } else { "Parallel" };
    let spec = json!({"replicas": 1 + dice.below(5), "serviceName": name, "podManagementPolicy": policy});
    let object = workload_object("apps/v1", "StatefulSet", name, &spec);
    steps.push(Step { at_millis: begin, action: Action::Create(STATEFUL_SETS, object) });
    let (path, mut at) = (format!("{STATEFUL_SETS}/{name}"), begin);
    for _ in 0..dice.below(4) {
        let patch = match dice.below(2) {
            0 => json!({"spec": {"replicas": dice.below(6)}}),
            _ => json!({"spec": {"template": template(name, &format!("image:{}", dice.below(4)))}}),
        };
        steps.push(Step { at_millis: later(dice, &mut at), action: Action::Patch(path.clone(), patch) });
    }
    deletion(dice, path, &mut at, steps);
}

fn daemon_set(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let object = workload_object("apps/v1", "DaemonSet", name, &json!({}));
    steps.push(Step { at_millis: begin, action: Action::Create(DAEMON_SETS, object) });
    let (path, mut at) = (format!("{DAEMON_SETS}/{name}"), begin);
    if dice.once_in(2) {
        let patch = json!({"spec": {"template": template(name, "image:2")}});
        steps.push(Step { at_millis: later(dice, &mut at), action: Action::Patch(path.clone(), patch) });
    }
    deletion(dice, path, &mut at, steps);
}

fn job(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let mut template = template(name, "image:1");
    template["metadata"]["annotations"] = json!({"sim.kaji.dev/exit-after": format!("{}s", dice.below(20))});
    template["spec"]["restartPolicy"] = json!("Never");
    let completions = 1 + dice.below(8);
    let object = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"parallelism": 1 + dice.below(4), "completions": completions, "template": template}});
    steps.push(Step { at_millis: begin, action: Action::Create(JOBS, object) });
    let mut at = begin;
    deletion(dice, format!("{JOBS}/{name}"), &mut at, steps);
}

fn budgeted(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let replicas = 2 + dice.below(5);
    let object = workload_object("apps/v1", "Deployment", name, &json!({"replicas": replicas}));
    steps.push(Step { at_millis: begin, action: Action::Create(DEPLOYMENTS, object) });
    let spec =
        json!({"minAvailable": 1 + dice.below(replicas - 1), "selector": {"matchLabels": {"app": name}}});
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    steps.push(Step { at_millis: begin, action: Action::Create(BUDGETS, budget) });
    let mut at = begin + 10_000;
    for _ in 0..dice.below(8) {
        at += dice.below(3_000);
        steps.push(Step { at_millis: at, action: Action::Evict(name.to_owned()) });
    }
}

fn quota(pods: u64) -> Action {
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota", "namespace": NAMESPACE},
        "spec": {"hard": {"pods": pods.to_string()}}});
    Action::Create(QUOTAS, quota)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_scenario() {
        for seed in 0..200 {
            let draw = || {
                let dice = Dice::new(seed);
                (workload(&dice), disturbances(&dice, 3))
            };
            assert_eq!(draw(), draw());
            assert!(draw().0.len() >= 2);
        }
    }

    #[test]
    fn objects_exist_before_they_are_changed() {
        for seed in 0..200 {
            let mut paths = std::collections::BTreeSet::new();
            let mut steps = workload(&Dice::new(seed));
            steps.sort_by_key(|step| step.at_millis);
            for step in steps {
                match step.action {
                    Action::Create(collection, object) => {
                        let name = object["metadata"]["name"].as_str().unwrap();
                        assert!(paths.insert(format!("{collection}/{name}")), "{name} twice");
                    }
                    Action::Patch(path, _) => assert!(paths.contains(&path), "{path}"),
                    Action::Delete(path, _) => assert!(paths.remove(&path), "{path}"),
                    _ => {}
                }
            }
        }
    }
}

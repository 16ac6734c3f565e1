//! What happens in a run, and when: what a user does, and what befalls machines and processes. Drawn from the seed.
//!
//! Invariants:
//! - Names are unique in a scenario, and every object that is patched or deleted was created in an earlier step.
//! - A step that is a fault has a number below [`FIRST_CALL`], by which it can be left out; the end of a fault has that of its
//!   beginning.

mod apps;
mod batch;
pub mod churn;
mod custom;
mod scheduling;

use crate::faults::{Dice, FIRST_CALL};
use serde_json::{Value, json};

/// What is done in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Creates an object; its path is that of the collection.
    Create(&'static str, Value),
    /// Creates a custom resource, as soon as its kind is served.
    CreateServed(Value),
    /// Patches an object (merge patch).
    Patch(String, Value),
    /// Deletes an object with a propagation policy.
    Delete(String, &'static str),
    /// Evicts a pod that a budget's selector matches.
    Evict(String),
    /// A node is down, as `sim.kaji.dev/down` says it.
    NodeDown(String, &'static str),
    /// A node is up again.
    NodeUp(String),
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
    /// The number of the fault that it is, or ends.
    pub fault: Option<u64>,
    /// What.
    pub action: Action,
}

impl Step {
    fn new(at_millis: u64, action: Action) -> Step {
        Step { at_millis, fault: None, action }
    }
}

const NAMESPACE: &str = "default";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const STATEFUL_SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const CRON_JOBS: &str = "/apis/batch/v1/namespaces/default/cronjobs";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const AUTOSCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
const PRIORITY_CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
const POD_GROUPS: &str = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Draws what a user does with so many nodes.
#[must_use]
pub fn workload(dice: &Dice, nodes: u16) -> Vec<Step> {
    let mut steps = vec![];
    if dice.once_in(3) {
        steps.push(Step::new(0, quota(20 + dice.below(20))));
    }
    // One fills the nodes; two would never fit.
    let full = dice.once_in(4);
    if full {
        scheduling::preemption(dice, nodes, "p", dice.below(60_000), &mut steps);
    }
    for index in 0..2 + dice.below(4) {
        let begin = dice.below(60_000);
        match dice.below(16) {
            0..=2 => apps::deployment(dice, &format!("d{index}"), begin, &mut steps),
            3..=4 => apps::stateful_set(dice, &format!("s{index}"), begin, &mut steps),
            5 => apps::daemon_set(dice, &format!("e{index}"), begin, &mut steps),
            6 => batch::job(dice, &format!("j{index}"), begin, &mut steps),
            7 => batch::cron_job(dice, &format!("c{index}"), begin, &mut steps),
            8..=9 => apps::budgeted(dice, &format!("b{index}"), begin, &mut steps),
            10 => apps::autoscaled(dice, &format!("h{index}"), begin, &mut steps),
            11 => apps::with_claims(dice, &format!("v{index}"), begin, &mut steps),
            12 => scheduling::spread(dice, nodes, &format!("t{index}"), begin, &mut steps),
            13 => scheduling::apart(dice, nodes, &format!("a{index}"), begin, &mut steps),
            14 => scheduling::gang(dice, &format!("g{index}"), begin, &mut steps),
            _ => custom::resources(dice, &format!("x{index}"), begin, &mut steps),
        }
    }
    steps
}

/// Draws what happens to machines and processes, in the first minutes.
#[must_use]
pub fn disturbances(dice: &Dice, nodes: u16) -> Vec<Step> {
    let mut drawn = vec![];
    for _ in 0..dice.below(3) {
        drawn.push(vec![(dice.below(240_000), Action::RestartLoops)]);
    }
    if dice.once_in(3) {
        drawn.push(vec![(dice.below(240_000), Action::RestartServer)]);
    }
    let node = || format!("sim-{}", 1 + dice.below(u64::from(nodes)));
    if nodes > 1 && dice.once_in(4) {
        let action = Action::Partition(node(), 20 + dice.below(600));
        drawn.push(vec![(dice.below(180_000), action)]);
    }
    if nodes > 1 && dice.once_in(3) {
        for _ in 0..1 + dice.below(2) {
            let (node, at) = (node(), 10_000 + dice.below(180_000));
            let failure = if dice.once_in(2) { "crashed" } else { "unreachable" };
            let back = at + 5_000 + 1_000 * dice.below(600);
            drawn.push(vec![(at, Action::NodeDown(node.clone(), failure)), (back, Action::NodeUp(node))]);
        }
    }
    if dice.once_in(5) {
        let action = Action::FullDisk(1 + dice.below(90));
        drawn.push(vec![(dice.below(240_000), action)]);
    }
    for _ in 0..dice.below(3) {
        let seconds = i64::try_from(dice.below(120)).unwrap_or(0);
        let action = Action::ClockStep(if dice.once_in(2) { -(seconds / 4) } else { seconds });
        drawn.push(vec![(dice.below(240_000), action)]);
    }
    numbered(drawn)
}

/// Steps of faults, each fault with a number.
fn numbered(faults: Vec<Vec<(u64, Action)>>) -> Vec<Step> {
    let numbers = 1..FIRST_CALL;
    let steps = numbers.zip(faults).flat_map(|(number, steps)| {
        steps.into_iter().map(move |(at_millis, action)| Step { at_millis, fault: Some(number), action })
    });
    steps.collect()
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
        steps.push(Step::new(later(dice, at), Action::Delete(path, policy)));
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
                (workload(&dice, 3), disturbances(&dice, 3))
            };
            assert_eq!(draw(), draw());
            assert!(draw().0.len() >= 2);
        }
    }

    /// Checks that what is patched and deleted is there; how many objects there were at once at most.
    fn follow(mut steps: Vec<Step>) -> usize {
        let (mut paths, mut most) = (std::collections::BTreeSet::new(), 0);
        steps.sort_by_key(|step| step.at_millis);
        for step in steps {
            match step.action {
                Action::Create(collection, object) => {
                    let name = object["metadata"]["name"].as_str().unwrap();
                    assert!(paths.insert(format!("{collection}/{name}")), "{name} twice");
                }
                Action::CreateServed(object) => {
                    let name = object["metadata"]["name"].as_str().unwrap();
                    assert!(paths.contains(&format!("{DEFINITIONS}/{}", custom::definition_of(&object))));
                    assert!(paths.insert(format!("{}/{name}", custom::path_of(&object))), "{name} twice");
                }
                Action::Patch(path, _) => assert!(paths.contains(&path), "{path}"),
                Action::Delete(path, _) => assert!(paths.remove(&path), "{path}"),
                _ => {}
            }
            most = most.max(paths.iter().filter(|path| path.starts_with(DEPLOYMENTS)).count());
        }
        most
    }

    #[test]
    fn objects_exist_before_they_are_changed() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..400 {
            let steps = workload(&Dice::new(seed), 3);
            for step in &steps {
                if let Action::Create(path, _) = step.action {
                    kinds.insert(path);
                }
            }
            follow(steps);
        }
        assert_eq!(kinds.len(), 11, "{kinds:?}");
    }

    #[test]
    fn a_churn_has_some_deployments_at_once_and_changes_them_all_the_time() {
        for seed in 0..10 {
            let steps = churn::churn(&Dice::new(seed), 500, std::time::Duration::from_secs(3_600));
            assert!(steps.len() > 600 && steps.iter().all(|step| step.at_millis < 4_300_000));
            assert!(steps.iter().filter(|step| matches!(step.action, Action::NodeDown(..))).count() > 30);
            let most = follow(steps);
            assert!((25..=50).contains(&most), "{most}");
        }
    }

    #[test]
    fn a_node_that_is_down_comes_up_again_and_both_are_one_fault() {
        let mut ups = 0;
        for seed in 0..200 {
            let steps = disturbances(&Dice::new(seed), 3);
            let numbers: Vec<u64> = steps.iter().filter_map(|step| step.fault).collect();
            assert!(numbers.iter().all(|number| (1..FIRST_CALL).contains(number)), "{numbers:?}");
            for step in &steps {
                let Action::NodeDown(node, _) = &step.action else { continue };
                let up = Action::NodeUp(node.clone());
                let up = steps.iter().find(|other| other.action == up && other.fault == step.fault).unwrap();
                assert!(up.at_millis > step.at_millis);
                ups += 1;
            }
        }
        assert!(ups > 20, "{ups}");
    }
}

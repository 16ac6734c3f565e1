//! A busy cluster: deployments and jobs come, are scaled, rolled and deleted all the time, and nodes die and return.
//!
//! Invariant: there are at most [`MOST`] deployments at once; what is changed is there.

use super::{Action, DEPLOYMENTS, JOBS, NAMESPACE, Step, numbered, template, workload_object};
use crate::faults::Dice;
use serde_json::json;
use std::time::Duration;

/// Deployments at once.
const MOST: usize = 50;
/// Between two actions of users, in milliseconds, on average.
const PAUSE: u64 = 4_000;
/// Between two deaths of nodes.
const DEATHS: u64 = 60_000;
/// A longer churn than this has more deaths of nodes than faults have numbers.
pub const LONGEST: Duration = Duration::from_secs(10 * 3_600);

/// What happens on so many nodes in a time of at most [`LONGEST`].
#[must_use]
pub fn churn(dice: &Dice, nodes: u16, time: Duration) -> Vec<Step> {
    let end = u64::try_from(time.min(LONGEST).as_millis()).unwrap_or(0);
    let mut steps = vec![];
    let (mut live, mut at, mut next) = (vec![], 0, 0_u64);
    while at < end {
        let name = |index: usize, live: &[String]| live[index].clone();
        let index = usize::try_from(dice.below(live.len() as u64)).unwrap_or(0);
        let action = match dice.below(10) {
            0 => job(dice, &mut next),
            1..=3 if !live.is_empty() => {
                let name = name(index, &live);
                let patch = json!({"spec": {"replicas": dice.below(60)}});
                Action::Patch(format!("{DEPLOYMENTS}/{name}"), patch)
            }
            4..=6 if !live.is_empty() => {
                let name = name(index, &live);
                let patch =
                    json!({"spec": {"template": template(&name, &format!("image:{}", dice.below(100)))}});
                Action::Patch(format!("{DEPLOYMENTS}/{name}"), patch)
            }
            7 if live.len() > MOST / 2 => {
                Action::Delete(format!("{DEPLOYMENTS}/{}", live.swap_remove(index)), "Background")
            }
            _ if live.len() < MOST => {
                next += 1;
                let name = format!("d{next}");
                let spec = json!({"replicas": 5 + dice.below(50)});
                let object = workload_object("apps/v1", "Deployment", &name, &spec);
                live.push(name);
                Action::Create(DEPLOYMENTS, object)
            }
            _ => Action::Evict(name(index, &live)),
        };
        steps.push(Step::new(at, action));
        at += dice.below(2 * PAUSE);
    }
    steps.extend(deaths(dice, nodes, end));
    steps
}

fn job(dice: &Dice, next: &mut u64) -> Action {
    *next += 1;
    let name = format!("j{next}");
    let mut template = template(&name, "image:1");
    template["metadata"]["annotations"] = json!({"sim.kaji.dev/exit-after": format!("{}s", dice.below(60))});
    template["spec"]["restartPolicy"] = json!("Never");
    let spec = json!({"parallelism": 10, "completions": 10 + dice.below(40), "template": template,
        "ttlSecondsAfterFinished": 300});
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    Action::Create(JOBS, json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}))
}

/// Nodes that die and return.
fn deaths(dice: &Dice, nodes: u16, end: u64) -> Vec<Step> {
    let (mut drawn, mut at) = (vec![], DEATHS);
    while at < end {
        let node = format!("sim-{}", 1 + dice.below(u64::from(nodes)));
        let failure = if dice.once_in(2) { "crashed" } else { "unreachable" };
        let back = at + 30_000 + 1_000 * dice.below(600);
        drawn.push(vec![(at, Action::NodeDown(node.clone(), failure)), (back, Action::NodeUp(node))]);
        at += dice.below(2 * DEATHS);
    }
    numbered(drawn)
}

//! Jobs, and cron jobs that are suspended in the end.
//!
//! Invariant: containers end well, so that each job completes.

use super::{Action, CRON_JOBS, JOBS, NAMESPACE, Step, deletion, later, template};
use crate::faults::Dice;
use serde_json::{Value, json};

fn ending_template(dice: &Dice, name: &str) -> Value {
    let mut template = template(name, "image:1");
    template["metadata"]["annotations"] = json!({"sim.kaji.dev/exit-after": format!("{}s", dice.below(20))});
    template["spec"]["restartPolicy"] = json!("Never");
    template
}

pub(super) fn job(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let template = ending_template(dice, name);
    let completions = 1 + dice.below(8);
    let object = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"parallelism": 1 + dice.below(4), "completions": completions, "template": template}});
    steps.push(Step::new(begin, Action::Create(JOBS, object)));
    let mut at = begin;
    deletion(dice, format!("{JOBS}/{name}"), &mut at, steps);
}

pub(super) fn cron_job(dice: &Dice, name: &str, begin: u64, steps: &mut Vec<Step>) {
    let policy = ["Allow", "Forbid", "Replace"][usize::try_from(dice.below(3)).unwrap_or(0)];
    let job = json!({"spec": {"template": ending_template(dice, name)}});
    let spec = json!({"schedule": "* * * * *", "concurrencyPolicy": policy, "jobTemplate": job,
        "successfulJobsHistoryLimit": dice.below(3)});
    let object = json!({"apiVersion": "batch/v1", "kind": "CronJob",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    steps.push(Step::new(begin, Action::Create(CRON_JOBS, object)));
    let (path, mut at) = (format!("{CRON_JOBS}/{name}"), begin + 60_000);
    let suspended = json!({"spec": {"suspend": true}});
    steps.push(Step::new(later(dice, &mut at), Action::Patch(path.clone(), suspended)));
    deletion(dice, path, &mut at, steps);
}

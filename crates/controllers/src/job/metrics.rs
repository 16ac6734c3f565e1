//! What is measured of jobs: upstream's names, labels and texts.
//!
//! Invariant: what a status says of pods is counted when the status has been written, so that nothing is counted twice.
//!
//! Source: upstream's `pkg/controller/job/metrics`. `stale_sync_skips_total` is not here: no sync is skipped, since a worker waits
//! for its own writes.

use super::{
    indexes::Indexes,
    pods::tracked,
    track::{State, Tracked},
};
use kaji_runtime::{
    Buckets, Change, Metric, Moment, Plan, Sample,
    client::Target,
    objects::{Job, Pod},
};
use std::collections::BTreeMap;

/// A sync that neither creates nor deletes pods because the job is over, or its pods are being adopted.
pub const RECONCILING: &str = "reconciling";
/// A sync of a job with the pods that it should have.
pub const TRACKING: &str = "tracking";
/// A sync that creates pods, or waits before it does.
pub const PODS_CREATED: &str = "pods_created";
/// A sync that deletes pods.
pub const PODS_DELETED: &str = "pods_deleted";

const OF_SYNC: &[&str] = &["completion_mode", "result", "action"];

static SYNC_DURATION: Metric = Metric::histogram(
    "job_controller_job_sync_duration_seconds",
    "[STABLE] The time it took to sync a job",
    OF_SYNC,
    Buckets::exponential(0.004, 2.0, 15),
);
static SYNCS: Metric =
    Metric::counter("job_controller_job_syncs_total", "[STABLE] The number of job syncs", OF_SYNC);
static FINISHED: Metric = Metric::counter(
    "job_controller_jobs_finished_total",
    "[STABLE] The number of finished jobs",
    &["completion_mode", "result", "reason"],
);
static BY_EXTERNAL_CONTROLLER: Metric = Metric::counter(
    "job_controller_jobs_by_external_controller_total",
    "[ALPHA] The number of Jobs managed by an external controller",
    &["controller_name"],
);
static PODS_FINISHED: Metric = Metric::counter(
    "job_controller_job_pods_finished_total",
    "[STABLE] The number of finished Pods that are fully tracked",
    &["completion_mode", "result"],
);
static HANDLED_BY_FAILURE_POLICY: Metric = Metric::counter(
    "job_controller_pod_failures_handled_by_failure_policy_total",
    "[BETA] The number of failed Pods handled by failure policy with\n\t\t\trespect to the failure policy action applied based on the matched\n\t\t\trule. Possible values of the action label correspond to the\n\t\t\tpossible values for the failure policy rule action, which are:\n\t\t\t\"FailJob\", \"Ignore\" and \"Count\".",
    &["action"],
);
static TRACKING_FINALIZER: Metric = Metric::counter(
    "job_controller_terminated_pods_tracking_finalizer_total",
    "[BETA] The number of terminated pods (phase=Failed|Succeeded)\nthat have the finalizer batch.kubernetes.io/job-tracking\nThe event label can be \"add\" or \"delete\".",
    &["event"],
);
static FINISHED_INDEXES: Metric = Metric::counter(
    "job_controller_job_finished_indexes_total",
    "[ALPHA] The number of finished indexes. Possible values for the\n\t\t\tstatus label are: \"succeeded\", \"failed\". Possible values for the\n\t\t\tbackoffLimit label are: \"perIndex\" and \"global\"",
    &["status", "backoffLimit"],
);
static PODS_CREATION: Metric = Metric::counter(
    "job_controller_job_pods_creation_total",
    "[ALPHA] The number of Pods created by the Job controller labelled with a reason for the Pod creation.\nThis metric also distinguishes between Pods created using different PodReplacementPolicy settings.\nPossible values of the \"reason\" label are:\n\"new\", \"recreate_terminating_or_failed\", \"recreate_failed\".\nPossible values of the \"status\" label are:\n\"succeeded\", \"failed\".",
    &["reason", "status"],
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 9] = [
    &SYNC_DURATION,
    &SYNCS,
    &FINISHED,
    &BY_EXTERNAL_CONTROLLER,
    &PODS_FINISHED,
    &HANDLED_BY_FAILURE_POLICY,
    &TRACKING_FINALIZER,
    &FINISHED_INDEXES,
    &PODS_CREATION,
];

fn mode(job: &Job) -> &'static str {
    if job.indexed() { "Indexed" } else { "NonIndexed" }
}

fn number(count: i64) -> usize {
    usize::try_from(count).unwrap_or(0)
}

/// Counts a sync and measures it.
pub fn synced(plan: Plan, job: &Job, action: &'static str) -> Plan {
    let outcomes = [(Moment::Succeeded, "success"), (Moment::Failed, "error")];
    outcomes.into_iter().fold(plan, |plan, (moment, result)| {
        let labels = || [mode(job).into(), result.into(), action.into()];
        plan.observe(moment.clone(), SYNCS.one(labels()))
            .observe_elapsed(moment, SYNC_DURATION.sample(labels(), 0.0))
    })
}

/// Counts what a status that is written says: the job's end, and those of pods and indexes.
pub fn counted(mut plan: Plan, job: &Job, tracked: &Tracked, status: &Target) -> Plan {
    let (old, new, mode) = (&job.status, &tracked.status, mode(job));
    let mut samples = vec![];
    if tracked.finished
        && let Some(end) = new.conditions.last()
    {
        let result = if end.kind == "Complete" { "succeeded" } else { "failed" };
        samples.push(FINISHED.one([mode.into(), result.into(), end.reason.clone().into()]));
    }
    let completions = job.spec.completions.unwrap_or(0);
    let grown = |old: &str, new: &str| {
        let count = |indexes: &str| Indexes::parse(indexes, completions).len();
        number(count(new) - count(old))
    };
    let mut succeeded = number(new.succeeded - old.succeeded);
    if job.indexed() {
        // A job that was made smaller may have lost indexes that had succeeded.
        succeeded = grown(&old.completed_indexes, &new.completed_indexes);
        let failed_indexes = |status: &Option<String>| status.clone().unwrap_or_default();
        let failed = grown(&failed_indexes(&old.failed_indexes), &failed_indexes(&new.failed_indexes));
        let limit = if job.spec.backoff_limit_per_index.is_some() { "perIndex" } else { "global" };
        for (status, count) in [("succeeded", succeeded), ("failed", failed)] {
            samples.push(FINISHED_INDEXES.count([status.into(), limit.into()], count));
        }
    }
    for (result, count) in [("succeeded", succeeded), ("failed", number(new.failed - old.failed))] {
        samples.push(PODS_FINISHED.count([mode.into(), result.into()], count));
    }
    for sample in samples.into_iter().filter(|sample| sample.value > 0.0) {
        plan = plan.observe(Moment::Written(status.clone()), sample);
    }
    plan
}

/// Counts what a job's policy said about failures, by its action.
pub fn handled(plan: Plan, actions: &BTreeMap<&'static str, usize>, moment: &Moment) -> Plan {
    actions.iter().fold(plan, |plan, (action, count)| {
        let sample = HANDLED_BY_FAILURE_POLICY.count([(*action).into()], *count);
        plan.observe(moment.clone(), sample)
    })
}

/// Counts pods that are created, and those that could not be.
pub fn created(plan: Plan, state: &State<'_>, pods: &Target) -> Plan {
    let replaces = state.job.spec.pod_replacement_policy.as_deref();
    let reason = match state.failed > 0 {
        true if replaces == Some("Failed") => "recreate_failed",
        failures if failures || state.terminating > 0 => "recreate_terminating_or_failed",
        _ => "new",
    };
    let sample = |status: &'static str| PODS_CREATION.one([reason.into(), status.into()]);
    plan.observe(Moment::Written(pods.clone()), sample("succeeded"))
        .observe(Moment::NotWritten(pods.clone()), sample("failed"))
}

/// Counts a pod that has ended and has the finalizer from now on, or no more.
pub fn pod_changed(change: &Change<Pod>) -> Option<Sample> {
    let kept = |pod: &Option<std::sync::Arc<Pod>>| pod.as_ref().is_some_and(|p| p.finished() && tracked(p));
    let event = match (kept(&change.old), kept(&change.new)) {
        (false, true) => "add",
        (true, false) => "delete",
        _ => return None,
    };
    Some(TRACKING_FINALIZER.one([event.into()]))
}

/// Counts a new job that another controller looks after.
pub fn job_changed(change: &Change<Job>) -> Option<Sample> {
    let job = change.new.as_ref().filter(|job| change.old.is_none() && job.foreign())?;
    let manager = job.spec.managed_by.clone()?;
    Some(BY_EXTERNAL_CONTROLLER.one([manager.into()]))
}

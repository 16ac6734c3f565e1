//! Which pods of a job are created and deleted.
//!
//! Invariants: no more pods at once than `parallelism`, nor more than successes that are still missing; no index twice;
//! after failures, pods come back later and later.

use super::{
    metrics::{self, PODS_CREATED, PODS_DELETED, TRACKING},
    pods::{self, FINALIZER, FailureAction, INDEX},
    track::{State, release_body},
};
use crate::shared::{
    controller_ref::quiet,
    pods::{delete_pod_step, pod_from_template, pods_to_delete},
};
use kaji_runtime::{
    EventRecord, PatchKind, Plan, Projection, Step, Write,
    client::Target,
    objects::{Job, Pod},
};
use serde_json::{Value, json};
use std::{collections::HashSet, sync::Arc, time::Duration};

/// Creates or deletes of one plan.
const BURST: usize = 500;
const FIRST_BACKOFF: u64 = 10;
const LAST_BACKOFF: u64 = 600;
const INDEX_ENV: &str = "JOB_COMPLETION_INDEX";

/// The steps that take the finalizer off pods.
pub fn release(pods: &[Arc<Pod>]) -> Vec<Step> {
    let patch = |pod: &Arc<Pod>| {
        quiet(Write::Patch {
            target: Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name),
            kind: PatchKind::Strategic,
            body: release_body(&pod.metadata),
        })
    };
    pods.iter().filter(|p| pods::tracked(p)).map(patch).collect()
}

/// The steps that delete pods, with their events.
pub fn delete(job: &Job, pods: &[Arc<Pod>]) -> Vec<Step> {
    let regarding = job.metadata.reference(&Job::api_version(), Job::KIND);
    pods.iter().map(|pod| delete_pod_step(pod, &regarding)).collect()
}

/// Adds what a job that goes on needs: fewer pods, or more of them. Says what was done, as metrics name it.
pub fn manage(plan: Plan, state: &State<'_>, doomed: bool, now: jiff::Timestamp) -> (Plan, &'static str) {
    let (job, active) = (state.job, state.active.len());
    let wanted = if job.suspended() { 0 } else { wanted(state) };
    let surplus = surplus(state, active.saturating_sub(wanted), now);
    if !surplus.is_empty() {
        // A surplus pod has not failed: its finalizer is removed before it is deleted.
        return (plan.stage(release(&surplus)).stage(delete(job, &surplus)), PODS_DELETED);
    }
    if job.suspended() {
        return (plan, PODS_DELETED);
    }
    let leaving =
        if pods::replaces_failed_only(job) { usize::try_from(state.terminating).unwrap_or(0) } else { 0 };
    let missing = wanted.saturating_sub(active + leaving).min(BURST);
    if missing == 0 || doomed {
        return (plan, TRACKING);
    }
    if job.spec.backoff_limit_per_index.is_none()
        && let Some(last) = state.failures.last
        && let Some(wait) = remaining(state.failures.count, last, now)
    {
        return (plan.again_after(wait), PODS_CREATED);
    }
    if !job.indexed() {
        return (create(plan, state, &vec![None; missing]), PODS_CREATED);
    }
    let (ready, wait) = indexes(state, missing, now);
    let plan = match wait {
        Some(wait) if ready.is_empty() => plan.again_after(wait),
        _ => create(plan, state, &ready.into_iter().map(Some).collect::<Vec<_>>()),
    };
    (plan, PODS_CREATED)
}

/// How many pods should be active.
fn wanted(state: &State<'_>) -> usize {
    let spec = &state.job.spec;
    let parallelism = spec.parallelism.unwrap_or(1);
    let wanted = match spec.completions {
        // After one success the others may end as they like.
        None if state.succeeded > 0 => return state.active.len(),
        None => parallelism,
        Some(completions) => parallelism.min(completions - state.succeeded),
    };
    usize::try_from(wanted).unwrap_or(0)
}

/// Pods to be deleted: those without a valid index or with one that another has, and `least` in all.
fn surplus(state: &State<'_>, least: usize, now: jiff::Timestamp) -> Vec<Arc<Pod>> {
    let (mut doomed, mut rest) = (vec![], state.active.clone());
    if state.job.indexed() {
        rest.clear();
        let same = |a: &Arc<Pod>, b: &Arc<Pod>| pods::index(a) == pods::index(b);
        for group in state.active.chunk_by(same) {
            let keep = usize::from(pods::valid_index(&group[0], state.job).is_some());
            let extra = pods_to_delete(group.to_vec(), [].iter(), group.len() - keep, now);
            let uids: HashSet<&str> = extra.iter().map(|p| p.metadata.uid.as_str()).collect();
            rest.extend(group.iter().filter(|p| !uids.contains(p.metadata.uid.as_str())).cloned());
            doomed.extend(extra);
        }
    }
    if doomed.len() < least {
        let more = least - doomed.len();
        doomed.extend(pods_to_delete(rest, [].iter(), more, now));
    }
    doomed.truncate(BURST);
    doomed
}

/// What is left of 10 s, 20 s, … 10 min after the last of so many failures.
fn remaining(failures: usize, last: jiff::Timestamp, now: jiff::Timestamp) -> Option<Duration> {
    let doublings = u32::try_from(failures.checked_sub(1)?).unwrap_or(u32::MAX).min(10);
    let wait = Duration::from_secs((FIRST_BACKOFF << doublings).min(LAST_BACKOFF));
    let passed = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    wait.checked_sub(passed).filter(|left| !left.is_zero())
}

/// The first indexes that miss a pod and need not wait, and how long the first of the others waits.
fn indexes(state: &State<'_>, count: usize, now: jiff::Timestamp) -> (Vec<i64>, Option<Duration>) {
    let job = state.job;
    let busy = |p: &&Arc<Pod>| p.active() || pods::replaces_failed_only(job) && pods::terminating(p);
    let mut taken =
        state.succeeded_indexes.with(state.pods.iter().filter(busy).filter_map(|p| pods::index(p)));
    if let Some(failed) = &state.failed_indexes {
        taken = taken.union(failed);
    }
    let pending = taken.missing(count, job.spec.completions.unwrap_or(0));
    let wait = |index: &i64| {
        let last = state.delayed.get(index)?;
        let (counted, ignored) = pods::former_failures(last);
        let failures = usize::try_from(counted + ignored).unwrap_or(0) + 1;
        remaining(failures, pods::finished_at(last)?, now)
    };
    let shortest = pending.iter().filter_map(wait).min();
    (pending.into_iter().filter(|i| wait(i).is_none()).collect(), shortest)
}

fn create(mut plan: Plan, state: &State<'_>, indexes: &[Option<i64>]) -> Plan {
    let meta = &state.job.metadata;
    let regarding = meta.reference(&Job::api_version(), Job::KIND);
    let (base, pods) = (base(state.job), Target::of::<Pod>(&meta.namespace, ""));
    let step = |index: &Option<i64>| Step {
        write: Write::Create {
            target: pods.clone(),
            body: match index {
                Some(index) => with_index(base.clone(), state, *index),
                None => base.clone(),
            },
        },
        on_success: Some(EventRecord::normal(regarding.clone(), "SuccessfulCreate", "Created pod: {name}")),
        on_failure: Some(EventRecord::warning(regarding.clone(), "FailedCreate", "Error creating: {error}")),
    };
    let (mut rest, mut batch) = (indexes, 1);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(batch.min(rest.len()));
        plan = plan.stage(now.iter().map(step).collect());
        (rest, batch) = (later, batch * 2);
    }
    metrics::created(plan, state, &pods)
}

/// A pod of the job, without an index.
fn base(job: &Job) -> Value {
    let reference = job.metadata.controller_ref(&Job::api_version(), Job::KIND);
    let mut pod = pod_from_template(&job.spec.template, &job.metadata, &reference);
    let mut finalizers = pod["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
    pod["metadata"]["finalizers"] = finalizers.into();
    if job.indexed() {
        let variable = json!({
            "name": INDEX_ENV,
            "valueFrom": {"fieldRef": {"fieldPath": format!("metadata.labels['{INDEX}']")}},
        });
        for list in ["initContainers", "containers"] {
            for container in pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let mut env = container.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
                if !env.iter().any(|v| v.get("name").is_some_and(|n| n == INDEX_ENV)) {
                    env.push(variable.clone());
                    container["env"] = env.into();
                }
            }
        }
    }
    pod
}

/// Longest prefix of a generated name.
const MAX_PREFIX: usize = 58;

fn with_index(mut pod: Value, state: &State<'_>, index: i64) -> Value {
    let job = state.job;
    let text = index.to_string();
    pod["metadata"]["annotations"][INDEX] = text.as_str().into();
    pod["metadata"]["labels"][INDEX] = text.as_str().into();
    if job.spec.backoff_limit_per_index.is_some() {
        let (counted, ignored) = match state.delayed.get(&index) {
            None => (0, 0),
            Some(last) => {
                let (counted, ignored) = pods::former_failures(last);
                match FailureAction::of(last, job.spec.pod_failure_policy.as_ref()).counts() {
                    true => (counted + 1, ignored),
                    false => (counted, ignored + 1),
                }
            }
        };
        pod["metadata"]["annotations"][pods::FAILURES] = counted.to_string().into();
        if ignored > 0 {
            pod["metadata"]["annotations"][pods::IGNORED] = ignored.to_string().into();
        }
    }
    let suffix = format!("-{text}-");
    let name: String = job.metadata.name.chars().take(MAX_PREFIX.saturating_sub(suffix.len())).collect();
    pod["metadata"]["generateName"] = format!("{name}{suffix}").into();
    pod["spec"]["hostname"] = format!("{}-{text}", job.metadata.name).into();
    pod
}

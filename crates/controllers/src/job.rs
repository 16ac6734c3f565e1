//! Jobs: pods that run to completion.
//!
//! Invariants:
//! - The status is written before the finalizers of pods are removed, so that no pod is missed or counted twice.
//! - A finished job is not reconciled again, except to delete it once its time to live has passed.

mod indexes;
mod manage;
mod memory;
mod metrics;
mod pods;
mod track;

use crate::{
    Descriptor, Start, WorkersFlag,
    shared::{
        controller_ref::{claim, labels_differ, owner_keys, quiet, unchanged},
        pods::{namespace_terminating, status_patch},
    },
};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, Meta, Metric, Moment, PatchKind, Plan, Projection,
    Reconciler, Step, View, Write,
    client::Target,
    objects::{Job, JobStatus, Pod},
};
use memory::Memory;
use pods::{FINALIZER, tracked};
use serde_json::{Value, json};
use std::sync::Arc;
use track::{State, Tracked, release_body};

const COMPONENT: &str = "job-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "job-controller",
    components: &[COMPONENT],
    service_account: Some("job-controller"),
    workers: Some(WorkersFlag { name: "concurrent-job-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, _| controllers(informers)),
};

/// The controllers of jobs: their pods, and pods that jobs left behind.
fn controllers(informers: &Arc<Informers>) -> Vec<Controller> {
    let jobs = Controller::new(Jobs::default(), informers)
        .reads::<Job>(|change, _| vec![change.any().metadata.key()])
        .reads::<Pod>(|change, view| owner_keys::<Job, Pod>(change, view, selects, labels_differ))
        .counts::<Job>(metrics::job_changed)
        .counts::<Pod>(metrics::pod_changed);
    let orphans = Controller::new(Orphans, informers)
        .reads::<Pod>(|change: &Change<Pod>, _| {
            let pod = change.new.as_ref().filter(|p| tracked(p));
            let may_be_orphan = pod.filter(|p| p.metadata.controller().is_none_or(is_job));
            may_be_orphan.map(|p| p.metadata.key()).into_iter().collect()
        })
        .reads::<Job>(|change, view| {
            let job = change.any();
            if change.new.is_some() && job.finished().is_none() {
                return vec![];
            }
            let pods = view.get::<Pod>();
            pods.owned_by(&job.metadata.uid).filter(|p| tracked(p)).map(|p| p.metadata.key()).collect()
        });
    vec![jobs, orphans]
}

fn is_job(owner: &kaji_runtime::OwnerRef) -> bool {
    owner.kind == Job::KIND && owner.api_version == Job::api_version()
}

fn selects(job: &Job, meta: &Meta) -> bool {
    job.spec.selector.matches(&meta.labels)
}

/// The loop, with what it remembers of pods that are gone; lost with the process, as upstream's.
#[derive(Default)]
struct Jobs {
    memory: Memory,
}

impl Reconciler for Jobs {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "job"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &metrics::METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let jobs = view.get::<Job>();
        let Some(job) = jobs.by_key(key).filter(|j| !j.foreign() && j.finished().is_none()) else {
            self.memory.forget(key);
            return Plan::nothing();
        };
        let meta = &job.metadata;
        let reference = meta.controller_ref(&Job::api_version(), Job::KIND);
        let all = view.get::<Pod>();
        let candidates = all.owned_by(&meta.uid).chain(all.orphans(&meta.namespace)).cloned();
        let claimed = claim(meta, &reference, |m| selects(job, m), candidates).with_finalizer(FINALIZER);
        let (owned, plan) = claimed.into_plan(unchanged::<Job>(meta));
        if !plan.is_empty() {
            // The pods say so once it is done, and the job is looked at again.
            return metrics::synced(plan, job, metrics::RECONCILING);
        }
        let failures = self.memory.learn(key, job, &owned);
        let state = State::new(job, owned, failures, cx.now);
        let verdict = state.verdict();
        let tracked = state.track(verdict.as_ref());
        let doomed = cx.failures.iter().any(|f| namespace_terminating(&f.error));
        let plan = write_status(plan, job, &tracked);
        if verdict.is_some() {
            let plan = plan.stage(manage::delete(job, &state.active));
            let plan = plan.stage(manage::release(&tracked.release));
            return metrics::synced(plan, job, metrics::RECONCILING);
        }
        let plan = plan.stage(manage::release(&tracked.release));
        let plan = match state.until_deadline() {
            Some(left) => plan.again_after(left),
            None => plan,
        };
        let (plan, action) = match meta.deleting() {
            true => (plan, metrics::RECONCILING),
            false => manage::manage(plan, &state, doomed, cx.now),
        };
        metrics::synced(plan, job, action)
    }
}

/// Writes the status if it changed, with the event that belongs to it.
fn write_status(plan: Plan, job: &Job, tracked: &Tracked) -> Plan {
    let status = &tracked.status;
    let mut seen = job.status.clone();
    if seen.start_time.is_some() {
        // An empty list of uids may be left out.
        seen.uncounted_terminated_pods.get_or_insert_default();
    }
    if *status == seen {
        return metrics::handled(plan, &tracked.handled, &Moment::Succeeded);
    }
    let regarding = job.metadata.reference(&Job::api_version(), Job::KIND);
    let suspended = |s: &JobStatus| s.conditions.iter().any(|c| c.kind == "Suspended" && c.status == "True");
    let event = match (suspended(&job.status), suspended(status)) {
        _ if tracked.finished => status.conditions.last().map(|c| match c.kind.as_str() {
            "Complete" => EventRecord::normal(regarding.clone(), "Completed", "Job completed"),
            _ => EventRecord::warning(regarding.clone(), &c.reason, c.message.clone()),
        }),
        (false, true) => Some(EventRecord::normal(regarding.clone(), "Suspended", "Job suspended")),
        (true, false) => Some(EventRecord::normal(regarding.clone(), "Resumed", "Job resumed")),
        _ => None,
    };
    let write = status_patch::<Job>(&job.metadata, status_value(status));
    let written = write.target().clone();
    let plan = plan.stage(vec![Step { write, on_success: event, on_failure: None }]);
    let plan = metrics::counted(plan, job, tracked, &written);
    let plan = metrics::handled(plan, &tracked.handled, &Moment::Written(written));
    if tracked.finished
        && status.completion_time.is_some()
        && job.spec.completions.is_some_and(|c| status.succeeded > c)
    {
        let text = "Too many succeeded pods running after completion count reached";
        return plan.event(EventRecord::warning(regarding, "TooManySucceededPods", text));
    }
    plan
}

/// As JSON, with null for what is left out when empty.
fn status_value(status: &JobStatus) -> Value {
    let some = |n: i64| (n != 0).then_some(n);
    let list = |uids: &Vec<String>| if uids.is_empty() { Value::Null } else { json!(uids) };
    let uncounted = status.uncounted_terminated_pods.as_ref();
    json!({
        "conditions": (!status.conditions.is_empty()).then_some(&status.conditions),
        "startTime": status.start_time,
        "completionTime": status.completion_time,
        "active": some(status.active),
        "ready": status.ready,
        "terminating": status.terminating,
        "succeeded": some(status.succeeded),
        "failed": some(status.failed),
        "completedIndexes": (!status.completed_indexes.is_empty()).then_some(&status.completed_indexes),
        "failedIndexes": status.failed_indexes,
        "uncountedTerminatedPods": uncounted.map(|u| json!({"succeeded": list(&u.succeeded), "failed": list(&u.failed)})),
    })
}

/// Removes the tracking finalizer from pods of jobs that are deleted or finished.
struct Orphans;

impl Reconciler for Orphans {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "job_orphan_pod"
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let (pods, jobs) = (view.get::<Pod>(), view.get::<Job>());
        let Some(pod) = pods.by_key(key).filter(|p| tracked(p)) else { return Plan::nothing() };
        let meta = &pod.metadata;
        if let Some(owner) = meta.controller() {
            let job = jobs.get(&meta.namespace, &owner.name).filter(|j| j.metadata.uid == owner.uid);
            if !is_job(owner) || job.is_some_and(|j| j.foreign() || j.finished().is_none()) {
                return Plan::nothing();
            }
        }
        Plan::nothing().stage(vec![quiet(Write::Patch {
            target: Target::of::<Pod>(&meta.namespace, &meta.name),
            kind: PatchKind::Strategic,
            body: release_body(meta),
        })])
    }
}

#[cfg(test)]
mod tests;

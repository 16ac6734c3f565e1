//! Cron jobs: a job at every time that a schedule names.
//!
//! Invariants:
//! - A job is named after its time, so no time brings forth two jobs.
//! - Only the latest of missed times is made up for (`times`).
//! - The status follows the controller's own jobs, which carry their time in an annotation and in their name: one that is there and
//!   runs is active, and its time is the last one scheduled. Jobs that were made by hand count for the last success and the limits.
//! - A job is not cleaned up before its time is in the status: it would be started again.
//! - What was observed is written whether or not a job can be deleted or started, and a started job's time in the same plan.

mod times;

use crate::{
    Descriptor, Start, WorkersFlag,
    shared::{
        conditions::seconds,
        controller_ref::{controller_keys, quiet},
        pods::{namespace_terminating, status_patch},
    },
};
use jiff::{Timestamp, tz::TimeZone};
use kaji_meta::cron::Schedule;
use kaji_runtime::{
    Buckets, Change, Controller, Cx, EventRecord, Informers, Key, Metric, Moment, ObjectSnapshot, PatchKind,
    Plan, Projection, Reconciler, Step, View, Write,
    client::Target,
    objects::{CronJob, CronJobStatus, Job},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use times::{Times, time_zone};

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

const COMPONENT: &str = "cronjob-controller";

static CREATION_SKEW: Metric = Metric::histogram(
    "cronjob_controller_job_creation_skew_duration_seconds",
    "[STABLE] Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
    &[],
    Buckets::exponential(1.0, 2.0, 10),
);
/// The metrics of the controller.
pub static METRICS: [&Metric; 1] = [&CREATION_SKEW];

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "cronjob-controller",
    components: &[COMPONENT],
    service_account: Some("cronjob-controller"),
    workers: Some(WorkersFlag { name: "concurrent-cron-job-syncs", default: 5 }),
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

/// The cron job controller.
fn controller(informers: &Arc<Informers>) -> Controller {
    let clock = informers.clock().clone();
    Controller::new(CronJobs, informers)
        .reads_with_waits::<CronJob>(move |change, _| {
            let wait = wait_for_other_times(change, clock.now());
            vec![(change.any().metadata.key(), wait.unwrap_or_default())]
        })
        .reads::<Job>(|change, _| controller_keys::<CronJob, Job>(change))
}

/// The wait of an edit that names other times: until the next of them, as upstream, so that it does not start a job at once for
/// a time that had passed.
fn wait_for_other_times(change: &Change<CronJob>, now: Timestamp) -> Option<Duration> {
    let (old, new) = (change.old.as_ref()?, change.new.as_ref()?);
    if old.spec.schedule == new.spec.schedule && old.spec.time_zone == new.spec.time_zone {
        return None;
    }
    let (schedule, zone) = (Schedule::parse(&new.spec.schedule).ok()?, time_zone(new).ok()?);
    Times::new(new, &schedule, &zone).wait(&new.status, now)
}

struct CronJobs;

impl Reconciler for CronJobs {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "cronjob"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let (crons, all) = (view.get::<CronJob>(), view.get::<Job>());
        let Some(cron) = crons.by_key(key) else { return Plan::nothing() };
        let jobs: Vec<&Arc<Job>> = all.owned_by(&cron.metadata.uid).collect();
        let regarding = cron.metadata.reference(&CronJob::api_version(), CronJob::KIND);
        let status = cron.status.clone();
        let plan = Plan::nothing();
        let mut work = Work { cron, all: &all, jobs, regarding, now: cx.now, plan, status };
        work.observe();
        work.clean();
        let terminating = cx.failures.iter().any(|f| namespace_terminating(&f.error));
        let due = if cron.metadata.deleting() || terminating { None } else { work.schedule() };
        if work.status != cron.status {
            let status = status_patch::<CronJob>(&cron.metadata, status_value(&work.status));
            work.plan = work.plan.independent(vec![quiet(status)]);
        }
        if let Some((at, zone)) = due {
            work.start(at, &zone);
        }
        work.plan
    }
}

fn status_value(status: &CronJobStatus) -> Value {
    json!({
        "active": (!status.active.is_empty()).then_some(&status.active),
        "lastScheduleTime": status.last_schedule_time,
        "lastSuccessfulTime": status.last_successful_time,
    })
}

/// The name of the job of a time.
fn job_name(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", cron.metadata.name, at.as_second().div_euclid(60))
}

struct Work<'a> {
    cron: &'a CronJob,
    all: &'a ObjectSnapshot<Job>,
    /// Those of the cron job.
    jobs: Vec<&'a Arc<Job>>,
    regarding: Value,
    now: Timestamp,
    plan: Plan,
    status: CronJobStatus,
}

fn uid_of(reference: &Value) -> &str {
    reference.get("uid").and_then(Value::as_str).unwrap_or_default()
}

fn reference_to(job: &Job) -> Value {
    job.metadata.reference(&Job::api_version(), Job::KIND)
}

impl Work<'_> {
    fn tell(&mut self, warning: bool, reason: &str, text: String) {
        let regarding = self.regarding.clone();
        let event = match warning {
            true => EventRecord::warning(regarding, reason, text),
            false => EventRecord::normal(regarding, reason, text),
        };
        self.plan = std::mem::take(&mut self.plan).event(event);
    }

    /// Brings the status up to what the jobs are.
    fn observe(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.jobs.push(job);
            let uid = job.metadata.uid.as_str();
            let listed = self.status.active.iter().any(|a| uid_of(a) == uid);
            match job.finished() {
                None if !listed => match self.time_of(job) {
                    Some(at) => {
                        self.status.last_schedule_time = self.status.last_schedule_time.max(Some(at));
                        if !job.metadata.deleting() {
                            self.status.active.push(reference_to(job));
                        }
                    }
                    None => {
                        let name = &job.metadata.name;
                        let text = format!("Saw a job that the controller did not create or forgot: {name}");
                        self.tell(true, "UnexpectedJob", text);
                    }
                },
                None => {}
                Some(end) => {
                    if listed {
                        self.status.active.retain(|a| uid_of(a) != uid);
                        let text =
                            format!("Saw completed job: {}, condition: {}", job.metadata.name, end.kind);
                        self.tell(false, "SawCompletedJob", text);
                    }
                    self.status.last_schedule_time = self.status.last_schedule_time.max(self.time_of(job));
                    if end.kind == "Complete" && job.status.completion_time > self.status.last_successful_time
                    {
                        self.status.last_successful_time = job.status.completion_time;
                    }
                }
            }
        }
        let missing = |a: &Value| !self.jobs.iter().any(|j| j.metadata.uid == uid_of(a));
        let (gone, active): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.status.active).into_iter().partition(missing);
        self.status.active = active;
        for reference in gone {
            let name = reference.get("name").and_then(Value::as_str).unwrap_or_default();
            let text = format!("Active job went missing: {name}");
            self.tell(false, "MissingJob", text);
        }
    }

    /// The time that the controller made a job for. Others may be named alike, and may have the annotations of one.
    fn time_of(&self, job: &Job) -> Option<Timestamp> {
        let at: Timestamp = job.metadata.annotations.get(SCHEDULED_AT)?.parse().ok()?;
        (job.metadata.name == job_name(self.cron, at)).then_some(at)
    }

    /// For which time a job is to be started, and in which zone.
    fn schedule(&mut self) -> Option<(Timestamp, TimeZone)> {
        let cron = self.cron;
        let zone = match time_zone(cron) {
            Ok(zone) => zone,
            Err(error) => {
                let name = cron.spec.time_zone.as_deref().unwrap_or_default();
                self.tell(true, "UnknownTimeZone", format!("invalid timeZone: {name:?}: {error}"));
                return None;
            }
        };
        if cron.spec.suspend == Some(true) {
            return None;
        }
        let schedule = match Schedule::parse(&cron.spec.schedule) {
            Ok(schedule) => schedule,
            Err(error) => {
                let text = format!("unparseable schedule: {:?} : {error}", cron.spec.schedule);
                self.tell(true, "UnparseableSchedule", text);
                return None;
            }
        };
        let times = Times::new(cron, &schedule, &zone);
        let Ok(due) = times.due(&self.status, self.now) else {
            let error = "time difference between two schedules is less than 1 second";
            let text = format!("invalid schedule: {} : {error}", cron.spec.schedule);
            self.tell(true, "InvalidSchedule", text);
            return None;
        };
        if due.is_some_and(|due| due.many) {
            let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.tell(true, "TooManyMissedTimes", text.into());
        }
        let at = due.map(|due| due.at).filter(|at| self.may_start(*at));
        if let Some(wait) = times.wait(&self.status, self.now) {
            self.plan = std::mem::take(&mut self.plan).again_after(wait);
        }
        at.map(|at| (at, zone))
    }

    /// Whether the job of a time that is due is to be started.
    fn may_start(&mut self, at: Timestamp) -> bool {
        let (cron, all) = (self.cron, self.all);
        let late = self.now.duration_since(at).as_secs();
        if cron.spec.starting_deadline_seconds.is_some_and(|deadline| late > deadline) {
            let when = at.strftime("%a, %d %b %Y %H:%M:%S +0000");
            self.tell(true, "MissSchedule", format!("Missed scheduled time to start a job: {when}"));
            return false;
        }
        let name = job_name(cron, at);
        let active = self.status.active.iter().any(|a| a.get("name").is_some_and(|n| *n == name));
        if active || self.status.last_schedule_time == Some(at) {
            return false;
        }
        if cron.spec.concurrency_policy == "Forbid" && !self.status.active.is_empty() {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            self.tell(false, "JobAlreadyActive", text.into());
            return false;
        }
        let Some(job) = all.get(&cron.metadata.namespace, &name) else { return true };
        // The name is taken. A job of the cron job counts as the one of this time, whatever made it.
        if job.metadata.controller().is_some_and(|owner| owner.uid == cron.metadata.uid) {
            if job.finished().is_none() {
                self.status.active.push(reference_to(job));
            }
            self.status.last_schedule_time = Some(at);
        }
        false
    }

    /// Starts the job of a time. The status has that time as soon as the job is made, for the job may be deleted at once; which job
    /// is active is seen next.
    fn start(&mut self, at: Timestamp, zone: &TimeZone) {
        let meta = &self.cron.metadata;
        let mut status = CronJobStatus { last_schedule_time: Some(at), ..self.status.clone() };
        let mut plan = std::mem::take(&mut self.plan);
        if self.cron.spec.concurrency_policy == "Replace" {
            let active = std::mem::take(&mut status.active);
            let doomed = self
                .jobs
                .iter()
                .filter(|j| active.iter().any(|a| uid_of(a) == j.metadata.uid) && !j.metadata.deleting());
            plan = plan.stage(doomed.map(|job| self.delete(job)).collect());
        }
        let jobs = Target::of::<Job>(&meta.namespace, "");
        let created = EventRecord::normal(self.regarding.clone(), "SuccessfulCreate", "Created job {name}");
        let failed =
            EventRecord::warning(self.regarding.clone(), "FailedCreate", "Error creating job: {error}");
        let step = Step {
            write: Write::Create { target: jobs.clone(), body: self.job(&job_name(self.cron, at), at, zone) },
            on_success: Some(created),
            on_failure: Some(failed),
        };
        // Without a revision: what was observed may have been written before.
        let noted = Write::Patch {
            target: Target::of::<CronJob>(&meta.namespace, &meta.name).subresource("status"),
            kind: PatchKind::Merge,
            body: json!({"metadata": {"uid": meta.uid}, "status": status_value(&status)}),
        };
        let skew = CREATION_SKEW.sample([], self.now.duration_since(at).as_secs_f64());
        self.plan = plan.stage(vec![step]).then(noted).observe_elapsed(Moment::Written(jobs), skew);
    }

    fn job(&self, name: &str, at: Timestamp, zone: &TimeZone) -> Value {
        let (meta, template) = (&self.cron.metadata, &self.cron.spec.job_template);
        let part = |field: &str| {
            let found = template.get("metadata").and_then(|m| m.get(field)).filter(|v| v.is_object());
            found.cloned().unwrap_or_else(|| json!({}))
        };
        let mut annotations = part("annotations");
        let offset = zone.to_offset(at);
        let stamp = match offset.seconds() {
            0 => seconds(at).to_string(),
            _ => seconds(at).display_with_offset(offset).to_string(),
        };
        annotations[SCHEDULED_AT] = stamp.into();
        json!({
            "apiVersion": Job::api_version(),
            "kind": Job::KIND,
            "metadata": {
                "name": name,
                "namespace": meta.namespace,
                "labels": part("labels"),
                "annotations": annotations,
                "ownerReferences": [meta.controller_ref(&CronJob::api_version(), CronJob::KIND)],
            },
            "spec": template.get("spec").cloned().unwrap_or_else(|| json!({})),
        })
    }

    fn delete(&self, job: &Job) -> Step {
        let meta = &job.metadata;
        let mut step = quiet(Write::Delete {
            target: Target::of::<Job>(&meta.namespace, &meta.name),
            options: json!({"propagationPolicy": "Background", "preconditions": {"uid": meta.uid}}),
        });
        let text = format!("Deleted job {}", meta.name);
        step.on_success = Some(EventRecord::normal(self.regarding.clone(), "SuccessfulDelete", text));
        step.on_failure =
            Some(EventRecord::warning(self.regarding.clone(), "FailedDelete", "Deleted job: {error}"));
        step
    }

    /// Deletes the oldest finished jobs over the limits.
    fn clean(&mut self) {
        let spec = &self.cron.spec;
        let limits =
            [("Complete", spec.successful_jobs_history_limit), ("Failed", spec.failed_jobs_history_limit)];
        let mut steps = vec![];
        for (kind, limit) in limits {
            let Some(limit) = limit.and_then(|l| usize::try_from(l).ok()) else { continue };
            let over = |j: &&Arc<Job>| {
                let noted = self.time_of(j).is_none_or(|at| self.cron.status.last_schedule_time >= Some(at));
                noted && !j.metadata.deleting() && j.finished().is_some_and(|c| c.kind == kind)
            };
            let mut jobs: Vec<&Arc<Job>> = self.jobs.iter().copied().filter(over).collect();
            jobs.sort_by_key(|j| {
                (j.status.start_time.is_none(), j.status.start_time, j.metadata.name.clone())
            });
            let surplus = jobs.len().saturating_sub(limit);
            steps.extend(jobs[..surplus].iter().map(|job| self.delete(job)));
        }
        self.plan = std::mem::take(&mut self.plan).independent(steps);
    }
}

#[cfg(test)]
mod tests;

//! Cron jobs: a job at every time that a schedule names.
//!
//! Invariants:
//! - A job is named after its time, so no time brings forth two jobs.
//! - Only the latest of missed times is made up for.
//! - The status follows the jobs: one that is there and runs is active, and its time is the last one scheduled.

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
    Buckets, Controller, Cx, EventRecord, Informers, Key, Metric, Moment, Plan, Projection, Reconciler, Step,
    View, Write,
    client::Target,
    objects::{CronJob, CronJobStatus, Job},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Added to a wake-up, so that it does not come too early.
const SLACK: Duration = Duration::from_millis(100);
/// So many missed times are worth a warning.
const MANY: i64 = 100;

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
    Controller::new(CronJobs, informers)
        .reads::<CronJob>(|change, _| vec![change.any().metadata.key()])
        .reads::<Job>(|change, _| controller_keys::<CronJob, Job>(change))
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
        let mut work =
            Work { cron, jobs, regarding, now: cx.now, plan: Plan::nothing(), status: cron.status.clone() };
        work.observe();
        if !cron.metadata.deleting() && !cx.failures.iter().any(|f| namespace_terminating(&f.error)) {
            work.schedule();
        }
        if work.status != cron.status {
            let status = status_patch::<CronJob>(&cron.metadata, status_value(&work.status));
            work.plan = work.plan.then(status);
        }
        work.clean();
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

/// A schedule that can be read, but has no times: the 31st of February.
struct Never;

struct Work<'a> {
    cron: &'a CronJob,
    jobs: Vec<&'a Arc<Job>>,
    regarding: Value,
    now: Timestamp,
    plan: Plan,
    status: CronJobStatus,
}

fn uid_of(reference: &Value) -> &str {
    reference.get("uid").and_then(Value::as_str).unwrap_or_default()
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
                None if !listed && !job.metadata.deleting() => match self.time_of(job) {
                    Some(at) => {
                        let version = Job::api_version();
                        self.status.active.push(job.metadata.reference(&version, Job::KIND));
                        self.status.last_schedule_time = self.status.last_schedule_time.max(Some(at));
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
                    let at = self.time_of(job);
                    if at > self.status.last_schedule_time {
                        self.status.last_schedule_time = at;
                    }
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

    /// The time that a job was made for, if it was made by this schedule.
    fn time_of(&self, job: &Job) -> Option<Timestamp> {
        let minutes: i64 =
            job.metadata.name.strip_prefix(&self.cron.metadata.name)?.strip_prefix('-')?.parse().ok()?;
        let at: Option<Timestamp> = job.metadata.annotations.get(SCHEDULED_AT).and_then(|t| t.parse().ok());
        at.or_else(|| Timestamp::from_second(minutes.checked_mul(60)?).ok())
    }

    fn schedule(&mut self) {
        let spec = &self.cron.spec;
        let zone = match spec.time_zone.as_deref() {
            None | Some("" | "UTC" | "Etc/UTC") => TimeZone::UTC,
            Some(name) => match TimeZone::get(name) {
                Ok(zone) => zone,
                Err(error) => {
                    return self.tell(
                        true,
                        "UnknownTimeZone",
                        format!("invalid timeZone: {name:?}: {error}"),
                    );
                }
            },
        };
        if spec.suspend == Some(true) {
            return;
        }
        let schedule = match Schedule::parse(&spec.schedule) {
            Ok(schedule) => schedule,
            Err(error) => {
                let text = format!("unparseable schedule: {:?} : {error}", spec.schedule);
                return self.tell(true, "UnparseableSchedule", text);
            }
        };
        match self.due(&schedule, &zone) {
            Ok(Some(at)) => self.start(at, &zone),
            Ok(None) => {}
            Err(Never) => {
                let error = "time difference between two schedules is less than 1 second";
                let text = format!("invalid schedule: {} : {error}", spec.schedule);
                return self.tell(true, "InvalidSchedule", text);
            }
        }
        if let Some(next) = schedule.next(self.now, &zone)
            && let Ok(wait) = Duration::try_from(next.duration_since(self.now))
        {
            self.plan = std::mem::take(&mut self.plan).again_after(wait + SLACK);
        }
    }

    /// The latest time that is due and was not seen to.
    fn due(&mut self, schedule: &Schedule, zone: &TimeZone) -> Result<Option<Timestamp>, Never> {
        let Some(from) = self.earliest() else { return Ok(None) };
        let first = schedule.next(from, zone).ok_or(Never)?;
        if first > self.now {
            return Ok(None);
        }
        let second = schedule.next(first, zone).ok_or(Never)?;
        if second > self.now {
            return Ok(Some(first));
        }
        Ok(self.latest(schedule, zone, (first, second)))
    }

    /// After which time one may be due.
    fn earliest(&self) -> Option<Timestamp> {
        let from = self.status.last_schedule_time.or(self.cron.metadata.creation_timestamp)?;
        let Some(deadline) = self.cron.spec.starting_deadline_seconds else { return Some(from) };
        let earliest = Timestamp::from_second(self.now.as_second().saturating_sub(deadline)).ok()?;
        Some(from.max(earliest))
    }

    /// The latest of the times that were missed, of which the first two are known.
    fn latest(
        &mut self,
        schedule: &Schedule,
        zone: &TimeZone,
        (first, second): (Timestamp, Timestamp),
    ) -> Option<Timestamp> {
        // Long gaps are skipped by the distance of the first two; a schedule is regular enough for that.
        let distance = (second.as_second() - first.as_second()).max(1);
        let missed = (self.now.as_second() - first.as_second()) / distance + 1;
        if missed > MANY {
            let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.tell(true, "TooManyMissedTimes", text.into());
        }
        let near = Timestamp::from_second(first.as_second() + (missed - 2).max(0) * distance).ok()?;
        let (mut latest, mut next) = (first, schedule.next(near, zone)?);
        while next <= self.now {
            latest = next;
            next = schedule.next(next, zone)?;
        }
        Some(latest)
    }

    fn start(&mut self, at: Timestamp, zone: &TimeZone) {
        let cron = self.cron;
        let late = self.now.duration_since(at).as_secs();
        if cron.spec.starting_deadline_seconds.is_some_and(|deadline| late > deadline) {
            let when = at.strftime("%a, %d %b %Y %H:%M:%S +0000");
            return self.tell(true, "MissSchedule", format!("Missed scheduled time to start a job: {when}"));
        }
        let name = job_name(cron, at);
        let known = self.jobs.iter().any(|j| j.metadata.name == name);
        if known || self.status.last_schedule_time == Some(at) {
            return;
        }
        if cron.spec.concurrency_policy == "Forbid" && !self.status.active.is_empty() {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            return self.tell(false, "JobAlreadyActive", text.into());
        }
        if cron.spec.concurrency_policy == "Replace" {
            let active = std::mem::take(&mut self.status.active);
            let doomed: Vec<&Arc<Job>> = self
                .jobs
                .iter()
                .copied()
                .filter(|j| active.iter().any(|a| uid_of(a) == j.metadata.uid) && !j.metadata.deleting())
                .collect();
            let steps = doomed.iter().map(|job| self.delete(job)).collect();
            self.plan = std::mem::take(&mut self.plan).stage(steps);
        }
        let jobs = Target::of::<Job>(&cron.metadata.namespace, "");
        let step = Step {
            write: Write::Create { target: jobs.clone(), body: self.job(&name, at, zone) },
            on_success: Some(EventRecord::normal(
                self.regarding.clone(),
                "SuccessfulCreate",
                "Created job {name}",
            )),
            on_failure: Some(EventRecord::warning(
                self.regarding.clone(),
                "FailedCreate",
                "Error creating job: {error}",
            )),
        };
        let skew = CREATION_SKEW.sample([], self.now.duration_since(at).as_secs_f64());
        let plan = std::mem::take(&mut self.plan).stage(vec![step]);
        self.plan = plan.observe_elapsed(Moment::Written(jobs), skew);
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
        for (kind, limit) in limits {
            let Some(limit) = limit.and_then(|l| usize::try_from(l).ok()) else { continue };
            let over = |j: &&Arc<Job>| !j.metadata.deleting() && j.finished().is_some_and(|c| c.kind == kind);
            let mut jobs: Vec<&Arc<Job>> = self.jobs.iter().copied().filter(over).collect();
            jobs.sort_by_key(|j| {
                (j.status.start_time.is_none(), j.status.start_time, j.metadata.name.clone())
            });
            let surplus = jobs.len().saturating_sub(limit);
            let steps = jobs[..surplus].iter().map(|job| self.delete(job)).collect();
            self.plan = std::mem::take(&mut self.plan).stage(steps);
        }
    }
}

#[cfg(test)]
mod tests;

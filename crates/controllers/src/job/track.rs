//! The state of a job out of its pods: what succeeded and failed, whether it is over, and its next status.
//!
//! Invariants:
//! - A pod is counted once: its uid is in the status before its finalizer goes, and moves to the counter after that.
//! - A job is `Complete` or `Failed` only after the condition that announces it was written, all of its pods were
//!   counted, and none of them is left.

use super::{
    indexes::Indexes,
    memory::Failures,
    pods::{self, FINALIZER, FailureAction},
};
use crate::shared::conditions::seconds;
use kaji_runtime::{
    Meta,
    objects::{Job, JobCondition, JobStatus, Pod},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// Uids in `status.uncountedTerminatedPods`, so that a status stays small.
const MAX_UNCOUNTED: usize = 500;
/// Announces failure.
pub const FAILURE_TARGET: &str = "FailureTarget";
/// Announces success.
pub const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Success or failure.
    pub success: bool,
    /// `BackoffLimitExceeded`
    pub reason: String,
    /// Text.
    pub message: String,
    /// Whether the status has it already.
    pub recorded: bool,
}

impl Verdict {
    fn new(success: bool, reason: &str, message: impl Into<String>) -> Option<Self> {
        Some(Verdict { success, reason: reason.into(), message: message.into(), recorded: false })
    }

    fn recorded(success: bool, condition: &JobCondition) -> Self {
        let (reason, message) = (condition.reason.clone(), condition.message.clone());
        Verdict { success, reason, message, recorded: true }
    }
}

/// A job and its pods.
pub struct State<'a> {
    /// The job.
    pub job: &'a Job,
    /// All of its pods; with indexes, in their order.
    pub pods: Vec<Arc<Pod>>,
    /// Those neither over nor being deleted.
    pub active: Vec<Arc<Pod>>,
    /// Those being deleted.
    pub terminating: i64,
    /// Pods, or indexes, that succeeded.
    pub succeeded: i64,
    /// Pods that failed.
    pub failed: i64,
    /// Indexes that succeeded.
    pub succeeded_indexes: Indexes,
    /// Indexes that failed, with a backoff limit per index.
    pub failed_indexes: Option<Indexes>,
    /// The last failed pods of indexes that wait for another: they know how often the index failed.
    pub delayed: HashMap<i64, Arc<Pod>>,
    /// Failures since the last success, those of pods that are gone included.
    pub failures: Failures,
    now: jiff::Timestamp,
}

/// What is to be written about a job's pods.
pub struct Tracked {
    /// The next status.
    pub status: JobStatus,
    /// Pods to remove the tracking finalizer from, once the status is written.
    pub release: Vec<Arc<Pod>>,
    /// The condition that the job ends with, if it is new.
    pub finished: bool,
    /// Failures that a rule of the failure policy matches, by its action.
    pub handled: BTreeMap<&'static str, usize>,
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl<'a> State<'a> {
    /// Looks at the pods of a job.
    pub fn new(job: &'a Job, mut all: Vec<Arc<Pod>>, failures: Failures, now: jiff::Timestamp) -> Self {
        if job.indexed() {
            all.sort_by_key(|p| pods::index(p));
        }
        let active = all.iter().filter(|p| p.active()).cloned().collect();
        let terminating = count(all.iter().filter(|p| pods::terminating(p)).count());
        let mut state = State {
            job,
            active,
            terminating,
            succeeded: 0,
            failed: 0,
            succeeded_indexes: Indexes::default(),
            failed_indexes: None,
            delayed: HashMap::new(),
            failures,
            now,
            pods: all,
        };
        state.count();
        if job.indexed() {
            state.index();
        }
        state
    }

    fn failure_action(&self, pod: &Pod) -> FailureAction {
        FailureAction::of(pod, self.job.spec.pod_failure_policy.as_ref())
    }

    /// The same, counted if it is a rule's.
    fn handle(&self, pod: &Pod, handled: &mut BTreeMap<&'static str, usize>) -> FailureAction {
        let action = FailureAction::matched(pod, self.job.spec.pod_failure_policy.as_ref());
        if let Some(action) = &action {
            *handled.entry(action.name()).or_default() += 1;
        }
        action.unwrap_or(FailureAction::Count)
    }

    fn count(&mut self) {
        let status = &self.job.status;
        let none = kaji_runtime::objects::UncountedTerminatedPods::default();
        let uncounted = status.uncounted_terminated_pods.as_ref();
        let (succeeded, failed) =
            uncounted.map_or((&none.succeeded[..], &none.failed[..]), |u| (&u.succeeded, &u.failed));
        let new = self.fresh_count(succeeded, |p| p.status.phase == "Succeeded");
        self.succeeded = status.succeeded + count(succeeded.len()) + new;
        let new = self.fresh_count(failed, |p| pods::failed(p, self.job) && self.failure_action(p).counts());
        self.failed = status.failed + count(failed.len()) + new;
    }

    /// How many pods are over and in no list yet.
    fn fresh_count(&self, known: &[String], over: impl Fn(&Pod) -> bool) -> i64 {
        let known: HashSet<&str> = known.iter().map(String::as_str).collect();
        count(
            self.pods
                .iter()
                .filter(|p| {
                    pods::tracked(p)
                        && !known.contains(p.metadata.uid.as_str())
                        && (!self.job.indexed() || pods::valid_index(p, self.job).is_some())
                        && over(p)
                })
                .count(),
        )
    }

    fn index(&mut self) {
        let (job, completions) = (self.job, self.job.spec.completions.unwrap_or(0));
        let tracked = || self.pods.iter().filter(|p| pods::tracked(p));
        let new =
            tracked().filter(|p| p.status.phase == "Succeeded").filter_map(|p| pods::valid_index(p, job));
        let succeeded = Indexes::parse(&job.status.completed_indexes, completions).with(new);
        let Some(limit) = job.spec.backoff_limit_per_index else {
            self.succeeded = succeeded.len();
            self.succeeded_indexes = succeeded;
            return;
        };
        let fails = |p: &&Arc<Pod>| {
            pods::failed(p, job)
                && match self.failure_action(p) {
                    FailureAction::FailIndex => true,
                    action => action.counts() && pods::former_failures(p).0 >= limit,
                }
        };
        let known = job.status.failed_indexes.as_deref().unwrap_or_default();
        let new = tracked().filter(fails).filter_map(|p| pods::valid_index(p, job));
        let failed = Indexes::parse(known, completions).with(new);
        let busy: HashSet<i64> = self.active.iter().filter_map(|p| pods::index(p)).collect();
        let mut delayed: HashMap<i64, Arc<Pod>> = HashMap::new();
        for pod in tracked().filter(|p| pods::failed(p, job)) {
            let Some(index) = pods::valid_index(pod, job) else { continue };
            if succeeded.has(index) || failed.has(index) || busy.contains(&index) {
                continue;
            }
            let rank = |p: &Pod| {
                let (counted, ignored) = pods::former_failures(p);
                (counted + ignored, pods::finished_at(p))
            };
            let later = delayed
                .get(&index)
                .is_none_or(|last| rank(last).0 <= rank(pod).0 && rank(last).1 <= rank(pod).1);
            if later {
                delayed.insert(index, pod.clone());
            }
        }
        self.succeeded = succeeded.len();
        self.succeeded_indexes = succeeded;
        self.failed_indexes = Some(failed);
        self.delayed = delayed;
    }

    /// How the job ends, if it does; what was decided before stands.
    pub fn verdict(&self) -> Option<Verdict> {
        let job = self.job;
        if let Some(condition) = job.has(SUCCESS_CRITERIA_MET) {
            return Some(Verdict::recorded(true, condition));
        }
        if let Some(condition) = job.has(FAILURE_TARGET) {
            return Some(Verdict::recorded(false, condition));
        }
        self.failure().or_else(|| self.success())
    }

    fn failure(&self) -> Option<Verdict> {
        let (job, spec) = (self.job, &self.job.spec);
        let by_policy = |p: &Arc<Pod>| match self.failure_action(p) {
            FailureAction::FailJob(why) if pods::failed(p, job) => {
                Verdict::new(false, "PodFailurePolicy", why)
            }
            _ => None,
        };
        if spec.pod_failure_policy.is_some()
            && let Some(verdict) = self.pods.iter().find_map(by_policy)
        {
            return Some(verdict);
        }
        if self.failed > spec.backoff_limit.unwrap_or(6) || self.past_restarts() {
            return Verdict::new(
                false,
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            );
        }
        if self.until_deadline().is_some_and(|left| left.is_zero()) {
            return Verdict::new(false, "DeadlineExceeded", "Job was active longer than specified deadline");
        }
        let failed = self.failed_indexes.as_ref().map_or(0, Indexes::len);
        if spec.max_failed_indexes.is_some_and(|max| failed > max) {
            let text = "Job has exceeded the specified maximal number of failed indexes";
            return Verdict::new(false, "MaxFailedIndexesExceeded", text);
        }
        if failed > 0 && failed + self.succeeded >= spec.completions.unwrap_or(0) {
            return Verdict::new(false, "FailedIndexes", "Job has failed indexes");
        }
        None
    }

    /// Containers that restart in place count by their restarts.
    fn past_restarts(&self) -> bool {
        let spec = &self.job.spec;
        let policy = spec.template.pointer("/spec/restartPolicy").and_then(serde_json::Value::as_str);
        if policy != Some("OnFailure") {
            return false;
        }
        let running = |p: &&Arc<Pod>| matches!(p.status.phase.as_str(), "Running" | "Pending");
        let restarts: i64 = self
            .pods
            .iter()
            .filter(running)
            .map(|p| {
                let all = p.status.init_container_statuses.iter().chain(&p.status.container_statuses);
                all.map(|c| c.restart_count).sum::<i64>()
            })
            .sum();
        restarts >= spec.backoff_limit.unwrap_or(6).max(1)
    }

    /// How long the job may still be active. `None` without a deadline, or before it runs.
    pub fn until_deadline(&self) -> Option<Duration> {
        let deadline = self.job.spec.active_deadline_seconds?;
        if self.job.suspended() {
            return None;
        }
        let start = self.job.status.start_time?;
        let due = jiff::Timestamp::from_second(start.as_second().saturating_add(deadline)).ok()?;
        Some(Duration::try_from(due.duration_since(self.now)).unwrap_or_default())
    }

    fn success(&self) -> Option<Verdict> {
        let spec = &self.job.spec;
        if self.job.indexed()
            && let Some(rule) = self.success_rule()
        {
            return Verdict::new(true, "SuccessPolicy", format!("Matched rules at index {rule}"));
        }
        let reached = match spec.completions {
            None => self.succeeded > 0,
            Some(wanted) => self.succeeded >= wanted,
        };
        if reached && self.active.is_empty() {
            return Verdict::new(true, "CompletionsReached", "Reached expected number of succeeded pods");
        }
        None
    }

    /// Which rule of the success policy is met.
    fn success_rule(&self) -> Option<usize> {
        let (done, spec) = (&self.succeeded_indexes, &self.job.spec);
        let rules = &spec.success_policy.as_ref()?.rules;
        if done.is_empty() {
            return None;
        }
        rules.iter().position(|rule| match (&rule.succeeded_indexes, rule.succeeded_count) {
            (Some(indexes), wanted) => {
                let indexes = Indexes::parse(indexes, spec.completions.unwrap_or(0));
                let common = indexes.common(done);
                !indexes.is_empty() && (common == indexes.len() || wanted.is_some_and(|n| common >= n))
            }
            (None, wanted) => wanted.is_some_and(|n| done.len() >= n),
        })
    }

    /// The next status, and the pods that the tracking finalizer may be removed from once it is written.
    pub fn track(&self, verdict: Option<&Verdict>) -> Tracked {
        let job = self.job;
        let mut status = job.status.clone();
        let mut uncounted = status.uncounted_terminated_pods.take().unwrap_or_default();
        let tracked: HashSet<&str> =
            self.pods.iter().filter(|p| pods::tracked(p)).map(|p| p.metadata.uid.as_str()).collect();
        let lists =
            [(&mut uncounted.succeeded, &mut status.succeeded), (&mut uncounted.failed, &mut status.failed)];
        for (list, counter) in lists {
            let before = list.len();
            list.retain(|uid| tracked.contains(uid.as_str()));
            *counter += count(before - list.len());
        }
        let succeeded: HashSet<String> = uncounted.succeeded.iter().cloned().collect();
        let failed: HashSet<String> = uncounted.failed.iter().cloned().collect();
        let former = Indexes::parse(&job.status.completed_indexes, job.spec.completions.unwrap_or(0));
        let (mut release, mut indexes, mut full, mut handled) = (vec![], 0, false, BTreeMap::new());
        for pod in self.pods.iter().filter(|p| pods::tracked(p)) {
            let (uid, over) = (&pod.metadata.uid, pods::failed(pod, job));
            if !self.may_go(pod, over, verdict) {
                continue;
            }
            release.push(pod.clone());
            let index = pods::valid_index(pod, job);
            if pod.status.phase == "Succeeded" && !failed.contains(uid) {
                match index {
                    Some(index) if job.indexed() => indexes += usize::from(!former.has(index)),
                    None if job.indexed() => {}
                    _ if succeeded.contains(uid) => {}
                    _ => uncounted.succeeded.push(uid.clone()),
                }
            } else if (over || verdict.is_some_and(|v| !v.success))
                && !failed.contains(uid)
                && (!job.indexed() || index.is_some())
                && self.handle(pod, &mut handled).counts()
            {
                uncounted.failed.push(uid.clone());
            }
            if indexes + uncounted.succeeded.len() + uncounted.failed.len() >= MAX_UNCOUNTED {
                full = true;
                break;
            }
        }
        if job.indexed() {
            status.succeeded = self.succeeded_indexes.len();
            status.completed_indexes = self.succeeded_indexes.to_string();
            status.failed_indexes = self.failed_indexes.as_ref().map(Indexes::to_string);
        }
        let counted = uncounted.succeeded.is_empty() && uncounted.failed.is_empty();
        status.uncounted_terminated_pods = Some(uncounted);
        status.active = count(self.active.len());
        status.ready = Some(count(self.active.iter().filter(|p| p.ready()).count()));
        status.terminating = Some(self.terminating);
        let finished =
            counted && !full && release.is_empty() && self.active.is_empty() && self.terminating == 0;
        let finished = self.conclude(&mut status, verdict, finished);
        Tracked { status, release, finished, handled }
    }

    /// Whether a pod's finalizer may go.
    fn may_go(&self, pod: &Pod, failed: bool, verdict: Option<&Verdict>) -> bool {
        if self.job.metadata.deleting() || verdict.is_some() || pod.status.phase == "Succeeded" {
            return true;
        }
        let kept = || {
            let last = pods::index(pod).and_then(|i| self.delayed.get(&i));
            last.is_some_and(|last| last.metadata.uid == pod.metadata.uid)
        };
        failed && !kept()
    }

    /// Conditions and times. Says whether the job is over by them.
    fn conclude(&self, status: &mut JobStatus, verdict: Option<&Verdict>, empty: bool) -> bool {
        let suspended = self.job.suspended();
        if status.start_time.is_none() && !suspended {
            status.start_time = Some(seconds(self.now));
        }
        match verdict {
            Some(v) if !v.recorded => {
                let kind = if v.success { SUCCESS_CRITERIA_MET } else { FAILURE_TARGET };
                self.set(status, kind, "True", &v.reason, &v.message);
                false
            }
            Some(v) if empty => {
                self.set(
                    status,
                    if v.success { "Complete" } else { "Failed" },
                    "True",
                    &v.reason,
                    &v.message,
                );
                if v.success {
                    status.completion_time = Some(seconds(self.now));
                }
                true
            }
            Some(_) => false,
            None if self.job.metadata.deleting() => false,
            None if suspended => {
                if self.set(status, "Suspended", "True", "JobSuspended", "Job suspended") {
                    status.start_time = None;
                }
                false
            }
            None => {
                if self.set(status, "Suspended", "False", "JobResumed", "Job resumed") {
                    status.start_time = Some(seconds(self.now));
                }
                false
            }
        }
    }

    /// Sets a condition; one that is absent is not set to `False`. Says whether something changed.
    fn set(&self, status: &mut JobStatus, kind: &str, state: &str, reason: &str, message: &str) -> bool {
        let now = Some(seconds(self.now));
        let condition = JobCondition {
            kind: kind.into(),
            status: state.into(),
            last_probe_time: now,
            last_transition_time: now,
            reason: reason.into(),
            message: message.into(),
        };
        match status.conditions.iter_mut().find(|c| c.kind == kind) {
            Some(c) if c.status == state && c.reason == reason && c.message == message => false,
            Some(c) => {
                *c = condition;
                true
            }
            None if state == "False" => false,
            None => {
                status.conditions.push(condition);
                true
            }
        }
    }
}

/// A patch that takes the finalizer off exactly this pod.
pub fn release_body(pod: &Meta) -> serde_json::Value {
    serde_json::json!({"metadata": {"uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER]}})
}

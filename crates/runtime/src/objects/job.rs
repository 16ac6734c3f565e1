//! Job and CronJob, projected. Pod templates stay raw JSON.

use super::selector::LabelSelector;
use crate::{Meta, Projection};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Which exit codes a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OnExitCodes {
    /// One container, or all.
    pub container_name: Option<String>,
    /// `In`, `NotIn`
    pub operator: String,
    /// The codes.
    pub values: Vec<i64>,
}

/// A condition that a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OnPodCondition {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Status.
    pub status: String,
}

/// What to do about a kind of failure.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodFailureRule {
    /// `FailJob`, `FailIndex`, `Ignore`, `Count`
    pub action: String,
    /// By exit code.
    pub on_exit_codes: Option<OnExitCodes>,
    /// By condition.
    pub on_pod_conditions: Option<Vec<OnPodCondition>>,
}

/// `spec.podFailurePolicy`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodFailurePolicy {
    /// The first that matches counts.
    pub rules: Vec<PodFailureRule>,
}

/// When enough has succeeded.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SuccessRule {
    /// `0,2-4`
    pub succeeded_indexes: Option<String>,
    /// So many of them.
    pub succeeded_count: Option<i64>,
}

/// `spec.successPolicy`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SuccessPolicy {
    /// Any of them.
    pub rules: Vec<SuccessRule>,
}

/// A job's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    /// Pods at once.
    pub parallelism: Option<i64>,
    /// Successes wanted; absent: any success will do.
    pub completions: Option<i64>,
    /// Seconds.
    pub active_deadline_seconds: Option<i64>,
    /// Rules for failures.
    pub pod_failure_policy: Option<PodFailurePolicy>,
    /// Rules for success.
    pub success_policy: Option<SuccessPolicy>,
    /// Failures until the job fails.
    pub backoff_limit: Option<i64>,
    /// Failures until an index fails.
    pub backoff_limit_per_index: Option<i64>,
    /// Failed indexes until the job fails.
    pub max_failed_indexes: Option<i64>,
    /// Which pods.
    pub selector: LabelSelector,
    /// Pod template, raw.
    pub template: Value,
    /// Seconds from the end to the job's deletion.
    pub ttl_seconds_after_finished: Option<i64>,
    /// `NonIndexed`, `Indexed`
    pub completion_mode: Option<String>,
    /// Held back.
    pub suspend: Option<bool>,
    /// `TerminatingOrFailed`, `Failed`
    pub pod_replacement_policy: Option<String>,
    /// Another controller's name.
    pub managed_by: Option<String>,
}

/// A job's condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobCondition {
    /// `Complete`, `Failed`, `Suspended`, `FailureTarget`, `SuccessCriteriaMet`
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`
    pub status: String,
    /// When it was last looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<jiff::Timestamp>,
    /// When status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<jiff::Timestamp>,
    /// Reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Uids of pods that are over, and are counted once their finalizer is removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UncountedTerminatedPods {
    /// Succeeded.
    pub succeeded: Vec<String>,
    /// Failed.
    pub failed: Vec<String>,
}

/// A job's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// Conditions.
    pub conditions: Vec<JobCondition>,
    /// When it began.
    pub start_time: Option<jiff::Timestamp>,
    /// When it succeeded.
    pub completion_time: Option<jiff::Timestamp>,
    /// Pods neither over nor being deleted.
    pub active: i64,
    /// Ready ones of them.
    pub ready: Option<i64>,
    /// Pods being deleted.
    pub terminating: Option<i64>,
    /// Pods (or indexes) that succeeded.
    pub succeeded: i64,
    /// Pods that failed.
    pub failed: i64,
    /// `0,2-4`
    pub completed_indexes: String,
    /// `0,2-4`, with a backoff limit per index.
    pub failed_indexes: Option<String>,
    /// Pods not counted yet.
    pub uncounted_terminated_pods: Option<UncountedTerminatedPods>,
}

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Job {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: JobSpec,
    /// Status.
    pub status: JobStatus,
}

impl Job {
    /// A condition that is `True`.
    pub fn has(&self, kind: &str) -> Option<&JobCondition> {
        self.status.conditions.iter().find(|c| c.kind == kind && c.status == "True")
    }

    /// The condition that says that it is over.
    pub fn finished(&self) -> Option<&JobCondition> {
        self.status
            .conditions
            .iter()
            .find(|c| matches!(c.kind.as_str(), "Complete" | "Failed") && c.status == "True")
    }

    /// Whether its pods have indexes.
    pub fn indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    /// Whether it is held back.
    pub fn suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Whether another controller looks after it.
    pub fn foreign(&self) -> bool {
        self.spec.managed_by.as_deref().is_some_and(|m| m != "kubernetes.io/job-controller")
    }
}

impl Projection for Job {
    const GROUP: &'static str = "batch";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "jobs";
    const KIND: &'static str = "Job";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// A cron job's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobSpec {
    /// `*/5 * * * *`
    pub schedule: String,
    /// `Europe/Berlin`
    pub time_zone: Option<String>,
    /// How late a start may be, in seconds.
    pub starting_deadline_seconds: Option<i64>,
    /// `Allow`, `Forbid`, `Replace`
    pub concurrency_policy: String,
    /// Held back.
    pub suspend: Option<bool>,
    /// Job template, raw.
    pub job_template: Value,
    /// Succeeded jobs kept.
    pub successful_jobs_history_limit: Option<i64>,
    /// Failed jobs kept.
    pub failed_jobs_history_limit: Option<i64>,
}

/// A cron job's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobStatus {
    /// References to jobs that run, raw.
    pub active: Vec<Value>,
    /// When one was last due and started.
    pub last_schedule_time: Option<jiff::Timestamp>,
    /// When one last succeeded.
    pub last_successful_time: Option<jiff::Timestamp>,
}

/// A cron job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CronJob {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: CronJobSpec,
    /// Status.
    pub status: CronJobStatus,
}

impl Projection for CronJob {
    const GROUP: &'static str = "batch";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "cronjobs";
    const KIND: &'static str = "CronJob";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

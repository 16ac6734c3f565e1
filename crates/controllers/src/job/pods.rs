//! What a job reads of a pod: its index, when it ended, and what the job's policy says about a failure.

use kaji_runtime::objects::{ContainerStatus, Job, OnExitCodes, Pod, PodFailurePolicy};

/// Keeps a pod until its end is counted.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Failures of an index before this pod.
pub const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// Failures of an index before this pod that the policy ignores.
pub const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// Whether the pod is still to be counted.
pub fn tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().any(|f| f == FINALIZER)
}

/// Its completion index.
pub fn index(pod: &Pod) -> Option<i64> {
    pod.metadata.annotations.get(INDEX)?.parse().ok().filter(|i| *i >= 0)
}

/// Its completion index, if it is one of the job's.
pub fn valid_index(pod: &Pod, job: &Job) -> Option<i64> {
    index(pod).filter(|i| *i < job.spec.completions.unwrap_or(0))
}

/// How often its index failed before: counted and ignored failures.
pub fn former_failures(pod: &Pod) -> (i64, i64) {
    let count = |key: &str| {
        let value = pod.metadata.annotations.get(key).and_then(|v| v.parse::<i64>().ok());
        value.filter(|n| (0..=i64::from(i32::MAX)).contains(n)).unwrap_or(0)
    };
    (count(FAILURES), count(IGNORED))
}

/// Whether pods are replaced only once they have failed, not as soon as they are being deleted.
pub fn replaces_failed_only(job: &Job) -> bool {
    job.spec.pod_replacement_policy.as_deref() == Some("Failed") || job.spec.pod_failure_policy.is_some()
}

/// Whether a pod counts as failed.
pub fn failed(pod: &Pod, job: &Job) -> bool {
    match pod.status.phase.as_str() {
        "Failed" => true,
        "Succeeded" => false,
        // One that is deleted may never get to say so.
        _ => !replaces_failed_only(job) && pod.metadata.deleting(),
    }
}

/// Being deleted, and not over yet.
pub fn terminating(pod: &Pod) -> bool {
    pod.metadata.deleting() && !pod.finished()
}

/// What a job's policy says about a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// It counts against the limits.
    Count,
    /// It does not count.
    Ignore,
    /// Its index has failed.
    FailIndex,
    /// The job has failed; why.
    FailJob(String),
}

impl FailureAction {
    /// Of the first rule that matches; a failure that none does counts.
    pub fn of(pod: &Pod, policy: Option<&PodFailurePolicy>) -> Self {
        FailureAction::matched(pod, policy).unwrap_or(FailureAction::Count)
    }

    /// Of the first rule that matches, if one does.
    pub fn matched(pod: &Pod, policy: Option<&PodFailurePolicy>) -> Option<Self> {
        let rules = policy.map(|p| p.rules.as_slice()).unwrap_or_default();
        let verdict = |why: String, action: &str| match action {
            "Ignore" => Some(FailureAction::Ignore),
            "FailIndex" => Some(FailureAction::FailIndex),
            "Count" => Some(FailureAction::Count),
            "FailJob" => Some(FailureAction::FailJob(why)),
            _ => None,
        };
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        rules.iter().enumerate().find_map(|(i, rule)| {
            let action = rule.action.as_str();
            if let Some(codes) = &rule.on_exit_codes {
                let all = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
                let (container, code) = all.filter_map(|c| matching_code(c, codes)).next()?;
                let why = format!(
                    "Container {container} for pod {namespace}/{name} failed with exit code {code} matching {action} rule at index {i}"
                );
                return verdict(why, action);
            }
            let patterns = rule.on_pod_conditions.as_ref()?;
            let matches = |c: &&kaji_runtime::objects::PodCondition| {
                patterns.iter().any(|p| p.kind == c.kind && p.status == c.status)
            };
            let condition = pod.status.conditions.iter().find(matches)?;
            let why =
                format!("Pod {namespace}/{name} has condition {} matching {action} rule at index {i}", condition.kind);
            verdict(why, action)
        })
    }

    /// What a rule calls it.
    pub fn name(&self) -> &'static str {
        match self {
            FailureAction::Count => "Count",
            FailureAction::Ignore => "Ignore",
            FailureAction::FailIndex => "FailIndex",
            FailureAction::FailJob(_) => "FailJob",
        }
    }

    /// Whether it counts against the limits.
    pub fn counts(&self) -> bool {
        *self != FailureAction::Ignore
    }
}

/// Name and exit code of a container that failed as the rule has it.
fn matching_code<'a>(status: &'a ContainerStatus, rule: &OnExitCodes) -> Option<(&'a str, i64)> {
    let code = status.state.terminated.as_ref().map(|t| t.exit_code).filter(|c| *c != 0)?;
    let named = rule.container_name.as_ref().is_none_or(|n| *n == status.name);
    let listed = rule.values.contains(&code);
    let matches = match rule.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    };
    (named && matches).then_some((status.name.as_str(), code))
}

/// When a pod ended, by the best evidence: its containers, its readiness, its deletion, or its creation.
pub fn finished_at(pod: &Pod) -> Option<jiff::Timestamp> {
    let terminated = |c: &ContainerStatus| c.state.terminated.as_ref().and_then(|t| t.finished_at);
    let sidecar = |name: &str| pod.spec.init_containers.iter().any(|c| &*c.name == name && c.sidecar());
    let sidecars = pod.status.init_container_statuses.iter().filter(|c| sidecar(&c.name));
    let ends: Option<Vec<_>> = pod.status.container_statuses.iter().chain(sidecars).map(terminated).collect();
    let grace = pod.spec.termination_grace_period_seconds.unwrap_or(0);
    let deleted = || {
        let at = pod.metadata.deletion_timestamp?;
        jiff::Timestamp::from_second(at.as_second() - grace).ok()
    };
    let unready =
        || pod.condition("Ready").filter(|c| c.status == "False").and_then(|c| c.last_transition_time);
    ends.and_then(|e| e.into_iter().max())
        .or_else(unready)
        .or_else(deleted)
        .or(pod.metadata.creation_timestamp)
}

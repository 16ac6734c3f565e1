//! One turn of an autoscaler: the conditions, events and status that it leaves. Pure.
//!
//! Invariants: a condition's time moves with its status alone; a status that says what it said before is not written.

use super::{
    metrics,
    proposal::{NoProposal, Proposal},
};
use crate::shared::conditions::seconds;
use jiff::Timestamp;
use kaji_meta::time::Time;
use kaji_runtime::{
    EventRecord, Projection,
    objects::{Condition, HorizontalPodAutoscaler},
};
use serde_json::{Value, json};

/// The condition that the target can be scaled.
pub const ABLE: &str = "AbleToScale";
/// The condition that replicas can be computed.
pub const ACTIVE: &str = "ScalingActive";
/// The condition that what was computed is not what is done.
pub const LIMITED: &str = "ScalingLimited";
/// The condition that it was the autoscaler that scaled the target to zero.
const SCALED_TO_ZERO: &str = "ScaledToZero";

/// A turn.
pub struct Turn<'a> {
    /// The autoscaler.
    pub hpa: &'a HorizontalPodAutoscaler,
    /// When.
    pub now: Timestamp,
    conditions: Vec<Condition>,
    /// Recorded at its end.
    pub events: Vec<EventRecord>,
    /// The replicas that were seen.
    pub current: i64,
    /// Those that are wanted.
    pub desired: i64,
    /// The values of the metrics; null for none.
    pub metrics: Value,
    observed_generation: Option<i64>,
    /// Whether the target was scaled.
    pub scaled: bool,
    /// What was done, as metrics name it.
    pub action: &'static str,
    /// The first failure, as metrics name it.
    pub failure: &'static str,
}

impl<'a> Turn<'a> {
    /// A turn that leaves everything as it is.
    pub fn new(hpa: &'a HorizontalPodAutoscaler, now: Timestamp) -> Turn<'a> {
        let status = &hpa.status;
        Turn {
            hpa,
            now,
            conditions: status.conditions.clone(),
            events: vec![],
            current: status.current_replicas,
            desired: status.desired_replicas,
            metrics: status.current_metrics.clone(),
            observed_generation: status.observed_generation,
            scaled: false,
            action: metrics::NONE,
            failure: metrics::NONE,
        }
    }

    /// Something failed; the first failure is what metrics tell.
    pub fn failed(&mut self, failure: &'static str) {
        if self.failure == metrics::NONE {
            self.failure = failure;
        }
    }

    /// Sets a condition.
    pub fn condition(&mut self, kind: &str, status: bool, reason: &str, message: impl Into<String>) {
        let status = if status { "True" } else { "False" };
        let found = self.conditions.iter().position(|c| c.kind == kind);
        let at = found.unwrap_or_else(|| {
            self.conditions.push(Condition { kind: kind.into(), ..Condition::default() });
            self.conditions.len() - 1
        });
        let Some(condition) = self.conditions.get_mut(at) else { return };
        if condition.status != status {
            condition.last_transition_time = Some(seconds(self.now));
        }
        condition.status = status.into();
        condition.reason = reason.into();
        condition.message = message.into();
    }

    /// The target was read: from here on the status is about this generation of the autoscaler. It has no metrics yet.
    pub fn saw(&mut self, replicas: i64) {
        self.current = replicas;
        self.metrics = Value::Null;
        self.observed_generation = Some(self.hpa.metadata.generation);
    }

    /// Whether a metric tells when pods are needed again where there are none.
    fn has_outside_metric(&self) -> bool {
        self.hpa.spec.metrics.iter().any(|metric| matches!(metric.kind.as_str(), "Object" | "External"))
    }

    /// Whether a target with zero replicas is scaled: if the autoscaler scaled it to zero, and may not do so any more or has
    /// a metric for it.
    pub fn leaves_zero(&self, min: i64) -> bool {
        let own = self.conditions.iter().any(|c| c.kind == SCALED_TO_ZERO && c.status == "True");
        own && (min != 0 || self.has_outside_metric())
    }

    /// The target was scaled.
    pub fn scaled_to(&mut self, replicas: i64) {
        let may_be_zero = self.hpa.spec.min_replicas == Some(0) && self.has_outside_metric();
        let (reason, message) = match self.current > 0 && replicas == 0 && may_be_zero {
            true => ("ScaledToZero", "the HPA controller scaled the workload to zero"),
            false => ("NotScaledToZero", "the HPA controller did not scale the workload to zero"),
        };
        self.condition(SCALED_TO_ZERO, reason == SCALED_TO_ZERO, reason, message);
        (self.desired, self.scaled) = (replicas, true);
    }

    fn reference(&self) -> Value {
        self.hpa.metadata.reference(&HorizontalPodAutoscaler::api_version(), HorizontalPodAutoscaler::KIND)
    }

    /// Adds a warning.
    pub fn warn(&mut self, reason: &str, message: impl Into<String>) {
        self.events.push(EventRecord::warning(self.reference(), reason, message));
    }

    /// Adds an event.
    pub fn note(&mut self, reason: &str, message: impl Into<String>) {
        self.events.push(EventRecord::normal(self.reference(), reason, message));
    }

    /// The status, if it is another one than before. A field that is gone is null.
    pub fn status(&self) -> Option<Value> {
        let before = &self.hpa.status;
        let same = self.conditions == before.conditions
            && self.current == before.current_replicas
            && self.desired == before.desired_replicas
            && self.metrics == before.current_metrics
            && self.observed_generation == before.observed_generation
            && !self.scaled;
        let last = match self.scaled {
            true => Some(Time::new(self.now).to_string()),
            false => before.last_scale_time.clone(),
        };
        (!same).then(|| {
            json!({
                "observedGeneration": self.observed_generation,
                "currentReplicas": self.current,
                "desiredReplicas": self.desired,
                "lastScaleTime": last,
                "currentMetrics": self.metrics,
                "conditions": self.conditions,
            })
        })
    }

    /// Takes the metrics' proposals together: the greatest one counts. `None` if they do not suffice: none of them is there,
    /// or some are missing and the others would scale down. Replicas come with the name of their metric.
    pub fn combine(
        &mut self,
        proposals: Vec<Result<Proposal, NoProposal>>,
        replicas: i64,
    ) -> Option<(i64, String)> {
        let all = proposals.len();
        let (mut best, mut failures, mut statuses) = ((0, String::new()), vec![], vec![]);
        for proposal in proposals {
            match proposal {
                Ok(Proposal { replicas, metric, status }) => {
                    if best.0 == 0 || replicas > best.0 {
                        best = (replicas, metric);
                    }
                    statuses.push(status);
                }
                Err(failure) => {
                    self.warn(failure.reason, failure.cause.clone());
                    failures.push(failure);
                    // Upstream leaves an empty entry.
                    statuses.push(json!({"type": ""}));
                }
            }
        }
        self.metrics = statuses.into();
        let Some(first) = failures.first() else {
            self.valid(&best.1);
            return Some(best);
        };
        let count = failures.len();
        self.failed(first.label());
        if count == all || best.0 < replicas {
            let message = format!("the HPA was unable to compute the replica count: {}", first.cause);
            self.condition(ACTIVE, false, first.reason, message);
            let error =
                format!("invalid metrics ({count} invalid out of {all}), first error is: {}", first.error);
            self.warn("FailedComputeMetricsReplicas", error);
            return None;
        }
        self.valid(&best.1);
        Some(best)
    }

    fn valid(&mut self, metric: &str) {
        let message = format!("the HPA was able to successfully calculate a replica count from {metric}");
        self.condition(ACTIVE, true, "ValidMetricFound", message);
    }
}

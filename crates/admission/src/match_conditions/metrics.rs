//! Metrics of match conditions, with upstream's names (`admission/metrics` of k8s.io/apiserver).

use kaji_engine::Operation;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    name: String,
    kind: &'static str,
    r#type: &'static str,
    operation: &'static str,
}

/// Those of webhooks and of policies.
pub(crate) struct ConditionMetrics {
    errors: Family<Labels, Counter>,
    exclusions: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Default for ConditionMetrics {
    fn default() -> Self {
        let buckets = || Histogram::new([0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25]);
        ConditionMetrics {
            errors: Family::default(),
            exclusions: Family::default(),
            seconds: Family::new_with_constructor(buckets as fn() -> Histogram),
        }
    }
}

impl ConditionMetrics {
    /// Puts them on a page.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_admission_match_condition_evaluation_errors_total",
            "[ALPHA] Admission match condition evaluation errors count, identified by name of resource containing the match condition and broken out for each kind containing matchConditions (webhook or policy), operation and admission type (validate or admit).",
            self.errors.clone(),
        );
        registry.register(
            "apiserver_admission_match_condition_exclusions_total",
            "[ALPHA] Admission match condition evaluation exclusions count, identified by name of resource containing the match condition and broken out for each kind containing matchConditions (webhook or policy), operation and admission type (validate or admit).",
            self.exclusions.clone(),
        );
        registry.register(
            "apiserver_admission_match_condition_evaluation_seconds",
            "[ALPHA] Admission match condition evaluation time in seconds, identified by name and broken out for each kind containing matchConditions (webhook or policy), operation and type (validate or admit).",
            self.seconds.clone(),
        );
    }

    /// A webhook that is not called because of its conditions.
    pub(crate) fn excluded(&self, name: &str, step: &'static str, operation: Operation) {
        let operation = operation.as_str();
        let labels = Labels { name: name.to_owned(), kind: "webhook", r#type: step, operation };
        self.exclusions.get_or_create(&labels).inc();
    }
}

/// The webhook or policy that the conditions belong to.
pub(crate) struct MetricLabels<'a> {
    pub metrics: &'a ConditionMetrics,
    pub name: &'a str,
    /// `webhook` or `policy`.
    pub kind: &'static str,
    /// `admit`, `validating` (of webhooks) or `validate` (of policies).
    pub step: &'static str,
}

impl MetricLabels<'_> {
    /// An evaluation: how many of its conditions failed, and how long it took.
    pub(super) fn evaluated(&self, operation: Operation, errors: usize, elapsed: Duration) {
        let (name, operation) = (self.name.to_owned(), operation.as_str());
        let labels = Labels { name, kind: self.kind, r#type: self.step, operation };
        if errors > 0 {
            self.metrics.errors.get_or_create(&labels).inc_by(errors as u64);
        }
        self.metrics.seconds.get_or_create(&labels).observe(elapsed.as_secs_f64());
    }
}

//! Metrics of policies, with upstream's names (`policy/validating/metrics`, `policy/mutating/metrics`).

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ValidatingLabels {
    policy: String,
    policy_binding: String,
    error_type: &'static str,
    enforcement_action: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MutatingLabels {
    policy: String,
    policy_binding: String,
    error_type: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics of both plugins.
pub struct PolicyMetrics {
    checks: Family<ValidatingLabels, Counter>,
    check_seconds: Histograms<ValidatingLabels>,
    mutations: Family<MutatingLabels, Counter>,
    mutation_seconds: Histograms<MutatingLabels>,
}

fn buckets() -> Histogram {
    Histogram::new([0.000_000_5, 0.001, 0.01, 0.1, 1.0])
}

impl Default for PolicyMetrics {
    fn default() -> Self {
        PolicyMetrics {
            checks: Family::default(),
            check_seconds: Family::new_with_constructor(buckets as fn() -> Histogram),
            mutations: Family::default(),
            mutation_seconds: Family::new_with_constructor(buckets as fn() -> Histogram),
        }
    }
}

/// The kind of error by its text, as upstream has it.
fn error_type(error: Option<&str>) -> &'static str {
    match error {
        None => "no_error",
        Some(text) if text.starts_with("compilation") => "compile_error",
        Some(text) if text.starts_with("validation failed due to running out of cost budget") => {
            "out_of_budget"
        }
        Some(_) => "invalid_error",
    }
}

impl PolicyMetrics {
    /// A validation that was acted on: `allow`, `deny`, `audit` or `warn`.
    pub(crate) fn checked(
        &self,
        (policy, binding): (&str, &str),
        error: Option<&str>,
        enforcement_action: &'static str,
        elapsed: Duration,
    ) {
        let labels = ValidatingLabels {
            policy: policy.to_owned(),
            policy_binding: binding.to_owned(),
            error_type: error_type(error),
            enforcement_action,
        };
        self.check_seconds.get_or_create(&labels).observe(elapsed.as_secs_f64());
        self.checks.get_or_create(&labels).inc();
    }

    /// A mutation that was made, or could not be.
    pub(crate) fn mutated(&self, (policy, binding): (&str, &str), error: Option<&str>, elapsed: Duration) {
        let labels = MutatingLabels {
            policy: policy.to_owned(),
            policy_binding: binding.to_owned(),
            error_type: error_type(error),
        };
        self.mutation_seconds.get_or_create(&labels).observe(elapsed.as_secs_f64());
        self.mutations.get_or_create(&labels).inc();
    }

    /// Puts them on a page.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_validating_admission_policy_check_total",
            "[BETA] Validation admission policy check total, labeled by policy and further identified by binding and enforcement action taken.",
            self.checks.clone(),
        );
        registry.register(
            "apiserver_validating_admission_policy_check_duration_seconds",
            "[BETA] Validation admission latency for individual validation expressions in seconds, labeled by policy and further including binding and enforcement action taken.",
            self.check_seconds.clone(),
        );
        registry.register(
            "apiserver_mutating_admission_policy_check_total",
            "[ALPHA] Mutation admission policy check total, labeled by policy and further identified by binding.",
            self.mutations.clone(),
        );
        registry.register(
            "apiserver_mutating_admission_policy_check_duration_seconds",
            "[ALPHA] Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding.",
            self.mutation_seconds.clone(),
        );
    }
}

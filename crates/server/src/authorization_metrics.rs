//! Metrics of authorizers: decisions, webhook requests, match conditions and reloads of the configuration file, with
//! upstream's names.
//!
//! Invariant: labels come from the configuration, never from a request.

use crate::reload_metrics::ReloadMetrics;
use kaji_auth::authz::webhook::Witness;
pub use prometheus_client::metrics::counter::Counter;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DecisionLabels {
    r#type: &'static str,
    name: String,
    decision: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabels {
    name: String,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ConditionLabels {
    r#type: &'static str,
    name: String,
}

/// Seconds, as upstream has them.
fn buckets() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

/// Seconds of looking at conditions, likewise.
fn short_buckets() -> Histogram {
    Histogram::new([0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25])
}

/// The metrics of a server's authorizers.
pub struct AuthorizationMetrics {
    made: Family<DecisionLabels, Counter>,
    trips: Family<ResultLabels, Counter>,
    durations: Family<ResultLabels, Histogram, fn() -> Histogram>,
    open: Family<ResultLabels, Counter>,
    excluded: Family<ConditionLabels, Counter>,
    failed: Family<ConditionLabels, Counter>,
    evaluated: Family<ConditionLabels, Histogram, fn() -> Histogram>,
    /// How the file fared.
    pub reloads: ReloadMetrics,
}

impl AuthorizationMetrics {
    /// Those of a server that goes by this name.
    pub fn new(server: &str) -> AuthorizationMetrics {
        AuthorizationMetrics {
            made: Family::default(),
            trips: Family::default(),
            durations: Family::new_with_constructor(buckets),
            open: Family::default(),
            excluded: Family::default(),
            failed: Family::default(),
            evaluated: Family::new_with_constructor(short_buckets),
            reloads: ReloadMetrics::new("authorization", server),
        }
    }

    /// Makes them part of a page.
    pub fn register(&self, registry: &mut Registry) {
        let group = registry.sub_registry_with_prefix("apiserver_authorization");
        let help = "[ALPHA] Total number of terminal decisions made by an authorizer split by authorizer type, name, and decision.";
        group.register("decisions_total", help, self.made.clone());
        group.register(
            "webhook_evaluations_total",
            "[ALPHA] Round-trips to authorization webhooks.",
            self.trips.clone(),
        );
        group.register(
            "webhook_duration_seconds",
            "[ALPHA] Request latency in seconds.",
            self.durations.clone(),
        );
        let help = "[ALPHA] NoOpinion results due to webhook timeout or error.";
        group.register("webhook_evaluations_fail_open_total", help, self.open.clone());
        let help = "[ALPHA] Total number of exclusions when an authorization webhook is skipped because match conditions exclude it.";
        group.register("match_condition_exclusions_total", help, self.excluded.clone());
        let help = "[ALPHA] Total number of errors when an authorization webhook encounters a match condition error split by authorizer type and name.";
        group.register("match_condition_evaluation_errors_total", help, self.failed.clone());
        let help = "[ALPHA] Authorization match condition evaluation time in seconds, split by authorizer type and name.";
        group.register("match_condition_evaluation_seconds", help, self.evaluated.clone());
        self.reloads.register(registry);
    }

    /// The counter of an authorizer's decisions, `allowed` or `denied`, for the authorizer to keep.
    pub fn counter(&self, kind: &'static str, name: &str, decision: &'static str) -> Counter {
        self.made.get_or_create_owned(&DecisionLabels { r#type: kind, name: name.to_owned(), decision })
    }

    /// A webhook was asked: `success`, `timeout`, `error` or `canceled`.
    pub fn asked(&self, name: &str, result: &'static str, took: Duration) {
        let labels = ResultLabels { name: name.to_owned(), result };
        self.trips.get_or_create(&labels).inc();
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

impl Witness for AuthorizationMetrics {
    fn failed_open(&self, name: &str, result: &'static str) {
        self.open.get_or_create(&ResultLabels { name: name.to_owned(), result }).inc();
    }

    fn conditions(&self, name: &str, took: Duration, excluded: bool, failed: bool) {
        let labels = ConditionLabels { r#type: "Webhook", name: name.to_owned() };
        self.evaluated.get_or_create(&labels).observe(took.as_secs_f64());
        if excluded {
            self.excluded.get_or_create(&labels).inc();
        }
        if failed {
            self.failed.get_or_create(&labels).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_upstreams_families() {
        let decisions = AuthorizationMetrics::new("server");
        let mut registry = Registry::default();
        decisions.register(&mut registry);
        decisions.counter("RBAC", "rbac", "allowed").inc();
        decisions.counter("RBAC", "rbac", "allowed").inc();
        decisions.counter("Webhook", "w", "denied").inc();
        decisions.asked("w", "success", Duration::from_millis(20));
        decisions.failed_open("w", "timeout");
        decisions.conditions("w", Duration::from_millis(2), true, false);
        decisions.conditions("w", Duration::from_millis(2), false, true);
        let page = kaji_exposition::encode(&registry);
        let mut lines: Vec<&str> =
            page.lines().filter(|l| !l.starts_with('#') && !l.contains("_bucket")).collect();
        lines.sort_unstable();
        expect_test::expect![[r#"
            apiserver_authorization_decisions_total{decision="allowed",name="rbac",type="RBAC"} 2
            apiserver_authorization_decisions_total{decision="denied",name="w",type="Webhook"} 1
            apiserver_authorization_match_condition_evaluation_errors_total{name="w",type="Webhook"} 1
            apiserver_authorization_match_condition_evaluation_seconds_count{name="w",type="Webhook"} 2
            apiserver_authorization_match_condition_evaluation_seconds_sum{name="w",type="Webhook"} 0.004
            apiserver_authorization_match_condition_exclusions_total{name="w",type="Webhook"} 1
            apiserver_authorization_webhook_duration_seconds_count{name="w",result="success"} 1
            apiserver_authorization_webhook_duration_seconds_sum{name="w",result="success"} 0.02
            apiserver_authorization_webhook_evaluations_fail_open_total{name="w",result="timeout"} 1
            apiserver_authorization_webhook_evaluations_total{name="w",result="success"} 1"#]]
        .assert_eq(&lines.join("\n"));
    }
}

//! What authorizers decided, and how the services that they asked and the file that names them fared: metrics with
//! upstream's names.
//!
//! Invariant: labels come from the configuration, never from a request.

use jiff::Timestamp;
pub use prometheus_client::metrics::counter::Counter;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use sha2::{Digest, Sha256};
use std::{sync::atomic::AtomicU64, time::Duration};

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
struct ReloadLabels {
    status: &'static str,
    apiserver_id_hash: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ConfigLabels {
    apiserver_id_hash: String,
    hash: String,
}

/// Seconds, as upstream has them.
fn buckets() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

/// The metrics of a server's authorizers.
pub struct Decisions {
    made: Family<DecisionLabels, Counter>,
    trips: Family<ResultLabels, Counter>,
    durations: Family<ResultLabels, Histogram, fn() -> Histogram>,
    open: Family<ResultLabels, Counter>,
    reloads: Family<ReloadLabels, Counter>,
    reloaded_at: Family<ReloadLabels, Gauge<f64, AtomicU64>>,
    config: Family<ConfigLabels, Gauge>,
    /// Which server says it, as metrics have it.
    server: String,
}

impl Decisions {
    /// Those of a server that goes by this name.
    pub fn new(server: &str) -> Decisions {
        Decisions {
            made: Family::default(),
            trips: Family::default(),
            durations: Family::new_with_constructor(buckets),
            open: Family::default(),
            reloads: Family::default(),
            reloaded_at: Family::default(),
            config: Family::default(),
            server: hash(server.as_bytes()),
        }
    }

    /// Makes them part of a page.
    pub fn register(&self, registry: &mut Registry) {
        let group = registry.sub_registry_with_prefix("apiserver_authorization");
        let help = "Total number of terminal decisions made by an authorizer split by authorizer type, name, and decision.";
        group.register("decisions", help, self.made.clone());
        group.register("webhook_evaluations", "Round-trips to authorization webhooks.", self.trips.clone());
        group.register("webhook_duration_seconds", "Request latency in seconds.", self.durations.clone());
        let help = "NoOpinion results due to webhook timeout or error.";
        group.register("webhook_evaluations_fail_open", help, self.open.clone());
        let group = registry.sub_registry_with_prefix("apiserver_authorization_config_controller");
        let help = "Total number of automatic reloads of authorization configuration split by status and apiserver identity.";
        group.register("automatic_reloads", help, self.reloads.clone());
        let help = "Timestamp of the last automatic reload of authorization configuration split by status and apiserver identity.";
        group.register("automatic_reload_last_timestamp_seconds", help, self.reloaded_at.clone());
        let help = "Information about the last applied authorization configuration with hash as label, split by apiserver identity.";
        group.register("last_config_info", help, self.config.clone());
    }

    /// The counter of an authorizer's decisions, `allowed` or `denied`, to be kept by whoever counts.
    pub fn counter(&self, kind: &'static str, name: &str, decision: &'static str) -> Counter {
        self.made.get_or_create_owned(&DecisionLabels { r#type: kind, name: name.to_owned(), decision })
    }

    /// A webhook was asked: `success`, `timeout`, `error` or `canceled`.
    pub fn asked(&self, name: &str, result: &'static str, took: Duration) {
        let labels = ResultLabels { name: name.to_owned(), result };
        self.trips.get_or_create(&labels).inc();
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Others were let decide because a webhook did not: `timeout` or `error`.
    pub fn failed_open(&self, name: &str, result: &'static str) {
        self.open.get_or_create(&ResultLabels { name: name.to_owned(), result }).inc();
    }

    /// A configuration is in force from now on.
    pub fn configured(&self, file: &[u8]) {
        // One series at a time: the others are of the past.
        self.config.clear();
        let labels = ConfigLabels { apiserver_id_hash: self.server.clone(), hash: hash(file) };
        self.config.get_or_create(&labels).set(1);
    }

    /// A changed file was looked at.
    pub fn reloaded(&self, good: bool, now: Timestamp) {
        let status = if good { "success" } else { "failure" };
        let labels = ReloadLabels { status, apiserver_id_hash: self.server.clone() };
        self.reloads.get_or_create(&labels).inc();
        self.reloaded_at.get_or_create(&labels).set(now.as_millisecond() as f64 / 1000.0);
    }
}

fn hash(data: &[u8]) -> String {
    if data.is_empty() {
        return String::new();
    }
    let digest = Sha256::digest(data);
    digest.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page() {
        let decisions = Decisions::new("server");
        let mut registry = Registry::default();
        decisions.register(&mut registry);
        decisions.counter("RBAC", "rbac", "allowed").inc();
        decisions.counter("RBAC", "rbac", "allowed").inc();
        decisions.counter("Webhook", "w", "denied").inc();
        decisions.asked("w", "success", Duration::from_millis(20));
        decisions.failed_open("w", "timeout");
        decisions.configured(b"old");
        decisions.configured(b"new");
        decisions.reloaded(true, Timestamp::from_millisecond(1_500).unwrap());
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        let mut lines: Vec<&str> =
            page.lines().filter(|l| !l.starts_with('#') && !l.contains("_bucket")).collect();
        lines.sort_unstable();
        expect_test::expect![[r#"
            apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds{status="success",apiserver_id_hash="sha256:b3eacd33433b31b5252351032c9b3e7a2e7aa7738d5decdf0dd6c62680853c06"} 1.5
            apiserver_authorization_config_controller_automatic_reloads_total{status="success",apiserver_id_hash="sha256:b3eacd33433b31b5252351032c9b3e7a2e7aa7738d5decdf0dd6c62680853c06"} 1
            apiserver_authorization_config_controller_last_config_info{apiserver_id_hash="sha256:b3eacd33433b31b5252351032c9b3e7a2e7aa7738d5decdf0dd6c62680853c06",hash="sha256:11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"} 1
            apiserver_authorization_decisions_total{type="RBAC",name="rbac",decision="allowed"} 2
            apiserver_authorization_decisions_total{type="Webhook",name="w",decision="denied"} 1
            apiserver_authorization_webhook_duration_seconds_count{name="w",result="success"} 1
            apiserver_authorization_webhook_duration_seconds_sum{name="w",result="success"} 0.02
            apiserver_authorization_webhook_evaluations_fail_open_total{name="w",result="timeout"} 1
            apiserver_authorization_webhook_evaluations_total{name="w",result="success"} 1"#]].assert_eq(&lines.join("\n"));
    }
}

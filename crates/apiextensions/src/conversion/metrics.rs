//! Metrics of conversion webhooks, with upstream's names.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
    failure_type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Way {
    crd_name: String,
    from_version: String,
    to_version: String,
    succeeded: &'static str,
}

/// Labels come from definitions, which are few; no more combinations than this are counted one by one.
const MAX_DEFINITIONS: usize = 1000;

/// The metrics of all conversion webhooks.
#[derive(Clone)]
pub struct ConversionMetrics {
    requests: Family<Outcome, Counter>,
    latencies: Family<Outcome, Histogram, fn() -> Histogram>,
    ways: Family<Way, Histogram, fn() -> Histogram>,
    seen: std::sync::Arc<std::sync::Mutex<std::collections::HashSet<Way>>>,
}

impl Default for ConversionMetrics {
    fn default() -> Self {
        let latencies = || {
            Histogram::new([
                0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0,
            ])
        };
        let ways =
            || Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(0.001, 2.0, 15));
        ConversionMetrics {
            requests: Family::default(),
            latencies: Family::new_with_constructor(latencies),
            ways: Family::new_with_constructor(ways),
            seen: std::sync::Arc::default(),
        }
    }
}

impl ConversionMetrics {
    /// Makes them part of a page.
    pub fn register(&self, registry: &mut Registry) {
        let group = registry.sub_registry_with_prefix("apiserver");
        let help =
            "[ALPHA] Counter for conversion webhook requests with success/failure and failure error type.";
        group.register("conversion_webhook_request_total", help, self.requests.clone());
        group.register(
            "conversion_webhook_duration_seconds",
            "[ALPHA] Conversion webhook request latency",
            self.latencies.clone(),
        );
        let help = "[ALPHA] CRD webhook conversion duration in seconds";
        group.register("crd_conversion_webhook_duration_seconds", help, self.ways.clone());
    }

    /// A call has ended; `failure` is upstream's name of what went wrong, `""` for nothing.
    pub fn called(&self, failure: &'static str, took: Duration) {
        let result = if failure.is_empty() { "success" } else { "failure" };
        let labels = Outcome { result, failure_type: failure };
        self.requests.get_or_create(&labels).inc();
        self.latencies.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Objects of a definition were converted, or were to be.
    pub fn converted(&self, definition: &str, from: &str, to: &str, succeeded: bool, took: Duration) {
        let way = Way {
            crd_name: definition.to_owned(),
            from_version: from.to_owned(),
            to_version: to.to_owned(),
            succeeded: if succeeded { "true" } else { "false" },
        };
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if seen.contains(&way) || seen.len() < MAX_DEFINITIONS {
            seen.insert(way.clone());
            drop(seen);
            self.ways.get_or_create(&way).observe(took.as_secs_f64());
        }
    }
}

//! `rest_client_*`: requests to the API server, with client-go's names and labels.
//!
//! Invariant: there is one host, the API server; methods and codes are few.
//!
//! Source: component-base's `metrics/prometheus/restclient`.

use http::{Method, StatusCode};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    host: String,
    method: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DurationLabels {
    host: String,
    verb: String,
}

/// The metrics. Clones share the numbers.
#[derive(Clone, Debug)]
pub(crate) struct RestClientMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram, fn() -> Histogram>,
}

impl Default for RestClientMetrics {
    fn default() -> Self {
        let seconds = || Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0]);
        RestClientMetrics {
            requests: Family::default(),
            durations: Family::new_with_constructor(seconds as fn() -> Histogram),
        }
    }
}

impl RestClientMetrics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let all = registry.sub_registry_with_prefix("rest_client");
        let help = "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.";
        all.register("requests_total", help, self.requests.clone());
        let help = "[ALPHA] Request latency in seconds. Broken down by verb, and host.";
        all.register("request_duration_seconds", help, self.durations.clone());
    }

    /// A request was answered; `None` if it could not be sent, or no answer came.
    pub fn answered(&self, host: &str, method: &Method, code: Option<StatusCode>, took: Duration) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.as_u16().to_string());
        let (host, method) = (host.to_owned(), method.to_string());
        self.durations
            .get_or_create(&DurationLabels { host: host.clone(), verb: method.clone() })
            .observe(took.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { code, host, method }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_code() {
        let metrics = RestClientMetrics::default();
        for code in [Some(StatusCode::OK), Some(StatusCode::OK), None] {
            metrics.answered("10.0.0.1:6443", &Method::GET, code, Duration::from_millis(250));
        }
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        let lines: Vec<&str> =
            page.lines().filter(|l| !l.starts_with('#') && !l.contains("_bucket")).collect();
        expect_test::expect![[r#"
            rest_client_request_duration_seconds_sum{host="10.0.0.1:6443",verb="GET"} 0.75
            rest_client_request_duration_seconds_count{host="10.0.0.1:6443",verb="GET"} 3
            rest_client_requests_total{code="200",host="10.0.0.1:6443",method="GET"} 2
            rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="GET"} 1"#]]
        .assert_eq(&lines.join("\n"));
    }
}

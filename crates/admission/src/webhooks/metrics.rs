//! Metrics of webhooks, with upstream's names (`admission/metrics` of k8s.io/apiserver).

use crate::{match_conditions::ConditionMetrics, measured::PluginMetrics};
use kaji_engine::{AdmissionSteps, Operation};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::{sync::Arc, time::Duration};

/// Codes above this are shown as this, so that webhooks cannot make up metrics.
const LARGEST_CODE: u16 = 600;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DurationLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    code: u16,
    rejected: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RejectionLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    error_type: &'static str,
    rejection_code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OpenLabels {
    name: String,
    r#type: &'static str,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// The webhook could not be called.
    Calling,
    /// What it said could not be done.
    Internal,
    /// The webhook said so.
    None,
}

/// The metrics of both plugins.
pub struct WebhookMetrics {
    duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
    requests: Family<RequestLabels, Counter>,
    rejections: Family<RejectionLabels, Counter>,
    open: Family<OpenLabels, Counter>,
    /// Of all plugins.
    pub(crate) plugins: Arc<PluginMetrics>,
    /// Of policies, too.
    pub(crate) conditions: Arc<ConditionMetrics>,
}

fn buckets() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0])
}

impl Default for WebhookMetrics {
    fn default() -> Self {
        WebhookMetrics {
            duration: Family::new_with_constructor(buckets as fn() -> Histogram),
            requests: Family::default(),
            rejections: Family::default(),
            open: Family::default(),
            plugins: Arc::default(),
            conditions: Arc::default(),
        }
    }
}

impl WebhookMetrics {
    /// Those of whole phases.
    pub fn steps(&self) -> Arc<dyn AdmissionSteps> {
        self.plugins.clone()
    }

    /// Puts them on a page.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_admission_webhook_admission_duration_seconds",
            "[STABLE] Admission webhook latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
            self.duration.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_request_total",
            "[ALPHA] Admission webhook request total, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify whether the request was rejected or not and an HTTP status code. Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
            self.requests.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_rejection_count",
            "[ALPHA] Admission webhook rejection count, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify an error type (calling_webhook_error or apiserver_internal_error if an error occurred; no_error otherwise) and optionally a non-zero rejection code if the webhook rejects the request with an HTTP status code (honored by the apiserver when the code is greater or equal to 400). Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
            self.rejections.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_fail_open_count",
            "[ALPHA] Admission webhook fail open count, identified by name and broken out for each admission type (validating or admit).",
            self.open.clone(),
        );
        self.conditions.register(registry);
        self.plugins.register(registry);
    }

    pub(super) fn called(
        &self,
        name: &str,
        step: &'static str,
        operation: Operation,
        elapsed: Duration,
        code: u16,
        rejected: bool,
    ) {
        let (name, operation) = (name.to_owned(), operation.as_str());
        let rejected = if rejected { "true" } else { "false" };
        let labels = DurationLabels { name: name.clone(), r#type: step, operation, rejected };
        self.duration.get_or_create(&labels).observe(elapsed.as_secs_f64());
        let code = code.min(LARGEST_CODE);
        self.requests.get_or_create(&RequestLabels { name, r#type: step, operation, code, rejected }).inc();
    }

    pub(super) fn rejected(
        &self,
        name: &str,
        step: &'static str,
        operation: Operation,
        why: Rejection,
        code: u16,
    ) {
        let error_type = match why {
            Rejection::Calling => "calling_webhook_error",
            Rejection::Internal => "apiserver_internal_error",
            Rejection::None => "no_error",
        };
        let labels = RejectionLabels {
            name: name.to_owned(),
            r#type: step,
            operation: operation.as_str(),
            error_type,
            rejection_code: code.min(LARGEST_CODE),
        };
        self.rejections.get_or_create(&labels).inc();
    }

    pub(super) fn failed_open(&self, name: &str, step: &'static str) {
        self.open.get_or_create(&OpenLabels { name: name.to_owned(), r#type: step }).inc();
    }
}

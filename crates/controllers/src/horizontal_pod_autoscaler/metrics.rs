//! What is measured of autoscalers: upstream's names, labels and texts.
//!
//! Source: upstream's `pkg/controller/podautoscaler/monitor`.

use super::proposal::{NoProposal, Proposal};
use kaji_runtime::{
    Buckets, ControllerMetrics, Metric, ObjectSnapshot, Projection, Sample,
    objects::{HorizontalPodAutoscaler, MetricSpec},
};
use std::{borrow::Cow, time::Duration};

/// Nothing was scaled, or nothing failed.
pub const NONE: &str = "none";
/// A failure that the autoscaler's spec is the cause of.
pub const SPEC: &str = "spec";
/// Any other failure.
pub const INTERNAL: &str = "internal";

const BUCKETS: Buckets = Buckets::exponential(0.001, 2.0, 15);

static RECONCILIATIONS: Metric = Metric::counter(
    "horizontal_pod_autoscaler_controller_reconciliations_total",
    "[BETA] Number of reconciliations of HPA controller. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen during a reconciliation, the first one to occur is reported in `error` label.",
    &["action", "error"],
);
static RECONCILIATION_DURATION: Metric = Metric::histogram(
    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
    "[BETA] The time(seconds) that the HPA controller takes to reconcile once. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen during a reconciliation, the first one to occur is reported in `error` label.",
    &["action", "error"],
    BUCKETS,
);
static METRIC_COMPUTATIONS: Metric = Metric::counter(
    "horizontal_pod_autoscaler_controller_metric_computation_total",
    "[BETA] Number of metric computations. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. The label 'metric_type' corresponds to HPA.spec.metrics[*].type",
    &["action", "error", "metric_type"],
);
static METRIC_COMPUTATION_DURATION: Metric = Metric::histogram(
    "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
    "[BETA] The time(seconds) that the HPA controller takes to calculate one metric. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. The label 'error' should be either 'spec', 'internal', or 'none'. The label 'metric_type' corresponds to HPA.spec.metrics[*].type",
    &["action", "error", "metric_type"],
    BUCKETS,
);
static NUMBER: Metric = Metric::gauge(
    "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers",
    "[ALPHA] Current number of controlled HPA objects.",
    &[],
);
static DESIRED_REPLICAS: Metric = Metric::gauge(
    "horizontal_pod_autoscaler_controller_desired_replicas",
    "[ALPHA] Current desired replica count for HPA objects.",
    &["namespace", "hpa_name"],
);
static STALE_SYNC_SKIPS: Metric = Metric::counter(
    "horizontal_pod_autoscaler_controller_stale_sync_skips_total",
    "[ALPHA] Total number of HPA syncs skipped due to a stale watch cache.",
    &["group", "resource"],
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 7] = [
    &RECONCILIATIONS,
    &RECONCILIATION_DURATION,
    &METRIC_COMPUTATIONS,
    &METRIC_COMPUTATION_DURATION,
    &NUMBER,
    &DESIRED_REPLICAS,
    &STALE_SYNC_SKIPS,
];

/// Where replicas go.
pub fn action(from: i64, to: i64) -> &'static str {
    match to.cmp(&from) {
        std::cmp::Ordering::Greater => "scale_up",
        std::cmp::Ordering::Less => "scale_down",
        std::cmp::Ordering::Equal => NONE,
    }
}

/// Counts a turn, and how long it took.
pub fn turn_taken(metrics: &ControllerMetrics, action: &'static str, error: &'static str, took: Duration) {
    metrics.observe(&RECONCILIATIONS.one([action.into(), error.into()]));
    metrics.observe(&RECONCILIATION_DURATION.sample([action.into(), error.into()], took.as_secs_f64()));
}

/// Counts a turn that was left out, since the informer does not show the status of the turn before it.
pub fn skipped(metrics: &ControllerMetrics) {
    let of = [HorizontalPodAutoscaler::GROUP.into(), HorizontalPodAutoscaler::RESOURCE.into()];
    metrics.observe(&STALE_SYNC_SKIPS.one(of));
}

/// Counts the computation of a metric, and how long it took.
pub fn computed(
    metrics: &ControllerMetrics,
    (spec, current): (&MetricSpec, i64),
    proposal: &Result<Proposal, NoProposal>,
    took: Duration,
) {
    let (action, error) = match proposal {
        Ok(proposal) => (action(current, proposal.replicas), NONE),
        Err(none) => (NONE, none.label()),
    };
    let labels = || [action.into(), error.into(), Cow::Owned(spec.kind.clone())];
    metrics.observe(&METRIC_COMPUTATIONS.one(labels()));
    metrics.observe(&METRIC_COMPUTATION_DURATION.sample(labels(), took.as_secs_f64()));
}

/// How many autoscalers there are, and how many replicas those want that had a turn.
pub fn gauges(all: &ObjectSnapshot<HorizontalPodAutoscaler>) -> Vec<Sample> {
    let desired = all.iter().filter(|hpa| !hpa.status.conditions.is_empty()).map(|hpa| {
        let meta = &hpa.metadata;
        let labels = [meta.namespace.to_string().into(), meta.name.to_string().into()];
        DESIRED_REPLICAS.sample(labels, hpa.status.desired_replicas as f64)
    });
    std::iter::once(NUMBER.count([], all.len())).chain(desired).collect()
}

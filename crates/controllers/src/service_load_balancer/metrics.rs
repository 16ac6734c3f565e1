//! What is measured of load balancers outside of the cluster: upstream's names, labels and texts.
//!
//! Source: upstream's `k8s.io/cloud-provider/controllers/service/metrics.go`. `service_controller_nodesync_latency_seconds` is not here:
//! there is no pass over all services, each is updated by itself.

use crate::shared::running::{RUNNING, running};
use kaji_runtime::{Buckets, Metric, Moment, Plan, Sample};
use std::time::Duration;

static SYNCS: Metric = Metric::counter(
    "service_controller_loadbalancer_sync_total",
    "[ALPHA] A metric counting the amount of times any load balancer has been configured, as an effect of service/node changes on the cluster",
    &[],
);
static SYNC_ERRORS: Metric = Metric::counter(
    "service_controller_nodesync_error_total",
    "[ALPHA] A metric counting the amount of times any load balancer has been configured and errored, as an effect of node changes on the cluster",
    &[],
);
static UPDATE_LATENCY: Metric = Metric::histogram(
    "service_controller_update_loadbalancer_host_latency_seconds",
    "[ALPHA] A metric measuring the latency for updating each load balancer hosts.",
    &[],
    Buckets::exponential(1.0, 2.0, 15),
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 4] = [&SYNCS, &SYNC_ERRORS, &UPDATE_LATENCY, &RUNNING];

/// That the controller runs.
pub fn runs() -> Sample {
    running("service")
}

/// Counts that a load balancer was given other nodes. As upstream, no other call counts.
pub fn updated(plan: Plan, took: Duration, failed: bool) -> Plan {
    let plan = plan
        .observe(Moment::Decided, SYNCS.one([]))
        .observe(Moment::Decided, UPDATE_LATENCY.sample([], took.as_secs_f64()));
    if failed { plan.observe(Moment::Decided, SYNC_ERRORS.one([])) } else { plan }
}

//! What is measured of the ranges of nodes: upstream's names, labels and texts.
//!
//! Source: upstream's `pkg/controller/nodeipam/ipam/cidrset/metrics.go`, and `component-base/metrics/prometheus/controllers`.

use super::cidr_set::{Assigned, Pool, RangeNumbers};
use crate::shared::running::{RUNNING, running};
use kaji_runtime::{Buckets, Metric, Moment, Plan, Sample};

const OF_RANGE: &[&str] = &["clusterCIDR"];

static ALLOCATIONS: Metric = Metric::counter(
    "node_ipam_controller_cidrset_cidrs_allocations_total",
    "[ALPHA] Counter measuring total number of CIDR allocations.",
    OF_RANGE,
);
static RELEASES: Metric = Metric::counter(
    "node_ipam_controller_cidrset_cidrs_releases_total",
    "[ALPHA] Counter measuring total number of CIDR releases.",
    OF_RANGE,
);
// Upstream's spelling.
static PIECES: Metric = Metric::gauge(
    "node_ipam_controller_cirdset_max_cidrs",
    "[ALPHA] Maximum number of CIDRs that can be allocated.",
    OF_RANGE,
);
static USAGE: Metric = Metric::gauge(
    "node_ipam_controller_cidrset_usage_cidrs",
    "[ALPHA] Gauge measuring percentage of allocated CIDRs.",
    OF_RANGE,
);
// Upstream's text of help, which is another metric's.
static TRIES: Metric = Metric::histogram(
    "node_ipam_controller_cidrset_allocation_tries_per_request",
    "[ALPHA] Number of endpoints added on each Service sync",
    OF_RANGE,
    Buckets::exponential(1.0, 5.0, 5),
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 6] = [&ALLOCATIONS, &RELEASES, &PIECES, &USAGE, &TRIES, &RUNNING];

/// That the controller runs, and the numbers of the cluster's ranges. The counters are among them: nodes that come with ranges make
/// no plan.
pub fn of_ranges(pool: &Pool) -> Vec<Sample> {
    let of_range = |range: &RangeNumbers| {
        let label = || [range.cluster.clone().into()];
        [
            PIECES.sample(label(), range.pieces as f64),
            USAGE.sample(label(), range.used as f64 / range.pieces as f64),
            ALLOCATIONS.sample(label(), range.allocations as f64),
            RELEASES.sample(label(), range.releases as f64),
        ]
    };
    let ranges = pool.numbers();
    ranges.iter().flat_map(of_range).chain([running("nodeipam")]).collect()
}

/// Measures how long the search for a node's ranges was.
pub fn assigned(plan: Plan, assigned: &Assigned) -> Plan {
    assigned.tries.iter().fold(plan, |plan, (range, tries)| {
        plan.observe(Moment::Decided, TRIES.sample([range.clone().into()], *tries as f64))
    })
}

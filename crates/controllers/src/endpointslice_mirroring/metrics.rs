//! What is measured of mirrored endpoints: upstream's names, labels and texts.
//!
//! Source: upstream's `pkg/controller/endpointslicemirroring/metrics`. The gauges are read from the slices that there are.

use super::{Group, MANAGER};
use crate::shared::endpoints::{count_changes, managed_by};
use kaji_runtime::{
    Buckets, Metric, Moment, ObjectSnapshot, Plan, Sample,
    objects::{Endpoint, EndpointSlice},
};
use std::{collections::BTreeMap, sync::Arc};

const NUMBERS: Buckets = Buckets::exponential(2.0, 2.0, 15);

static ADDED: Metric = Metric::histogram(
    "endpoint_slice_mirroring_controller_endpoints_added_per_sync",
    "[ALPHA] Number of endpoints added on each Endpoints sync",
    &[],
    NUMBERS,
);
static UPDATED: Metric = Metric::histogram(
    "endpoint_slice_mirroring_controller_endpoints_updated_per_sync",
    "[ALPHA] Number of endpoints updated on each Endpoints sync",
    &[],
    NUMBERS,
);
static REMOVED: Metric = Metric::histogram(
    "endpoint_slice_mirroring_controller_endpoints_removed_per_sync",
    "[ALPHA] Number of endpoints removed on each Endpoints sync",
    &[],
    NUMBERS,
);
static SKIPPED: Metric = Metric::histogram(
    "endpoint_slice_mirroring_controller_addresses_skipped_per_sync",
    "[ALPHA] Number of addresses skipped on each Endpoints sync due to being invalid or exceeding MaxEndpointsPerSubset",
    &[],
    NUMBERS,
);
static DURATION: Metric = Metric::histogram(
    "endpoint_slice_mirroring_controller_endpoints_sync_duration",
    "[ALPHA] Duration of syncEndpoints() in seconds",
    &[],
    Buckets::exponential(0.001, 2.0, 15),
);
static ENDPOINTS: Metric = Metric::gauge(
    "endpoint_slice_mirroring_controller_endpoints_desired",
    "[ALPHA] Number of endpoints desired",
    &[],
);
static SLICES: Metric = Metric::gauge(
    "endpoint_slice_mirroring_controller_num_endpoint_slices",
    "[ALPHA] Number of EndpointSlices",
    &[],
);
static DESIRED: Metric = Metric::gauge(
    "endpoint_slice_mirroring_controller_desired_endpoint_slices",
    "[ALPHA] Number of EndpointSlices that would exist with perfect endpoint allocation",
    &[],
);
static CHANGES: Metric = Metric::counter(
    "endpoint_slice_mirroring_controller_changes",
    "[ALPHA] Number of EndpointSlice changes",
    &["operation"],
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 9] =
    [&ADDED, &UPDATED, &REMOVED, &SKIPPED, &DURATION, &ENDPOINTS, &SLICES, &DESIRED, &CHANGES];

/// What a sync changes of endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    added: usize,
    updated: usize,
    removed: usize,
    /// Addresses that are none, or that are beyond the limit.
    pub skipped: usize,
}

impl Totals {
    /// Compares the endpoints of each group with those of its first slice.
    pub fn of(
        wanted: &BTreeMap<Group, Vec<Endpoint>>,
        present: &BTreeMap<Group, Vec<&Arc<EndpointSlice>>>,
        skipped: usize,
    ) -> Totals {
        let mut totals = Totals { skipped, ..Totals::default() };
        for (group, members) in wanted {
            let slice = present.get(group).and_then(|slices| slices.first());
            let known: BTreeMap<_, _> =
                slice.iter().flat_map(|slice| &slice.endpoints).map(|e| (&e.addresses, e)).collect();
            for endpoint in members {
                match known.get(&endpoint.addresses) {
                    None => totals.added += 1,
                    Some(old) => totals.updated += usize::from(*old != endpoint),
                }
            }
            let kept = members.iter().filter(|endpoint| known.contains_key(&endpoint.addresses)).count();
            totals.removed += known.len().saturating_sub(kept);
        }
        totals
    }
}

/// Counts the changes of a sync.
pub fn mirrored(plan: Plan, totals: Totals) -> Plan {
    let mut plan = count_changes(plan, &CHANGES);
    let Totals { added, updated, removed, skipped } = totals;
    for (metric, count) in [(&ADDED, added), (&UPDATED, updated), (&REMOVED, removed), (&SKIPPED, skipped)] {
        plan = plan.observe(Moment::Decided, metric.count([], count));
    }
    plan
}

/// Measures a sync.
pub fn synced(plan: Plan) -> Plan {
    plan.observe_elapsed(Moment::Succeeded, DURATION.sample([], 0.0))
        .observe_elapsed(Moment::Failed, DURATION.sample([], 0.0))
}

/// The slices that there are. One slice has what is desired of its group, so that no other number of them would do.
pub fn gauges(slices: &ObjectSnapshot<EndpointSlice>) -> Vec<Sample> {
    let own = || slices.iter().filter(|slice| managed_by(&slice.metadata, MANAGER));
    let count = own().count();
    let endpoints = own().map(|slice| slice.endpoints.len()).sum();
    vec![ENDPOINTS.count([], endpoints), SLICES.count([], count), DESIRED.count([], count)]
}

//! What is measured of endpoint slices: upstream's names, labels and texts.
//!
//! Invariant: what is remembered of services is for the gauges alone. A restarted process knows it again once it has looked at all services, as
//! upstream's does.
//!
//! Source: upstream's `staging/src/k8s.io/endpointslice/metrics`. No sync is `stale` here, since a worker waits for its own writes;
//! endpoints of both address families count, and a sync with both is one of `endpointslices_changed_per_sync`.

use super::{hints::Preference, pack::Packed};
use crate::shared::endpoints::count_changes;
use kaji_runtime::{
    Buckets, Key, Metric, Moment, Plan, Sample,
    objects::{EndpointPort, Service},
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

const NUMBERS: Buckets = Buckets::exponential(2.0, 2.0, 15);

static ADDED: Metric = Metric::histogram(
    "endpoint_slice_controller_endpoints_added_per_sync",
    "[BETA] Number of endpoints added on each Service sync",
    &[],
    NUMBERS,
);
static REMOVED: Metric = Metric::histogram(
    "endpoint_slice_controller_endpoints_removed_per_sync",
    "[BETA] Number of endpoints removed on each Service sync",
    &[],
    NUMBERS,
);
static ENDPOINTS: Metric =
    Metric::gauge("endpoint_slice_controller_endpoints_desired", "[BETA] Number of endpoints desired", &[]);
static SLICES: Metric =
    Metric::gauge("endpoint_slice_controller_num_endpoint_slices", "[BETA] Number of EndpointSlices", &[]);
static DESIRED: Metric = Metric::gauge(
    "endpoint_slice_controller_desired_endpoint_slices",
    "[BETA] Number of EndpointSlices that would exist with perfect endpoint allocation",
    &[],
);
static CHANGES: Metric = Metric::counter(
    "endpoint_slice_controller_changes",
    "[ALPHA] Number of EndpointSlice changes",
    &["operation"],
);
static CHANGED: Metric = Metric::histogram(
    "endpoint_slice_controller_endpointslices_changed_per_sync",
    "[ALPHA] Number of EndpointSlices changed on each Service sync",
    &["topology", "traffic_distribution"],
    Buckets::DEFAULT,
);
static SYNCS: Metric =
    Metric::counter("endpoint_slice_controller_syncs", "[ALPHA] Number of EndpointSlice syncs", &["result"]);
static DISTRIBUTIONS: Metric = Metric::gauge(
    "endpoint_slice_controller_services_count_by_traffic_distribution",
    "[BETA] Number of Services using some specific trafficDistribution",
    &["traffic_distribution"],
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 9] =
    [&ADDED, &REMOVED, &ENDPOINTS, &SLICES, &DESIRED, &CHANGES, &CHANGED, &SYNCS, &DISTRIBUTIONS];

/// The endpoints and slices of a service's address family, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Endpoints that there are to be.
    endpoints: usize,
    /// Slices that there are to be.
    slices: usize,
    /// Slices that would do.
    desired: usize,
    /// Endpoints that no slice had.
    added: usize,
    /// Endpoints of slices that stay, which are no more.
    removed: usize,
}

impl Tally {
    /// Of the slices of an address family, of which each has at most `limit` endpoints. Without any there is a placeholder.
    pub fn of(packed: &[(Vec<EndpointPort>, Packed<'_>)], limit: usize) -> Tally {
        let mut by_ports = BTreeMap::<&[EndpointPort], usize>::new();
        let mut tally = Tally::default();
        for (ports, slice) in packed {
            *by_ports.entry(ports).or_default() += slice.members.len();
            tally.endpoints += slice.members.len();
            tally.added += slice.members.len() - slice.kept;
            tally.removed += slice.slice.map_or(0, |slice| slice.endpoints.len()) - slice.kept;
            tally.slices += usize::from(slice.slice.is_none() || !slice.vanishes());
        }
        tally.slices = tally.slices.max(1);
        tally.desired = by_ports.values().map(|count| count.div_ceil(limit.max(1))).sum::<usize>().max(1);
        tally
    }
}

/// What is remembered of a service.
#[derive(Default)]
struct Size {
    tally: Tally,
    distribution: Option<String>,
}

/// What was found of each service the last time.
#[derive(Default)]
pub struct Sizes(Mutex<HashMap<Key, Size>>);

impl Sizes {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Size>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the families of a service.
    pub fn learn(&self, service: &Service, families: &[Tally]) {
        let mut tally = Tally::default();
        for family in families {
            tally.endpoints += family.endpoints;
            tally.slices += family.slices;
            tally.desired += family.desired;
        }
        let distribution = distribution(service).map(str::to_owned);
        self.lock().insert(service.metadata.key(), Size { tally, distribution });
    }

    /// Forgets a service that is gone, or has no endpoints of this controller's any more.
    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// The gauges.
    pub fn gauges(&self) -> Vec<Sample> {
        let sizes = self.lock();
        let sum = |of: fn(&Tally) -> usize| sizes.values().map(|size| of(&size.tally)).sum();
        let mut samples = vec![
            ENDPOINTS.count([], sum(|tally| tally.endpoints)),
            SLICES.count([], sum(|tally| tally.slices)),
            DESIRED.count([], sum(|tally| tally.desired)),
        ];
        let mut by_distribution = BTreeMap::<&str, usize>::new();
        for distribution in sizes.values().filter_map(|size| size.distribution.as_deref()) {
            *by_distribution.entry(distribution).or_default() += 1;
        }
        let counted = by_distribution.into_iter();
        samples.extend(counted.map(|(name, count)| DISTRIBUTIONS.count([name.to_owned().into()], count)));
        samples
    }
}

/// The traffic distribution that a service's hints follow.
fn distribution(service: &Service) -> Option<&str> {
    let follows = matches!(Preference::of(service), Preference::Zone | Preference::Node);
    service.spec.traffic_distribution.as_deref().filter(|_| follows)
}

/// Counts a sync.
pub fn counted(plan: Plan) -> Plan {
    plan.observe(Moment::Succeeded, SYNCS.one(["success".into()]))
        .observe(Moment::Failed, SYNCS.one(["error".into()]))
}

/// Counts a sync with its changes.
pub fn synced(plan: Plan, service: &Service, families: &[Tally]) -> Plan {
    let topology = if Preference::of(service) == Preference::Auto { "Auto" } else { "Disabled" };
    let distribution = distribution(service).unwrap_or_default().to_owned();
    let changed = CHANGED.count([topology.into(), distribution.into()], plan.writes().count());
    let mut plan = count_changes(plan, &CHANGES);
    for family in families {
        plan = plan
            .observe(Moment::Decided, ADDED.count([], family.added))
            .observe(Moment::Decided, REMOVED.count([], family.removed));
    }
    counted(plan.observe(Moment::Succeeded, changed))
}

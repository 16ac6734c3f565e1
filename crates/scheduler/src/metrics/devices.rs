//! Metrics of dynamic resource allocation, with upstream's names: claims that were made for extended resources, and devices
//! that were waited for before a pod was bound.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StatusLabels {
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DriverLabels {
    profile: String,
    driver: String,
    status: &'static str,
}

/// How waiting for devices ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingConditionsResult {
    /// All are ready.
    Success,
    /// A driver says that one cannot be.
    Failure,
    /// It took too long.
    Timeout,
    /// Something else failed.
    Error,
}

impl BindingConditionsResult {
    fn name(self) -> &'static str {
        match self {
            BindingConditionsResult::Success => "success",
            BindingConditionsResult::Failure => "failure",
            BindingConditionsResult::Timeout => "timeout",
            BindingConditionsResult::Error => "error",
        }
    }
}

/// The metrics. Clones share the numbers.
#[derive(Clone)]
pub struct DeviceMetrics {
    created: Family<StatusLabels, Counter>,
    allocations: Family<DriverLabels, Counter>,
    waits: Family<DriverLabels, Histogram, fn() -> Histogram>,
}

impl Default for DeviceMetrics {
    fn default() -> Self {
        // Upstream's, from 0.1 s on.
        let seconds = || Histogram::new((0..14).map(|power| 0.1 * f64::from(1_u32 << power)));
        DeviceMetrics {
            created: Family::default(),
            allocations: Family::default(),
            waits: Family::new_with_constructor(seconds as fn() -> Histogram),
        }
    }
}

impl DeviceMetrics {
    pub(super) fn register(&self, all: &mut Registry) {
        all.register(
            "resourceclaim_creates_total",
            "[ALPHA] Number of ResourceClaims creation requests within scheduler",
            self.created.clone(),
        );
        all.register(
            "dra_bindingconditions_allocations_total",
            "[ALPHA] Number of allocations using devices with BindingConditions, counted per driver per scheduling attempt",
            self.allocations.clone(),
        );
        all.register(
            "dra_bindingconditions_wait_duration_seconds",
            "[ALPHA] Time in seconds spent waiting for BindingConditions to be satisfied during PreBind.",
            self.waits.clone(),
        );
    }

    /// A claim for extended resources was created, or could not be.
    pub fn created(&self, done: bool) {
        let status = if done { "success" } else { "failure" };
        self.created.get_or_create(&StatusLabels { status }).inc();
    }

    /// A device of a driver was waited for together with others, of which one had conditions at least.
    pub fn waited(&self, profile: &str, driver: &str, result: BindingConditionsResult, took: Duration) {
        self.waits.get_or_create(&Self::labels(profile, driver, result)).observe(took.as_secs_f64());
    }

    /// A device with conditions was allocated.
    pub fn allocated(&self, profile: &str, driver: &str, result: BindingConditionsResult) {
        self.allocations.get_or_create(&Self::labels(profile, driver, result)).inc();
    }

    fn labels(profile: &str, driver: &str, result: BindingConditionsResult) -> DriverLabels {
        DriverLabels { profile: profile.to_owned(), driver: driver.to_owned(), status: result.name() }
    }
}

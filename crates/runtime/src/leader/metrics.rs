//! `leader_election_master_status`, of every election of a process.
//!
//! Source: component-base's `metrics/prometheus/clientgo/leaderelection`.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LeaseLabels {
    name: String,
}

/// Which leases this process holds. Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct LeaseMetrics(Family<LeaseLabels, Gauge>);

impl LeaseMetrics {
    /// Adds the metric to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let help = "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.";
        registry.register("leader_election_master_status", help, self.0.clone());
    }

    /// This process holds the lease, or does not.
    pub(super) fn set(&self, lease: &str, held: bool) {
        self.0.get_or_create(&LeaseLabels { name: lease.to_owned() }).set(i64::from(held));
    }
}

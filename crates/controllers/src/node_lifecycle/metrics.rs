//! What is measured of the health of nodes: upstream's names, labels and texts.
//!
//! Source: upstream's `pkg/controller/nodelifecycle/metrics.go`. `update_node_health_duration_seconds` is not here: all nodes are looked at at
//! once, and what is written of them is written side by side.

use super::{
    monitor::EXCLUDED,
    zones::{ZoneKey, zone_of},
};
use kaji_runtime::{
    Buckets, Metric, Moment, ObjectSnapshot, Plan, Sample, client::Target, metrics::Label, objects::Node,
};
use std::{collections::BTreeMap, sync::Arc};

static HEALTH: Metric = Metric::gauge(
    "node_collector_zone_health",
    "[ALPHA] Gauge measuring percentage of healthy nodes per zone.",
    &["zone"],
);
static SIZE: Metric = Metric::gauge(
    "node_collector_zone_size",
    "[ALPHA] Gauge measuring number of registered Nodes per zones.",
    &["zone"],
);
static UNHEALTHY: Metric = Metric::gauge(
    "node_collector_unhealthy_nodes_in_zone",
    "[ALPHA] Gauge measuring number of not Ready Nodes per zones.",
    &["zone"],
);
static EVICTIONS: Metric = Metric::counter(
    "node_collector_evictions_total",
    "[STABLE] Number of Node evictions that happened since current instance of NodeController started.",
    &["zone"],
);
static DURATION: Metric = Metric::histogram(
    "node_collector_update_all_nodes_health_duration_seconds",
    "[ALPHA] Duration in seconds for NodeController to update the health of all nodes.",
    &[],
    Buckets::exponential(0.01, 4.0, 8),
);

/// The metrics of the monitor.
pub static METRICS: [&Metric; 5] = [&HEALTH, &SIZE, &UNHEALTHY, &EVICTIONS, &DURATION];

/// A zone as upstream writes it: region and zone, with a null character between them.
fn label((region, zone): &ZoneKey) -> Label {
    match region.is_empty() && zone.is_empty() {
        true => "".into(),
        false => format!("{region}:\0:{zone}").into(),
    }
}

/// The zones as their nodes are.
pub fn gauges(nodes: &ObjectSnapshot<Node>) -> Vec<Sample> {
    let mut zones = BTreeMap::<ZoneKey, (usize, usize)>::new();
    for node in nodes.iter().filter(|node| !node.metadata.labels.contains_key(EXCLUDED)) {
        let (all, unready) = zones.entry(zone_of(node)).or_default();
        *all += 1;
        *unready += usize::from(!node.ready());
    }
    let of_zone = |(zone, (all, unready)): (&ZoneKey, &(usize, usize))| {
        let health = (100 * (all - unready)) as f64 / *all as f64;
        [
            HEALTH.sample([label(zone)], health),
            SIZE.count([label(zone)], *all),
            UNHEALTHY.count([label(zone)], *unready),
        ]
    };
    zones.iter().flat_map(of_zone).collect()
}

/// Measures a look, and counts the nodes that get taints which evict.
pub fn looked<'a>(mut plan: Plan, zones: impl Iterator<Item = &'a ZoneKey>, evicted: &[&Arc<Node>]) -> Plan {
    for zone in zones {
        // A zone is on the page before anything of it is evicted.
        plan = plan.observe(Moment::Decided, EVICTIONS.sample([label(zone)], 0.0));
    }
    for node in evicted {
        let tainted = Moment::Written(Target::of::<Node>("", &node.metadata.name));
        plan = plan.observe(tainted, EVICTIONS.one([label(&zone_of(node))]));
    }
    plan.observe_elapsed(Moment::Succeeded, DURATION.sample([], 0.0))
        .observe_elapsed(Moment::Failed, DURATION.sample([], 0.0))
}

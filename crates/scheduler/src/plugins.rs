//! The plugins of the default profile: one file each, and one line in [`DEFAULT_PROFILE`].
//!
//! Invariants:
//! - Plugins are pure: they read a pod and a node of the cache.
//! - A pod is filtered by the plugins in the table's order; the reasons of the first one that rejects a node are reported.

mod node_affinity;
mod node_ports;
mod node_resources_balanced_allocation;
mod node_resources_fit;
mod node_unschedulable;
mod taint_toleration;

pub use taint_toleration::tolerates;

use crate::cache::{NodeInfo, PodInfo};

/// The reasons why a node cannot run a pod; none when it can.
pub type Filter = fn(&PodInfo, &NodeInfo) -> Vec<String>;
/// How well a node fits a pod, from 0 to 100.
pub type Score = fn(&PodInfo, &NodeInfo) -> i64;

/// A plugin's extension points.
#[derive(Clone, Copy)]
pub struct Plugin {
    /// Upstream's name of the plugin.
    pub name: &'static str,
    /// Rejects nodes.
    pub filter: Option<Filter>,
    /// Scores nodes.
    pub score: Option<Score>,
    /// The factor of its score in a node's total.
    pub weight: i64,
}

/// The plugins of the default profile, in the order in which they filter.
pub const DEFAULT_PROFILE: &[Plugin] = &[
    node_unschedulable::PLUGIN,
    taint_toleration::PLUGIN,
    node_affinity::PLUGIN,
    node_ports::PLUGIN,
    node_resources_fit::PLUGIN,
    node_resources_balanced_allocation::PLUGIN,
];

/// The reasons of the first plugin that rejects a node; none when the pod fits.
pub fn filter(pod: &PodInfo, node: &NodeInfo) -> Vec<String> {
    let filters = DEFAULT_PROFILE.iter().filter_map(|plugin| plugin.filter);
    filters.map(|filter| filter(pod, node)).find(|reasons| !reasons.is_empty()).unwrap_or_default()
}

/// The weighted sum of all plugins' scores.
pub fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let scores = DEFAULT_PROFILE.iter().filter_map(|plugin| Some(plugin.weight * plugin.score?(pod, node)));
    scores.sum()
}

/// The share of a node's capacity that is requested once the pod runs there, in percent.
fn requested_percent(capacity: i64, requested: i64, request: i64) -> i64 {
    if capacity <= 0 {
        return 100;
    }
    (requested.saturating_add(request).saturating_mul(100) / capacity).clamp(0, 100)
}

/// The requested shares of CPU and memory. Pods without requests count with a small one, so that they spread (upstream's
/// non-zero requests).
fn cpu_and_memory_percent(pod: &PodInfo, info: &NodeInfo) -> (i64, i64) {
    let cpu =
        requested_percent(info.allocatable.cpu, info.used.cpu + info.used.pods, pod.request.cpu.max(100));
    let memory =
        requested_percent(info.allocatable.memory, info.used.memory, pod.request.memory.max(200 << 20));
    (cpu, memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn plugin_names_are_unique_and_every_plugin_extends_something() {
        let names: HashSet<&str> = DEFAULT_PROFILE.iter().map(|p| p.name).collect();
        assert_eq!(names.len(), DEFAULT_PROFILE.len());
        assert!(DEFAULT_PROFILE.iter().all(|p| p.filter.is_some() || p.score.is_some()));
        assert!(DEFAULT_PROFILE.iter().all(|p| p.score.is_some() == (p.weight > 0)));
    }
}

//! NodeResourcesFit: rejects nodes without enough allocatable resources, and prefers those with the least requested.

use super::{Plugin, cpu_and_memory_percent, requested_percent};
use crate::cache::{NodeInfo, PodInfo};

/// The plugin's line in the table.
pub const PLUGIN: Plugin =
    Plugin { name: "NodeResourcesFit", filter: Some(filter), score: Some(score), weight: 1 };

fn filter(pod: &PodInfo, info: &NodeInfo) -> Vec<String> {
    info.allocatable.missing(&info.used, &pod.request)
}

fn score(pod: &PodInfo, info: &NodeInfo) -> i64 {
    let (cpu, memory) = cpu_and_memory_percent(pod, info);
    let pods = requested_percent(info.allocatable.pods, info.used.pods, 1);
    100 - (cpu + memory + pods) / 3
}

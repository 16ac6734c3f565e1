//! NodeResourcesBalancedAllocation: prefers nodes of which CPU and memory would be requested to the same share.

use super::{Plugin, cpu_and_memory_percent};
use crate::cache::{NodeInfo, PodInfo};

/// The plugin's line in the table.
pub const PLUGIN: Plugin =
    Plugin { name: "NodeResourcesBalancedAllocation", filter: None, score: Some(score), weight: 1 };

fn score(pod: &PodInfo, info: &NodeInfo) -> i64 {
    let (cpu, memory) = cpu_and_memory_percent(pod, info);
    100 - (cpu - memory).abs() / 2
}

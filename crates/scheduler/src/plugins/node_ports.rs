//! NodePorts: rejects nodes on which a host port of the pod is in use.

use super::Plugin;
use crate::cache::{NodeInfo, PodInfo};

/// The plugin's line in the table.
pub const PLUGIN: Plugin = Plugin { name: "NodePorts", filter: Some(filter), score: None, weight: 0 };

fn filter(pod: &PodInfo, info: &NodeInfo) -> Vec<String> {
    if info.port_conflict(&pod.ports) {
        return vec!["node(s) didn't have free ports for the requested pod ports".into()];
    }
    vec![]
}

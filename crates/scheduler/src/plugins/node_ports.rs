//! NodePorts: rejects nodes on which a host port of the pod is in use. Ports of sidecars count.

use super::{Entry, ensure};
use crate::{
    framework::{
        Actions, Change, Cycle, CycleState, EventInterest, Filter, Hint, Outcome, Plugin, Points, PreFilter,
        PreFiltered, Resource, Status,
    },
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "NodePorts",
    weight: 0,
    arguments: None,
    build: |_| {
        let plugin = Arc::new(NodePorts);
        Points::of(&plugin).pre_filter(&plugin).filter(&plugin)
    },
};

struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn looks_at_node_alone(&self) -> bool {
        true
    }

    fn events(&self) -> Vec<EventInterest> {
        let frees = |pod: &PodInfo, event: &crate::framework::Event| match &event.change {
            Change::Pod(Some(gone), None) => {
                let gone = PodInfo::new(gone.clone());
                let free =
                    gone.ports.iter().any(|port| pod.ports.iter().any(|wanted| wanted.conflicts(port)));
                if free { Hint::Queue } else { Hint::Skip }
            }
            _ => Hint::Queue,
        };
        vec![
            EventInterest::hinted(Resource::AssignedPod, Actions::DELETE, frees),
            EventInterest::any(Resource::Node, Actions::ADD),
        ]
    }
}

impl PreFilter for NodePorts {
    fn pre_filter(&self, cycle: &Cycle<'_>, _state: &mut CycleState) -> Outcome<PreFiltered> {
        Ok(if cycle.pod.ports.is_empty() { PreFiltered::Skip } else { PreFiltered::AllNodes })
    }
}

impl Filter for NodePorts {
    fn filter(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> Outcome {
        ensure(!node.port_conflict(&cycle.pod.ports), || {
            Status::unschedulable("node(s) didn't have free ports for the requested pod ports")
        })
    }
}

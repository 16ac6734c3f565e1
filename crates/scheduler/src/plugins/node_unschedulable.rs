//! NodeUnschedulable: rejects cordoned nodes, unless the pod tolerates their taint.

use super::{Entry, ensure, tolerates, unschedulable_taint};
use crate::{
    framework::{
        Actions, Change, Cycle, CycleState, Event, EventInterest, Filter, Hint, Outcome, Plugin, Points,
        Resource, Status,
    },
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "NodeUnschedulable",
    weight: 0,
    arguments: None,
    build: |_| {
        let plugin = Arc::new(NodeUnschedulable);
        Points::of(&plugin).filter(&plugin)
    },
};

struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn looks_at_node_alone(&self) -> bool {
        true
    }

    fn events(&self) -> Vec<EventInterest> {
        let schedulable = |_: &PodInfo, event: &Event| match &event.change {
            Change::Node(_, Some(node)) if node.spec.unschedulable => Hint::Skip,
            Change::Node(Some(old), Some(_)) if !old.spec.unschedulable => Hint::Skip,
            _ => Hint::Queue,
        };
        vec![
            EventInterest::hinted(Resource::Node, Actions::ADD | Actions::NODE_TAINTS, schedulable),
            EventInterest::any(Resource::UnscheduledPod, Actions::POD_TOLERATIONS),
        ]
    }
}

impl Filter for NodeUnschedulable {
    fn filter(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> Outcome {
        let tolerated = || tolerates(&cycle.pod.pod.spec.tolerations, &unschedulable_taint());
        ensure(!node.node.spec.unschedulable || tolerated(), || {
            Status::unresolvable("node(s) were unschedulable")
        })
    }
}

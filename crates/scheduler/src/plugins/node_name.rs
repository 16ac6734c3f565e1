//! NodeName: a pod that names its node fits no other.

use super::{Entry, ensure};
use crate::{
    framework::{
        Actions, Cycle, CycleState, EventInterest, Filter, Outcome, Plugin, Points, Resource, Status,
    },
    snapshot::NodeInfo,
};
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "NodeName",
    weight: 0,
    arguments: None,
    build: |_| {
        let plugin = Arc::new(NodeName);
        Points::of(&plugin).filter(&plugin)
    },
};

struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn looks_at_node_alone(&self) -> bool {
        true
    }

    fn events(&self) -> Vec<EventInterest> {
        vec![EventInterest::any(Resource::Node, Actions::ADD)]
    }
}

impl Filter for NodeName {
    fn filter(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> Outcome {
        let wanted = cycle.pod.pod.spec.node_name.as_str();
        ensure(wanted.is_empty() || wanted == node.name(), || {
            Status::unresolvable("node(s) didn't match the requested node name")
        })
    }
}

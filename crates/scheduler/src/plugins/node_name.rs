//! NodeName: a pod that names its node fits no other.

use super::{Entry, ensure};
use crate::{
    framework::{
        Actions, Cycle, CycleState, EventInterest, Filter, Outcome, Plugin, Points, PreFilter, PreFiltered,
        Resource, Status,
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
        Points::of(&plugin).pre_filter(&plugin).filter(&plugin)
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

impl PreFilter for NodeName {
    fn pre_filter(&self, cycle: &Cycle<'_>, _state: &mut CycleState) -> Outcome<PreFiltered> {
        let wanted = cycle.pod.pod.spec.node_name.as_str();
        Ok(match wanted.is_empty() {
            true => PreFiltered::AllNodes,
            false => PreFiltered::Nodes([wanted.to_owned()].into()),
        })
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

#[cfg(test)]
mod tests {
    use crate::testing::Cluster;
    use serde_json::json;

    #[test]
    fn a_pod_that_names_its_node_is_compared_with_that_node_alone() {
        let mut cluster =
            Cluster::new(&[json!({"name": "a"}), json!({"name": "b", "allocatable": {"cpu": "1"}})]);
        let pod = |cpu: &str| {
            json!({"name": "p", "spec": {"nodeName": "b", "containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
        };
        let lines = [cluster.show(&pod("1")), cluster.show(&pod("2"))];
        expect_test::expect![[r#"
            -> b
            0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeName]. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."#]]
        .assert_eq(&lines.join("\n"));
    }
}

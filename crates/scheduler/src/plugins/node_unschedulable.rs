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
        let tolerated = |_: &PodInfo, event: &Event| match &event.change {
            Change::Pod(_, Some(pod)) if !tolerates(&pod.spec.tolerations, &unschedulable_taint()) => {
                Hint::Skip
            }
            _ => Hint::Queue,
        };
        vec![
            EventInterest::hinted(Resource::Node, Actions::ADD | Actions::NODE_TAINTS, schedulable),
            EventInterest::hinted(Resource::UnscheduledPod, Actions::POD_TOLERATIONS, tolerated),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;
    use serde_json::json;

    #[test]
    fn a_toleration_wakes_its_pod_if_it_is_that_of_cordoned_nodes() {
        let tolerating = |key: &str| {
            pod(&json!({"name": "p", "spec": {"tolerations": [{"key": key, "operator": "Exists"}]}}))
        };
        let wakes = |key: &str| {
            let (old, new) = (pod(&json!({"name": "p"})), tolerating(key));
            let event = Event::of_unscheduled_pod(Some(old.pod.clone()), Some(new.pod.clone())).unwrap();
            let mut interests = NodeUnschedulable.events().into_iter().filter(|i| i.concerns(&event));
            interests.any(|interest| interest.hint(&new, &event) == Hint::Queue)
        };
        assert!(wakes("node.kubernetes.io/unschedulable") && !wakes("other"));
    }
}

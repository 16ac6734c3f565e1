//! NodeDeclaredFeatures: rejects nodes that do not declare the features which a pod needs (KEP-5328). Source: kubernetes
//! `pkg/scheduler/framework/plugins/nodedeclaredfeatures`.
//!
//! Invariant: what a pod needs is in fields that never change after its creation, so no update of a pod makes it schedulable.

use super::{Entry, ensure};
use crate::{
    framework::{
        Actions, Change, Cycle, CycleState, Event, EventInterest, Filter, Hint, Outcome, Plugin, Points,
        PreFilter, PreFiltered, Resource, Status,
    },
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use kaji_runtime::{FeatureRequests, objects::Pod};
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "NodeDeclaredFeatures",
    weight: 0,
    arguments: None,
    build: |_| {
        let plugin = Arc::new(NodeDeclaredFeatures);
        Points::of(&plugin).pre_filter(&plugin).filter(&plugin)
    },
};

struct NodeDeclaredFeatures;

/// The features that a pod needs.
fn needed(pod: &Pod) -> impl Iterator<Item = &'static str> {
    let mut containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let requests = FeatureRequests {
        restarts_all: containers.any(|container| container.restarts_all),
        host_network: pod.spec.host_network,
        host_users: pod.spec.host_users,
    };
    requests.features()
}

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn looks_at_node_alone(&self) -> bool {
        true
    }

    fn events(&self) -> Vec<EventInterest> {
        let declared = |_: &PodInfo, event: &Event| match &event.change {
            Change::Node(Some(old), Some(new))
                if old.status.declared_features == new.status.declared_features =>
            {
                Hint::Skip
            }
            _ => Hint::Queue,
        };
        vec![EventInterest::hinted(Resource::Node, Actions::ADD | Actions::NODE_DECLARED_FEATURES, declared)]
    }
}

impl PreFilter for NodeDeclaredFeatures {
    fn pre_filter(&self, cycle: &Cycle<'_>, _state: &mut CycleState) -> Outcome<PreFiltered> {
        let none = needed(&cycle.pod.pod).next().is_none();
        Ok(if none { PreFiltered::Skip } else { PreFiltered::AllNodes })
    }
}

impl Filter for NodeDeclaredFeatures {
    fn filter(&self, cycle: &Cycle<'_>, _state: &CycleState, node: &NodeInfo) -> Outcome {
        let declared = &node.node.status.declared_features;
        let has = |feature: &str| declared.iter().any(|declared| declared.as_str() == feature);
        ensure(needed(&cycle.pod.pod).all(has), || {
            Status::unresolvable("node(s) didn't match Pod's required features")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, node, pod};
    use expect_test::expect;
    use serde_json::{Value, json};

    const RESTART: &str = "RestartAllContainersOnContainerExits";
    const USERS: &str = "UserNamespacesHostNetworkSupport";

    fn restarting(list: &str) -> Value {
        let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}});
        let mut spec = json!({"containers": [{"name": "c"}]});
        spec[list] = json!([{"name": "r", "restartPolicyRules": [{"action": "Restart"}, rule]}]);
        json!({"name": "p", "spec": spec})
    }

    #[test]
    fn pods_go_to_nodes_that_declare_what_they_need() {
        let plain = json!({"name": "plain", "features": ["ExtendWebSocketsToKubelet"]});
        let rich = json!({"name": "rich", "features": [RESTART]});
        let mut cluster = Cluster::new(&[plain.clone(), rich]);
        assert_eq!(cluster.show(&restarting("containers")), "-> rich");
        assert_eq!(cluster.show(&restarting("initContainers")), "-> rich");
        let users = |own: bool| json!({"name": "p", "spec": {"containers": [], "hostNetwork": true, "hostUsers": !own}});
        let seen = [
            cluster.show(&users(true)),
            Cluster::new(std::slice::from_ref(&plain)).show(&restarting("containers")),
            Cluster::new(std::slice::from_ref(&plain)).show(&users(false)),
            Cluster::new(&[plain]).show(&json!({"name": "p"})),
            Cluster::new(&[json!({"name": "n", "features": [USERS]})]).show(&users(true)),
        ];
        expect![[r#"
            0/2 nodes are available: 2 node(s) didn't match Pod's required features. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
            0/1 nodes are available: 1 node(s) didn't match Pod's required features. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.
            -> plain
            -> plain
            -> n"#]].assert_eq(&seen.join("\n"));
    }

    #[test]
    fn nodes_that_declare_other_features_are_worth_an_attempt() {
        let (pod, at) = (pod(&restarting("containers")), |features: &[&str], unschedulable: bool| {
            node(&json!({"name": "n", "features": features, "spec": {"unschedulable": unschedulable}}))
        });
        let wakes = |old: Option<Arc<kaji_runtime::objects::Node>>, new| {
            let event = Event::of_node(old, Some(new));
            let interests = NodeDeclaredFeatures.events();
            event.is_some_and(|event| {
                interests
                    .iter()
                    .any(|interest| interest.concerns(&event) && interest.hint(&pod, &event) == Hint::Queue)
            })
        };
        assert!(wakes(None, at(&[], false)));
        assert!(wakes(Some(at(&[], false)), at(&[RESTART], false)));
        assert!(!wakes(Some(at(&[], false)), at(&[], true)));
        assert!(!wakes(Some(at(&[RESTART], false)), at(&[RESTART], false)));
    }
}

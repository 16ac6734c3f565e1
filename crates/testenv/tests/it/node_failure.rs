//! A node that dies: its pod is replaced on another node, and is gone when the Node object is. Nodes that live stay ready
//! however far the clock jumps.

use crate::kube_rs::{object, post, until};
use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    coordination::v1::Lease,
    core::v1::{Event, Node, Pod},
};
use kaji_testenv::TestEnv;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// The status and reason of a node's condition.
fn ready(node: Option<&Node>) -> (String, String) {
    let conditions = node.and_then(|n| n.status.as_ref()).and_then(|s| s.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|c| c.type_ == "Ready");
    ready.map(|c| (c.status.clone(), c.reason.clone().unwrap_or_default())).unwrap_or_default()
}

fn condition(pod: Option<&Pod>, kind: &str) -> Option<(String, String)> {
    let conditions = pod?.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_ == kind)?;
    Some((found.status.clone(), found.reason.clone().unwrap_or_default()))
}

fn unreachable(node: Option<&Node>) -> bool {
    let taints = node.and_then(|n| n.spec.as_ref()).and_then(|s| s.taints.as_ref());
    taints.into_iter().flatten().any(|t| {
        t.key == "node.kubernetes.io/unreachable" && t.effect == "NoExecute" && t.time_added.is_some()
    })
}

async fn patch<K>(api: &Api<K>, name: &str, status: bool, body: Value)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + kube::Resource,
{
    let params = PatchParams::default();
    let body = Patch::Strategic(body);
    let done = if status {
        api.patch_status(name, &params, &body).await
    } else {
        api.patch(name, &params, &body).await
    };
    done.unwrap();
}

/// A node without a kubelet, which says that it is ready.
async fn add_mortal_node(nodes: &Api<Node>) {
    let node = json!({"metadata": {"name": "mortal", "labels": {"role": "worker"}}});
    nodes.create(&post(), &object(node)).await.unwrap();
    let amounts = json!({"cpu": "4", "memory": "8Gi", "pods": "10"});
    let conditions = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
    let status = json!({"capacity": amounts, "allocatable": amounts, "conditions": conditions});
    patch(nodes, "mortal", true, json!({"status": status})).await;
}

/// One pod on a node with the label `role`, under a replica set; returns its name.
async fn add_pod(sets: &Api<ReplicaSet>, pods: &Api<Pod>) -> String {
    let spec = json!({"nodeSelector": {"role": "worker"}, "containers": [{"name": "c", "image": "i"}]});
    let set = json!({"metadata": {"name": "web"}, "spec": {"replicas": 1,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec}}});
    sets.create(&post(), &object(set)).await.unwrap();
    let made =
        |set: Option<&ReplicaSet>| set.is_some_and(|s| s.status.as_ref().is_some_and(|s| s.replicas == 1));
    until(sets, "web", "a pod", made).await;
    let name = pods.list(&ListParams::default()).await.unwrap().items[0].name_any();
    let bound = |pod: Option<&Pod>| {
        pod.and_then(|p| p.spec.as_ref()).is_some_and(|s| s.node_name.as_deref() == Some("mortal"))
    };
    until(pods, &name, "its binding", bound).await;
    let conditions = json!([{"type": "Ready", "status": "True"}]);
    patch(pods, &name, true, json!({"status": {"phase": "Running", "conditions": conditions}})).await;
    name
}

/// Advances the clock, and waits until the living node has renewed its lease.
async fn renewal(env: &TestEnv, by: Duration) {
    let leases: Api<Lease> = Api::namespaced(env.client(), "kube-node-lease");
    let renewed = |lease: Option<&Lease>| lease?.spec.as_ref()?.renew_time.clone();
    let before = renewed(leases.get_opt("sim-1").await.unwrap().as_ref());
    env.advance(by).unwrap();
    until(&leases, "sim-1", "a renewed lease", |lease| renewed(lease) > before).await;
}

/// Advances the clock by 10 s at a time, after which the living renew their leases, until the node is lost.
async fn lose(env: &TestEnv, nodes: &Api<Node>) -> u32 {
    for round in 0..60 {
        renewal(env, 10 * SECOND).await;
        if ready(Some(&nodes.get("mortal").await.unwrap())).0 == "Unknown" {
            return round;
        }
    }
    panic!("the node was not lost");
}

#[tokio::test]
async fn the_pods_of_a_dead_node_are_replaced() {
    let env = TestEnv::builder().controllers(["*"]).nodes(1).virtual_clock().start().await.unwrap();
    let nodes: Api<Node> = Api::all(env.client());
    let pods: Api<Pod> = Api::default_namespaced(env.client());
    let sets: Api<ReplicaSet> = Api::default_namespaced(env.client());
    until(&nodes, "sim-1", "a node", |n| ready(n).0 == "True").await;
    add_mortal_node(&nodes).await;
    let pod = add_pod(&sets, &pods).await;
    patch(&nodes, "sim-1", false, json!({"metadata": {"labels": {"role": "worker"}}})).await;

    // One jump, however far, loses nothing.
    env.advance(3600 * SECOND).unwrap();
    assert!(lose(&env, &nodes).await >= 5);
    until(&nodes, "mortal", "a taint", unreachable).await;
    assert_eq!(ready(Some(&nodes.get("mortal").await.unwrap())).1, "NodeStatusUnknown");
    let unready = |pod: Option<&Pod>| condition(pod, "Ready").is_some_and(|(status, _)| status == "False");
    until(&pods, &pod, "a pod that is not ready", unready).await;
    assert_eq!(ready(Some(&nodes.get("sim-1").await.unwrap())).0, "True");
    assert!(pods.get(&pod).await.unwrap().metadata.deletion_timestamp.is_none());

    // The default toleration is of five minutes.
    env.advance(301 * SECOND).unwrap();
    until(&pods, &pod, "the eviction", |p| p.is_some_and(|p| p.metadata.deletion_timestamp.is_some())).await;
    let disrupted = condition(Some(&pods.get(&pod).await.unwrap()), "DisruptionTarget");
    assert_eq!(disrupted, Some(("True".into(), "DeletionByTaintManager".into())));
    let replaced = |set: Option<&ReplicaSet>| {
        set.and_then(|s| s.status.as_ref()).is_some_and(|s| s.ready_replicas == Some(1))
    };
    until(&sets, "web", "another pod", replaced).await;
    // No kubelet is there that could say that it ended.
    env.advance(600 * SECOND).unwrap();
    assert!(pods.get_opt(&pod).await.unwrap().is_some());

    nodes.delete("mortal", &DeleteParams::default()).await.unwrap();
    // It is gone when it was missing for a while.
    for _ in 0..10 {
        renewal(&env, 60 * SECOND).await;
    }
    until(&pods, &pod, "the end of the pod", |p| p.is_none()).await;
    let events: Api<Event> = Api::default_namespaced(env.client());
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let texts: Vec<&str> = events.iter().filter_map(|e| e.message.as_deref()).collect();
    let marked = format!("Marking for deletion Pod default/{pod}");
    for text in ["Node mortal status is now: NodeNotReady", "Node is not ready", &marked] {
        assert!(texts.contains(&text), "{text}: {texts:?}");
    }
    env.stop().await;
}

//! What kubelets may write.

use super::{PODS, pod};
use crate::common::{TestCluster, api::Api};
use kaji_resource::{UserInfo, Verb};
use serde_json::{Value, json};

fn kubelet(node: &str) -> UserInfo {
    UserInfo {
        name: format!("system:node:{node}"),
        groups: vec!["system:nodes".into()],
        ..UserInfo::default()
    }
}

async fn restricted() -> TestCluster {
    TestCluster::start_with(|o| o.admission.enable = vec!["NodeRestriction".into()]).await
}

fn node(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_write_about_themselves() {
    let cluster = restricted().await;
    let api = Api(&cluster);
    let n = kubelet("n");
    let (mine, other) = (node("n", json!({"kubernetes.io/os": "linux"})), node("m", json!({})));
    assert_eq!(api.answer_to(&n, Verb::Create, "/v1/nodes", mine.clone()).await.0, 201);
    let made = api.ok(Verb::Get, "/v1/nodes/n", Value::Null).await;
    assert_eq!(
        made["spec"]["taints"],
        json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    );
    assert_eq!(
        api.answer_to(&n, Verb::Create, "/v1/nodes", other).await,
        (403, r#"nodes "m" is forbidden: node "n" is not allowed to modify node "m""#.into())
    );
    let mut changed = made.clone();
    changed["spec"]["taints"] = json!([]);
    assert_eq!(
        api.answer_to(&n, Verb::Update, "/v1/nodes/n", changed).await,
        (403, r#"nodes "n" is forbidden: node "n" is not allowed to modify taints"#.into())
    );
    let mut changed = made.clone();
    changed["metadata"]["labels"]["node-restriction.kubernetes.io/zone"] = json!("a");
    assert_eq!(
        api.answer_to(&n, Verb::Update, "/v1/nodes/n", changed).await,
        (
            403,
            r#"nodes "n" is forbidden: is not allowed to modify labels: node-restriction.kubernetes.io/zone"#
                .into()
        )
    );
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n"}});
    assert_eq!(
        api.answer_to(&n, Verb::Create, "coordination.k8s.io/v1/leases?namespace=default", lease).await,
        (403, r#"leases.coordination.k8s.io "n" is forbidden: can only access leases in the "kube-node-lease" system namespace"#.into())
    );
    assert_eq!(
        api.answer_to(&kubelet(""), Verb::Create, "/v1/nodes", mine).await,
        (403, r#"nodes "n" is forbidden: could not determine node from user "system:node:""#.into())
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_write_about_their_pods() {
    let cluster = restricted().await;
    let api = Api(&cluster);
    let n = kubelet("n");
    let known = api.ok(Verb::Create, "/v1/nodes", node("n", json!({}))).await;
    for (name, node) in [("here", "n"), ("there", "m")] {
        api.ok(Verb::Create, PODS, pod(name, json!({"nodeName": node}))).await;
    }
    assert_eq!(
        api.answer_to(&n, Verb::Create, PODS, pod("x", json!({}))).await,
        (403, r#"pods "x" is forbidden: pod does not have "kubernetes.io/config.mirror" annotation, node "n" can only create mirror pods"#.into())
    );
    let mut mirror = pod("mirror", json!({"nodeName": "n"}));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "n",
        "uid": known["metadata"]["uid"], "controller": true}]);
    assert_eq!(api.answer_to(&n, Verb::Create, PODS, mirror).await, (201, String::new()));
    let one = |name: &str, sub: &str| format!("/v1/pods/{name}{sub}?namespace=default");
    assert_eq!(
        api.answer_to(&n, Verb::Delete, &one("there", ""), Value::Null).await,
        (
            403,
            r#"pods "there" is forbidden: node "n" can only delete pods with spec.nodeName set to itself"#
                .into()
        )
    );
    let mut there = api.ok(Verb::Get, &one("there", ""), Value::Null).await;
    there["status"]["phase"] = json!("Failed");
    assert_eq!(
        api.answer_to(&n, Verb::Update, &one("there", "/status"), there).await,
        (403, r#"pods "there" is forbidden: node "n" can only update pod status for pods with spec.nodeName set to itself"#.into())
    );
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "there"}});
    assert_eq!(
        api.answer_to(&n, Verb::Create, &one("there", "/eviction"), eviction).await,
        (
            403,
            r#"pods "there" is forbidden: node n can only evict pods with spec.nodeName set to itself"#
                .into()
        )
    );
    let here = api.ok(Verb::Get, &one("here", ""), Value::Null).await;
    let token = |pod: &str, uid: &Value, audience: &str| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [audience],
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}}})
    };
    let path = "/v1/serviceaccounts/default/token?namespace=default";
    let uid = &here["metadata"]["uid"];
    assert_eq!(
        api.answer_to(&n, Verb::Create, path, token("here", &json!("other"), "x")).await.1,
        r#"serviceaccounts "default" is forbidden: the UID in the bound object reference (other) does not match the UID in record. The object might have been deleted and then recreated"#
    );
    assert_eq!(
        api.answer_to(&n, Verb::Create, path, token("here", uid, "x")).await.1,
        r#"serviceaccounts "default" is forbidden: audience "x" not found in pod spec volume, system:node:n is not authorized to request tokens for this audience"#
    );
    assert_eq!(
        api.answer_to(&kubelet("m"), Verb::Create, path, token("here", uid, "x")).await.1,
        r#"serviceaccounts "default" is forbidden: node requested token bound to a pod scheduled on a different node"#
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_carry_the_zone_of_their_node() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let labels = json!({"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "b", "x": "y"});
    api.ok(Verb::Create, "/v1/nodes", node("n", labels)).await;
    let wanted = json!({"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "b"});
    let made = api.ok(Verb::Create, PODS, pod("there", json!({"nodeName": "n"}))).await;
    assert_eq!(made["metadata"]["labels"], wanted);
    let made = api.ok(Verb::Create, PODS, pod("bound", json!({}))).await;
    assert_eq!(made["metadata"]["labels"], Value::Null);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "bound"}, "target": {"kind": "Node", "name": "n"}});
    api.ok(Verb::Create, "/v1/pods/bound/binding?namespace=default", binding).await;
    let bound = api.ok(Verb::Get, "/v1/pods/bound?namespace=default", Value::Null).await;
    assert_eq!(bound["metadata"]["labels"], wanted);
    let owned = bound["metadata"]["managedFields"].to_string();
    assert!(!owned.contains("f:nodeName"), "a binding leaves no owner of the fields that it sets: {owned}");
    cluster.stop().await;
}

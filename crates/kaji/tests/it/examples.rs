//! Manifests of `examples/`, applied to a cluster with simulated nodes.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use serde_json::{Value, json};

/// Where objects of a kind are created.
fn collection(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    match object["kind"].as_str().unwrap() {
        "Namespace" => "/api/v1/namespaces".into(),
        "ClusterRole" => "/apis/rbac.authorization.k8s.io/v1/clusterroles".into(),
        "ClusterRoleBinding" => "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".into(),
        "ServiceAccount" => format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
        "ConfigMap" => format!("/api/v1/namespaces/{namespace}/configmaps"),
        "DaemonSet" => format!("/apis/apps/v1/namespaces/{namespace}/daemonsets"),
        kind => panic!("no example has had a {kind}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_of_logs_runs_on_every_node() {
    let test = TestCluster::start(2).await;
    let manifest = include_str!("../../../../examples/fluent-bit.yaml");
    let objects = kaji_files::yaml::documents(manifest).unwrap();
    for object in &objects {
        let request = format!("POST {}?fieldValidation=Strict", collection(object));
        ok(&test, &admin(), &request, object.clone()).await;
    }
    let set = "GET /apis/apps/v1/namespaces/logging/daemonsets/fluent-bit";
    until("a pod is ready on each node", async || {
        let (_, found) = ask(&test, &admin(), set, &Value::Null).await;
        found["status"]["numberReady"] == 2 && found["status"]["desiredNumberScheduled"] == 2
    })
    .await;
    // What it reads, where the kubelet has containers' logs.
    let template = &objects.iter().find(|o| o["kind"] == "DaemonSet").unwrap()["spec"]["template"]["spec"];
    assert!(
        template["volumes"]
            .as_array()
            .unwrap()
            .contains(&json!({"name": "logs", "hostPath": {"path": "/var/log"}}))
    );
    let config = objects.iter().find(|o| o["kind"] == "ConfigMap").unwrap();
    let config = kaji_files::yaml::documents(config["data"]["fluent-bit.yaml"].as_str().unwrap()).unwrap();
    let input = &config[0]["pipeline"]["inputs"][0];
    assert_eq!(
        (&input["path"], &input["multiline.parser"]),
        (&json!("/var/log/containers/*.log"), &json!("cri"))
    );
    test.stop().await;
}

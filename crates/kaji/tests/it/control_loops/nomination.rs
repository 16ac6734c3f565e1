//! A pod that is not bound at once names the node that it will be bound to (KEP-5278).

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

/// A class of which volumes are made by hand, a claim of it for each name, and a pod that uses the claim.
async fn pods_with_claims(test: &TestCluster, names: &[&str]) {
    until("the account of pods", async || {
        let account = "GET /api/v1/namespaces/default/serviceaccounts/default";
        ask(test, &admin(), account, &Value::Null).await.0 == 200
    })
    .await;
    let class = json!({"metadata": {"name": "slow"}, "provisioner": "example.com/by-hand",
        "volumeBindingMode": "WaitForFirstConsumer"});
    ok(test, &admin(), "POST /apis/storage.k8s.io/v1/storageclasses", class).await;
    for name in names {
        let claim = json!({"metadata": {"name": name}, "spec": {"storageClassName": "slow",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        ok(test, &admin(), &format!("POST {CLAIMS}"), claim).await;
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]}});
        ok(test, &admin(), &format!("POST {PODS}"), pod).await;
    }
}

/// The node that a pod names, and the one that it is bound to.
async fn nodes(test: &TestCluster, pod: &str) -> (String, String) {
    let pod = ok(test, &admin(), &format!("GET {PODS}/{pod}"), Value::Null).await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&pod["status"]["nominatedNodeName"]), text(&pod["spec"]["nodeName"]))
}

#[tokio::test]
async fn pod_names_its_node_while_its_volume_is_provisioned() {
    let test = TestCluster::start(1).await;
    pods_with_claims(&test, &["bound", "failed"]).await;
    for pod in ["bound", "failed"] {
        until("the pod names its node", async || !nodes(&test, pod).await.0.is_empty()).await;
        assert_eq!(nodes(&test, pod).await.1, "");
    }
    let (node, _) = nodes(&test, "bound").await;

    let volume = json!({"metadata": {"name": "v"}, "spec": {"storageClassName": "slow", "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp"},
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "bound"}}});
    ok(&test, &admin(), "POST /api/v1/persistentvolumes", volume).await;
    // Binding removes the nomination.
    until("the pod is bound", async || nodes(&test, "bound").await == (String::new(), node.clone())).await;

    // The provisioner gives up, and no other node is left.
    let cordoned = json!({"spec": {"unschedulable": true}});
    ok(&test, &admin(), &format!("PATCH /api/v1/nodes/{node}"), cordoned).await;
    let given_up = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}});
    ok(&test, &admin(), &format!("PATCH {CLAIMS}/failed"), given_up).await;
    until("the pod names no node", async || nodes(&test, "failed").await == Default::default()).await;
    test.stop().await;
}

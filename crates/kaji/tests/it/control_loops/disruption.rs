//! Budgets of pods that a custom resource owns: evictions are allowed by the scale of their owner.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use serde_json::{Value, json};

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A definition of objects with replicas; with a scale subresource or without.
fn definition(kind: &str, plural: &str, scale: bool) -> Value {
    let mut subresources = json!({"status": {}});
    if scale {
        subresources["scale"] =
            json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    }
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}});
    json!({"metadata": {"name": format!("{plural}.loops.example.com")}, "spec": {"group": "loops.example.com", "scope": "Namespaced",
        "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": subresources,
            "schema": {"openAPIV3Schema": schema}}]}})
}

async fn owner_with_pods(test: &TestCluster, kind: &str, plural: &str, scale: bool) {
    let definitions = "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    ok(test, &admin(), definitions, definition(kind, plural, scale)).await;
    let path = format!("POST /apis/loops.example.com/v1/namespaces/default/{plural}");
    let object = json!({"apiVersion": "loops.example.com/v1", "kind": kind, "metadata": {"name": "o"}, "spec": {"replicas": 2}});
    let mut owner = Value::Null;
    until("the kind is served", async || {
        let (code, answer) = ask(test, &admin(), &path, &object).await;
        owner = answer;
        code == 201
    })
    .await;
    let labels = json!({"owner": plural});
    for index in 0..2 {
        let reference = json!({"apiVersion": "loops.example.com/v1", "kind": kind, "name": "o",
            "uid": owner["metadata"]["uid"], "controller": true});
        let pod = json!({"metadata": {"name": format!("{plural}-{index}"), "labels": labels, "ownerReferences": [reference]},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        ok(test, &admin(), &format!("POST {PODS}"), pod).await;
    }
    let budget = json!({"metadata": {"name": plural}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}}});
    ok(test, &admin(), &format!("POST {BUDGETS}"), budget).await;
}

#[tokio::test]
async fn pods_of_custom_resources_can_be_evicted() {
    let test = TestCluster::start(1).await;
    owner_with_pods(&test, "Widget", "widgets", true).await;
    owner_with_pods(&test, "Gadget", "gadgets", false).await;
    until("a disruption is allowed", async || {
        let (_, budget) = ask(&test, &admin(), &format!("GET {BUDGETS}/widgets"), &Value::Null).await;
        let status = &budget["status"];
        status["expectedPods"] == 2 && status["currentHealthy"] == 2 && status["disruptionsAllowed"] == 1
    })
    .await;
    let evict = |name: &str| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        (format!("POST {PODS}/{name}/eviction"), eviction)
    };
    let (request, eviction) = evict("widgets-0");
    ok(&test, &admin(), &request, eviction).await;
    let (request, eviction) = evict("widgets-1");
    let (code, status) = ask(&test, &admin(), &request, &eviction).await;
    assert_eq!((code, &status["reason"]), (429, &json!("TooManyRequests")), "{status}");
    // Without a scale the number of pods is unknown, and nothing may go.
    until("the failure is reported", async || {
        let (_, budget) = ask(&test, &admin(), &format!("GET {BUDGETS}/gadgets"), &Value::Null).await;
        let conditions = budget["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| {
            c["reason"] == "SyncFailed"
                && c["message"] == "gadgets.loops.example.com does not implement the scale subresource"
        })
    })
    .await;
    // A pod that does not run may always go.
    until("the pod runs", async || {
        let (_, pod) = ask(&test, &admin(), &format!("GET {PODS}/gadgets-0"), &Value::Null).await;
        pod["status"]["phase"] == "Running"
    })
    .await;
    let (request, eviction) = evict("gadgets-0");
    assert_eq!(ask(&test, &admin(), &request, &eviction).await.0, 429);
    test.stop().await;
}

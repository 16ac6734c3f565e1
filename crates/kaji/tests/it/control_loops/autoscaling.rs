//! Horizontal pod autoscaling on simulated nodes, from their figures to the replicas.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use kaji::StoreKind;
use serde_json::{Value, json};
use std::time::Duration;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PODS_USE: &str = "GET /apis/metrics.k8s.io/v1beta1/namespaces/default/pods";
const AUTOSCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";

#[tokio::test]
async fn replicas_follow_what_pods_use() {
    let test = TestCluster::start_over(tempfile::tempdir().unwrap(), 1, StoreKind::Memory, |options| {
        options.autoscaler.sync_period = Duration::from_millis(500);
        // Pods are not busy with their start here.
        options.autoscaler.cpu_initialization_period = Duration::ZERO;
    })
    .await;
    let labels = json!({"app": "busy"});
    let deployment = json!({"metadata": {"name": "busy"}, "spec": {"selector": {"matchLabels": labels}, "template": {
        "metadata": {"labels": labels, "annotations": {"sim.kaji.dev/cpu-usage": "300m"}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]}}}});
    ok(&test, &admin(), &format!("POST {DEPLOYMENTS}"), deployment).await;
    // Failures without figures would use up the events that one object may have.
    until("the pod has figures", async || {
        let (_, figures) = ask(&test, &admin(), PODS_USE, &Value::Null).await;
        figures["items"].as_array().is_some_and(|pods| pods.len() == 1)
    })
    .await;
    let autoscaler = json!({"metadata": {"name": "busy"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "busy"}, "maxReplicas": 3,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 100}}}]}});
    ok(&test, &admin(), &format!("POST {AUTOSCALERS}"), autoscaler).await;
    until("the deployment has grown", async || {
        let (_, found) = ask(&test, &admin(), &format!("GET {DEPLOYMENTS}/busy"), &Value::Null).await;
        found["spec"]["replicas"] == 3
    })
    .await;
    let condition = |found: &Value, kind: &str| {
        let all = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().find(|c| c["type"] == kind).map_or(Value::Null, |c| json!([c["status"], c["reason"]]))
    };
    let mut found = Value::Null;
    until("the autoscaler says so", async || {
        found = ask(&test, &admin(), &format!("GET {AUTOSCALERS}/busy"), &Value::Null).await.1;
        found["status"]["desiredReplicas"] == 3 && found["status"]["currentReplicas"] == 3
    })
    .await;
    assert_eq!(condition(&found, "ScalingActive"), json!(["True", "ValidMetricFound"]), "{found}");
    assert_eq!(condition(&found, "ScaledToZero"), json!(["False", "NotScaledToZero"]), "{found}");
    assert_eq!(found["metadata"]["generation"], 1, "{found}");
    assert_eq!(found["status"]["observedGeneration"], 1, "{found}");
    assert_eq!(found["status"]["currentMetrics"][0]["resource"]["name"], "cpu", "{found}");
    until("there is an event", async || {
        let events = "GET /api/v1/namespaces/default/events?fieldSelector=reason%3DSuccessfulRescale";
        let (_, events) = ask(&test, &admin(), events, &Value::Null).await;
        let text = "New size: 3; reason: cpu resource utilization (percentage of request) above target";
        events["items"].as_array().is_some_and(|all| all.iter().any(|event| event["message"] == text))
    })
    .await;
    // Without replicas there is nothing to compute from.
    let scale = format!("PATCH {DEPLOYMENTS}/busy/scale");
    ok(&test, &admin(), &scale, json!({"spec": {"replicas": 0}})).await;
    until("scaling is disabled", async || {
        let (_, found) = ask(&test, &admin(), &format!("GET {AUTOSCALERS}/busy"), &Value::Null).await;
        condition(&found, "ScalingActive") == json!(["False", "ScalingDisabled"])
    })
    .await;
    test.stop().await;
}

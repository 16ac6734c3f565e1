//! Conditions that an API server writes without controllers: it knows itself what they say.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use serde_json::{Value, json};

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";

async fn condition(test: &TestCluster, path: &str, kind: &str) -> Value {
    let (_, object) = ask(test, &admin(), &format!("GET {path}"), &Value::Null).await;
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().find(|c| c["type"] == kind).map_or(Value::Null, |c| json!([c["status"], c["reason"]]))
}

#[tokio::test]
async fn api_services_and_flow_schemas_have_their_conditions() {
    let test = TestCluster::start(0).await;
    until("a built-in group is available", async || {
        condition(&test, &format!("{SERVICES}/v1.apps"), "Available").await == json!(["True", "Local"])
    })
    .await;
    let service = json!({"metadata": {"name": "v1.far.example.com"}, "spec": {"group": "far.example.com", "version": "v1",
        "groupPriorityMinimum": 10, "versionPriority": 10, "insecureSkipTLSVerify": true,
        "service": {"namespace": "default", "name": "none"}}});
    ok(&test, &admin(), &format!("POST {SERVICES}"), service).await;
    until("a group without its service is not", async || {
        let found = condition(&test, &format!("{SERVICES}/v1.far.example.com"), "Available").await;
        found == json!(["False", "ServiceNotFound"])
    })
    .await;
    until("a FlowSchema with its level is not dangling", async || {
        condition(&test, &format!("{SCHEMAS}/catch-all"), "Dangling").await == json!(["False", "Found"])
    })
    .await;
    let schema = json!({"metadata": {"name": "lost"}, "spec": {"matchingPrecedence": 9000,
        "priorityLevelConfiguration": {"name": "none"}}});
    ok(&test, &admin(), &format!("POST {SCHEMAS}"), schema).await;
    until("one without is", async || {
        condition(&test, &format!("{SCHEMAS}/lost"), "Dangling").await == json!(["True", "NotFound"])
    })
    .await;
    test.stop().await;
}

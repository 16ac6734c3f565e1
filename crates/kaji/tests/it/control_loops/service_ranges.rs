//! Ranges of service addresses: they become ready, and a deleted one stays while services have addresses of it.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use kaji::StoreKind;
use kaji_runtime::VirtualClock;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const SERVICES: &str = "/api/v1/namespaces/default/services";

/// Status and reason of a range's condition `Ready`.
async fn ready(test: &TestCluster, name: &str) -> Value {
    let (_, range) = ask(test, &admin(), &format!("GET {RANGES}/{name}"), &Value::Null).await;
    let conditions = range["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions
        .iter()
        .find(|c| c["type"] == "Ready")
        .map_or(Value::Null, |c| json!([c["status"], c["reason"]]))
}

#[tokio::test]
async fn a_range_in_use_outlives_its_deletion() {
    let clock = Arc::new(VirtualClock::default());
    let test = TestCluster::start_over(tempfile::tempdir().unwrap(), 1, StoreKind::Memory, |options| {
        options.clock = Some(clock.clone());
    })
    .await;
    until("the default range is ready", async || ready(&test, "kubernetes").await == json!(["True", ""]))
        .await;
    let range = json!({"metadata": {"name": "second"}, "spec": {"cidrs": ["10.123.0.0/24"]}});
    ok(&test, &admin(), &format!("POST {RANGES}"), range).await;
    until("it is ready", async || ready(&test, "second").await == json!(["True", ""])).await;
    let service = |name: &str| json!({"metadata": {"name": name}, "spec": {"clusterIP": "10.123.0.17", "ports": [{"port": 80}]}});
    ok(&test, &admin(), &format!("POST {SERVICES}"), service("one")).await;
    ok(&test, &admin(), &format!("DELETE {RANGES}/second"), Value::Null).await;
    let terminating = json!(["False", "Terminating"]);
    until("it is terminating", async || ready(&test, "second").await == terminating).await;
    // No address is allocated from it any more.
    ok(&test, &admin(), &format!("DELETE {SERVICES}/one"), Value::Null).await;
    let (code, status) = ask(&test, &admin(), &format!("POST {SERVICES}"), &service("two")).await;
    assert_eq!(code, 422, "{status}");
    clock.advance(Duration::from_secs(11));
    until("it is gone", async || {
        ask(&test, &admin(), &format!("GET {RANGES}/second"), &Value::Null).await.0 == 404
    })
    .await;
    test.stop().await;
}

//! Tests of the cloud node lifecycle controller over a cloud in memory.

use super::*;
use crate::{
    cloud_provider::{InstanceMetadata, fake::FakeCloud},
    testing::{object, prepared, snapshot, text},
};
use expect_test::expect;
use serde_json::Value;

fn node(ready: &str, taints: &[&str]) -> Value {
    let taints: Vec<Value> = taints.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    json!({
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "7"},
        "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    })
}

async fn plan(cloud: &FakeCloud, node: Value) -> String {
    let (cloud, period) = (Arc::new(cloud.clone()), Duration::from_secs(5));
    let machines = Machines { cloud, period, answers: Mutex::default() };
    let view = View::default().with(snapshot::<Node>([node]));
    text(&prepared(&machines, &view, "", "n").await)
}

fn cloud() -> FakeCloud {
    FakeCloud::default().with_machine("n", InstanceMetadata::default())
}

#[tokio::test]
async fn nodes_without_a_machine_are_deleted() {
    let empty = FakeCloud::default();
    expect![[r#"
        delete /api/v1/nodes/n {"preconditions":{"uid":"u"}}
            failed: Warning DeletingNodeFailed: Failed deleting node n: {error}
        event: Normal DeletingNode: Deleting node n because it does not exist in the cloud provider
        again after 5s
    "#]]
    .assert_eq(&plan(&empty, node("Unknown", &[])).await);
    // A node that is ready has a machine, whatever the cloud says: it is not even asked.
    empty.calls();
    assert_eq!((plan(&empty, node("True", &[])).await, empty.calls()), (String::new(), String::new()));
    empty.lock().failures.insert("exists", CloudError::Failed("no connection".into()));
    assert_eq!(plan(&empty, node("False", &[])).await, "again after 5s\n");
    assert_eq!(plan(&cloud(), node("False", &[])).await, "again after 5s\n");
}

#[tokio::test]
async fn machines_that_are_off_taint_their_nodes() {
    let cloud = cloud();
    cloud.lock().off.insert("n".into());
    expect![[r#"
        merge /api/v1/nodes/n {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"effect":"NoSchedule","key":"mine"},{"effect":"NoSchedule","key":"node.cloudprovider.kubernetes.io/shutdown"}]}}
        again after 5s
    "#]].assert_eq(&plan(&cloud, node("Unknown", &["mine"])).await);
    assert_eq!(plan(&cloud, node("Unknown", &[SHUT_DOWN])).await, "again after 5s\n");
    expect![[r#"
        merge /api/v1/nodes/n {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"effect":"NoSchedule","key":"mine"}]}}
    "#]].assert_eq(&plan(&cloud, node("True", &["mine", SHUT_DOWN])).await);
}

#[test]
fn nodes_are_looked_up_when_they_stop_being_ready() {
    let keys = |old: Option<Value>, new: Value| {
        let node = |value| Arc::new(object::<Node>(value));
        keys_of_node(&Change { old: old.map(node), new: Some(node(new)) }).len()
    };
    assert_eq!(keys(None, node("True", &[])), 0);
    assert_eq!(keys(None, node("False", &[])), 1);
    assert_eq!(keys(Some(node("True", &[])), node("Unknown", &[])), 1);
    assert_eq!(keys(Some(node("False", &[])), node("Unknown", &[])), 0, "its period brings it back");
    assert_eq!(keys(Some(node("False", &[SHUT_DOWN])), node("True", &[SHUT_DOWN])), 1);
}

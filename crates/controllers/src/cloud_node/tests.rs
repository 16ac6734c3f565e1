//! Tests of the cloud node controller over a cloud in memory, and over machines without a cloud.

use super::*;
use crate::{
    cloud_provider::{BareMachines, fake::FakeCloud},
    testing::{ago, object, observed, prepared, snapshot, text},
};
use expect_test::expect;

fn address(kind: &str, address: &str) -> NodeAddress {
    NodeAddress { kind: kind.into(), address: address.into() }
}

fn machine() -> InstanceMetadata {
    InstanceMetadata {
        provider_id: "fake://1".into(),
        instance_type: "large".into(),
        addresses: vec![address("InternalIP", "10.0.0.1"), address("ExternalIP", "192.0.2.1")],
        zone: "a".into(),
        region: "eu".into(),
        labels: [
            ("example.com/rack", "7"),
            ("example.com/kept", "other"),
            ("node.kubernetes.io/own", "x"),
            ("k8s.io/own", "x"),
            ("notk8s.io/fine", "y"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into(),
    }
}

fn node(spec: Value) -> Value {
    json!({
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"example.com/kept": "mine"}},
        "spec": spec,
        "status": {"addresses": [{"type": "Hostname", "address": "n"}]},
    })
}

fn uninitialized() -> Value {
    node(json!({"taints": [
        {"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"},
        {"key": "mine", "effect": "NoExecute"},
    ]}))
}

async fn plan(cloud: impl CloudProvider, node: Value) -> String {
    let nodes = CloudNodes::new(Arc::new(cloud), Duration::from_secs(300));
    let view = View::default().with(snapshot::<Node>([node]));
    text(&prepared(&nodes, &view, "", "n").await)
}

#[tokio::test]
async fn nodes_are_initialized_with_what_the_cloud_knows() {
    let cloud = FakeCloud::default().with_machine("n", machine());
    expect![[r#"
        merge /api/v1/nodes/n {"metadata":{"labels":{"beta.kubernetes.io/instance-type":"large","example.com/rack":"7","failure-domain.beta.kubernetes.io/region":"eu","failure-domain.beta.kubernetes.io/zone":"a","node.kubernetes.io/instance-type":"large","notk8s.io/fine":"y","topology.kubernetes.io/region":"eu","topology.kubernetes.io/zone":"a"},"resourceVersion":"7","uid":"u"},"spec":{"providerID":"fake://1","taints":[{"effect":"NoExecute","key":"mine"}]}}
            ok: Normal Synced: Node synced successfully
        --
        merge /api/v1/nodes/n/status {"metadata":{"uid":"u"},"status":{"addresses":[{"address":"10.0.0.1","type":"InternalIP"},{"address":"192.0.2.1","type":"ExternalIP"},{"address":"n","type":"Hostname"}]}}
    "#]].assert_eq(&plan(cloud, uninitialized()).await);
}

#[tokio::test]
async fn the_age_of_nodes_that_are_initialized_is_measured() {
    let cloud = Arc::new(FakeCloud::default().with_machine("n", machine()));
    let nodes = CloudNodes::new(cloud, Duration::from_secs(300));
    let mut node = uninitialized();
    node["metadata"]["creationTimestamp"] = ago(5).into();
    let view = View::default().with(snapshot::<Node>([node]));
    expect![[r#"
        written /api/v1/nodes/n: node_controller_cloud_provider_taint_removal_delay_seconds = 5
        succeeded: node_controller_initial_node_sync_delay_seconds = 5
    "#]]
    .assert_eq(&observed(&prepared(&nodes, &view, "", "n").await));
}

#[tokio::test]
async fn machines_without_a_cloud_are_initialized_by_name() {
    expect![[r#"
        merge /api/v1/nodes/n {"metadata":{"labels":{},"resourceVersion":"7","uid":"u"},"spec":{"providerID":"kaji://n","taints":[{"effect":"NoExecute","key":"mine"}]}}
            ok: Normal Synced: Node synced successfully
    "#]].assert_eq(&plan(BareMachines::new(), uninitialized()).await);
    let mut known = uninitialized();
    known["spec"]["providerID"] = "other://1".into();
    let plan = plan(BareMachines::new(), known).await;
    assert!(
        !plan.contains("providerID") && plan.contains(r#""taints":[{"effect":"NoExecute","key":"mine"}]"#)
    );
}

#[tokio::test]
async fn nodes_that_the_cloud_does_not_know_wait() {
    let cloud = FakeCloud::default();
    assert_eq!(plan(cloud.clone(), uninitialized()).await, "", "the provider left the node alone");
    cloud.lock().failures.insert("metadata", CloudError::Failed("no connection".into()));
    assert_eq!(plan(cloud, uninitialized()).await, "again after 1s\n");
    let nameless = InstanceMetadata { provider_id: String::new(), ..machine() };
    let cloud = FakeCloud::default().with_machine("n", nameless);
    assert_eq!(plan(cloud.clone(), uninitialized()).await, "again after 1s\n");
    let mut known = uninitialized();
    known["spec"]["providerID"] = "fake://9".into();
    assert!(plan(cloud, known).await.contains("Synced"));
}

#[tokio::test]
async fn a_provided_address_has_to_be_the_machines() {
    let with = |ip: &str| {
        let mut node = uninitialized();
        node["metadata"]["annotations"] = json!({PROVIDED_NODE_IP: ip});
        node
    };
    let cloud = FakeCloud::default().with_machine("n", machine());
    for wrong in ["10.0.0.2", "x", "10.0.0.1,10.0.0.2"] {
        assert_eq!(plan(cloud.clone(), with(wrong)).await, "again after 1s\n", "{wrong}");
    }
    assert!(plan(cloud, with("10.0.0.1")).await.contains("Synced"));
    let all =
        [address("InternalIP", "10.0.0.1"), address("InternalIP", "10.0.0.2"), address("Hostname", "n")];
    let texts = |provided: &str| {
        let addresses = preferred(provided, &all).unwrap();
        addresses.iter().map(|a| a.address.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(texts("10.0.0.2"), "10.0.0.2 n");
    assert_eq!(texts("10.0.0.2,10.0.0.1"), "10.0.0.2 10.0.0.1 n");
}

#[tokio::test]
async fn addresses_of_initialized_nodes_follow_the_cloud() {
    let cloud = FakeCloud::default().with_machine("n", machine());
    expect![[r#"
        merge /api/v1/nodes/n/status {"metadata":{"uid":"u"},"status":{"addresses":[{"address":"10.0.0.1","type":"InternalIP"},{"address":"192.0.2.1","type":"ExternalIP"},{"address":"n","type":"Hostname"}]}}
        again after 300s
    "#]].assert_eq(&plan(cloud.clone(), node(json!({}))).await);
    let mut settled = node(json!({}));
    settled["status"]["addresses"] = json!([
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "ExternalIP", "address": "192.0.2.1"},
        {"type": "Hostname", "address": "n"},
    ]);
    assert_eq!(plan(cloud, settled).await, "again after 300s\n");
    // Nothing is asked where the provider has no addresses.
    assert_eq!(plan(BareMachines::new(), node(json!({}))).await, "");
}

#[tokio::test]
async fn newer_labels_follow_older_ones() {
    let mut labelled = node(json!({}));
    labelled["metadata"]["labels"] = json!({
        "failure-domain.beta.kubernetes.io/zone": "b",
        "topology.kubernetes.io/zone": "a",
        "beta.kubernetes.io/instance-type": "small",
        "topology.kubernetes.io/region": "stays",
    });
    expect![[r#"
        merge /api/v1/nodes/n {"metadata":{"labels":{"node.kubernetes.io/instance-type":"small","topology.kubernetes.io/zone":"b"},"uid":"u"}}
    "#]].assert_eq(&plan(BareMachines::new(), labelled.clone()).await);
    let new = Some(Arc::new(object::<Node>(labelled)));
    assert_eq!(keys_of_node(&Change { old: new.clone(), new }, false).len(), 1);
    let settled = Some(Arc::new(object::<Node>(node(json!({})))));
    assert!(keys_of_node(&Change { old: None, new: settled.clone() }, false).is_empty());
    assert_eq!(keys_of_node(&Change { old: None, new: settled.clone() }, true).len(), 1);
    assert!(keys_of_node(&Change { old: settled.clone(), new: settled }, true).is_empty());
}

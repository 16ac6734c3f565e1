//! What classes say about pods, and how many may be the default.

use super::{PODS, pod};
use crate::common::{TestCluster, api::Api};
use kaji_resource::Verb;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_get_what_their_classes_say() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let plain = api.ok(Verb::Create, PODS, pod("plain", json!({}))).await;
    assert_eq!(
        (&plain["spec"]["priority"], &plain["spec"]["preemptionPolicy"]),
        (&json!(0), &json!("PreemptLowerPriority"))
    );
    assert_eq!(plain["spec"]["tolerations"].as_array().unwrap().len(), 2);
    let critical = pod("critical", json!({"priorityClassName": "system-node-critical"}));
    assert_eq!(api.ok(Verb::Create, PODS, critical).await["spec"]["priority"], 2_000_001_000);
    assert_eq!(
        api.refused(Verb::Create, PODS, pod("x", json!({"priorityClassName": "none"}))).await,
        (403, r#"pods "x" is forbidden: no PriorityClass with name none was found"#.into())
    );
    assert_eq!(
        api.refused(Verb::Create, PODS, pod("x", json!({"runtimeClassName": "none"}))).await,
        (403, r#"pods "x" is forbidden: pod rejected: RuntimeClass "none" not found"#.into())
    );
    let classes = "node.k8s.io/v1/runtimeclasses";
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata",
        "overhead": {"podFixed": {"cpu": "100m"}}, "scheduling": {"nodeSelector": {"kata": "yes"}}});
    api.ok(Verb::Create, classes, class).await;
    let made = api.ok(Verb::Create, PODS, pod("kata", json!({"runtimeClassName": "kata"}))).await;
    assert_eq!(
        (&made["spec"]["overhead"], &made["spec"]["nodeSelector"]),
        (&json!({"cpu": "100m"}), &json!({"kata": "yes"}))
    );
    let clash = pod("x", json!({"runtimeClassName": "kata", "nodeSelector": {"kata": "no"}}));
    let (code, message) = api.refused(Verb::Create, PODS, clash).await;
    assert_eq!(code, 403);
    assert!(message.ends_with(
        "conflict: runtimeClass.scheduling.nodeSelector[kata] = yes; pod.spec.nodeSelector[kata] = no"
    ));
    api.ok(Verb::Delete, &format!("{classes}/kata"), Value::Null).await;
    assert_eq!(api.refused(Verb::Create, PODS, pod("y", json!({"runtimeClassName": "kata"}))).await.0, 403);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_one_default_priority() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let classes = "scheduling.k8s.io/v1/priorityclasses";
    let class = |name: &str| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": name}, "value": 7, "globalDefault": true})
    };
    api.ok(Verb::Create, classes, class("a")).await;
    assert_eq!(
        api.refused(Verb::Create, classes, class("b")).await,
        (403, r#"priorityclasses.scheduling.k8s.io "b" is forbidden: PriorityClass a is already marked as default. Only one default can exist"#.into())
    );
    let made = api.ok(Verb::Create, PODS, pod("p", json!({}))).await;
    assert_eq!((&made["spec"]["priority"], &made["spec"]["priorityClassName"]), (&json!(7), &json!("a")));
    cluster.stop().await;
}

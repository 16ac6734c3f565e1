//! Tests of load balancers outside of the cluster: a service's life over a cloud in memory.

use super::*;
use crate::{
    cloud_provider::fake::FakeCloud,
    testing::{now, observed, prepared, snapshot, text},
};
use expect_test::expect;

fn service(more: Value) -> Value {
    let mut service = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
        "spec": {"type": "LoadBalancer", "ports": [{"protocol": "TCP", "port": 80}]},
    });
    for (path, value) in more.as_object().unwrap() {
        let (section, field) = path.split_once('.').unwrap();
        service[section][field] = value.clone();
    }
    service
}

fn protected(more: Value) -> Value {
    let mut service = service(more);
    service["metadata"]["finalizers"] = json!(["mine", FINALIZER]);
    service
}

fn node(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}})
}

/// A controller that has come to know a service's load balancer.
struct Loop {
    cloud: FakeCloud,
    outside: Outside,
    nodes: Vec<Value>,
}

impl Loop {
    fn new() -> Loop {
        let cloud = FakeCloud::default();
        let outside = Outside::new(Arc::new(cloud.clone()), "kubernetes".into());
        let excluded = json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""});
        Loop { cloud, outside, nodes: vec![node("a", json!({})), node("b", excluded)] }
    }

    async fn plan(&self, service: Option<Value>) -> Plan {
        let view =
            View::default().with(snapshot::<Service>(service)).with(snapshot::<Node>(self.nodes.clone()));
        prepared(&self.outside, &view, "ns", "web").await
    }

    /// The calls, and the plan after them.
    async fn turn(&self, service: Option<Value>) -> String {
        let plan = self.plan(service).await;
        format!("{}{}", self.cloud.calls(), text(&plan))
    }
}

fn shown() -> Value {
    json!({"status.loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}})
}

#[tokio::test]
async fn a_service_is_protected_then_balanced() {
    let turns = Loop::new();
    expect![[r#"
        merge /api/v1/namespaces/ns/services/web/status {"metadata":{"finalizers":["service.kubernetes.io/load-balancer-cleanup"],"resourceVersion":"7","uid":"u"}}
    "#]].assert_eq(&turns.turn(Some(service(json!({})))).await);
    expect![[r#"
        ensure ns/web a
        merge /api/v1/namespaces/ns/services/web/status {"metadata":{"resourceVersion":"7","uid":"u"},"status":{"loadBalancer":{"ingress":[{"hostname":"lb.example.com"}]}}}
        event: Normal EnsuringLoadBalancer: Ensuring load balancer
        event: Normal EnsuredLoadBalancer: Ensured load balancer
    "#]].assert_eq(&turns.turn(Some(protected(json!({})))).await);
    // The write may fail: the addresses are written until they are shown, without another call.
    expect![[r#"
        merge /api/v1/namespaces/ns/services/web/status {"metadata":{"resourceVersion":"7","uid":"u"},"status":{"loadBalancer":{"ingress":[{"hostname":"lb.example.com"}]}}}
    "#]].assert_eq(&turns.turn(Some(protected(json!({})))).await);
    assert_eq!(turns.turn(Some(protected(shown()))).await, "");
    let class = json!({"spec.loadBalancerClass": "example.com/mine"});
    assert_eq!(Loop::new().turn(Some(service(class))).await, "");
}

#[tokio::test]
async fn what_changes_is_ensured_or_updated() {
    let mut turns = Loop::new();
    turns.turn(Some(protected(shown()))).await;
    assert_eq!(turns.turn(Some(protected(shown()))).await, "");
    turns.nodes.push(node("c", json!({})));
    expect![[r#"
        update ns/web a,c
        event: Normal UpdatedLoadBalancer: Updated load balancer with new hosts
    "#]]
    .assert_eq(&turns.turn(Some(protected(shown()))).await);
    turns.nodes.clear();
    expect![[r#"
        update ns/web 
        event: Warning UnAvailableLoadBalancer: There are no available nodes for LoadBalancer
    "#]]
    .assert_eq(&turns.turn(Some(protected(shown()))).await);
    let mut changed = protected(shown());
    changed["spec"]["ports"][0]["port"] = 81.into();
    expect![[r#"
        ensure ns/web 
        event: Normal EnsuringLoadBalancer: Ensuring load balancer
        event: Warning UnAvailableLoadBalancer: There are no available nodes for LoadBalancer
        event: Normal EnsuredLoadBalancer: Ensured load balancer
    "#]]
    .assert_eq(&turns.turn(Some(changed)).await);
}

#[tokio::test(start_paused = true)]
async fn updates_of_hosts_are_counted() {
    let mut turns = Loop::new();
    let mut counted = observed(&turns.plan(Some(protected(shown()))).await);
    turns.nodes.push(node("c", json!({})));
    counted += &observed(&turns.plan(Some(protected(shown()))).await);
    turns.cloud.lock().failures.insert("update", CloudError::Failed("busy".into()));
    turns.nodes.clear();
    counted += "--\n";
    counted += &observed(&turns.plan(Some(protected(shown()))).await);
    expect![[r#"
        decided: service_controller_loadbalancer_sync_total = 1
        decided: service_controller_update_loadbalancer_host_latency_seconds = 0
        --
        decided: service_controller_loadbalancer_sync_total = 1
        decided: service_controller_update_loadbalancer_host_latency_seconds = 0
        decided: service_controller_nodesync_error_total = 1
    "#]]
    .assert_eq(&counted);
}

#[tokio::test]
async fn failed_calls_are_repeated_later_and_later() {
    let mut turns = Loop::new();
    turns.cloud.lock().failures.insert("ensure", CloudError::Failed("quota".into()));
    expect![[r#"
        ensure ns/web a
        event: Normal EnsuringLoadBalancer: Ensuring load balancer
        event: Warning SyncLoadBalancerFailed: Error syncing load balancer: failed to ensure load balancer: quota
        again after 5s
    "#]].assert_eq(&turns.turn(Some(protected(json!({})))).await);
    assert!(turns.turn(Some(protected(json!({})))).await.contains("again after 10s"));
    let later = CloudError::TryLater { reason: "busy".into(), wait: Duration::from_secs(7) };
    turns.cloud.lock().failures.insert("ensure", later);
    assert!(turns.turn(Some(protected(json!({})))).await.ends_with("again after 7s\n"));
    turns.cloud.lock().failures.clear();
    assert!(turns.turn(Some(protected(shown()))).await.starts_with("ensure ns/web a\n"));
    turns.cloud.lock().failures.insert("update", CloudError::Failed("busy".into()));
    turns.nodes.push(node("c", json!({})));
    expect![[r#"
        update ns/web a,c
        get ns/web
        event: Warning UpdateLoadBalancerFailed: Error updating load balancer with new hosts [a c] [node names limited, total number of nodes: 2], error: busy
        again after 5s
    "#]].assert_eq(&turns.turn(Some(protected(shown()))).await);
    assert!(turns.turn(Some(protected(shown()))).await.starts_with("ensure ns/web a,c\n"));
    turns.cloud.lock().failures.insert("ensure", CloudError::ImplementedByAnother);
    let mut changed = protected(shown());
    changed["spec"]["ports"][0]["port"] = 81.into();
    assert!(!turns.turn(Some(changed.clone())).await.contains("again"));
    assert_eq!(turns.turn(Some(changed)).await, "");
}

#[tokio::test]
async fn a_deleted_service_loses_its_load_balancer_before_the_finalizer() {
    let turns = Loop::new();
    turns.turn(Some(protected(shown()))).await;
    let deleted = || {
        let mut service = protected(shown());
        service["metadata"]["deletionTimestamp"] = now().to_string().into();
        service
    };
    turns.cloud.lock().failures.insert("ensure_deleted", CloudError::Failed("busy".into()));
    expect![[r#"
        get ns/web
        ensure_deleted ns/web
        event: Warning SyncLoadBalancerFailed: Error syncing load balancer: failed to delete load balancer: busy
        again after 5s
    "#]].assert_eq(&turns.turn(Some(deleted())).await);
    turns.cloud.lock().failures.clear();
    expect![[r#"
        get ns/web
        ensure_deleted ns/web
        merge /api/v1/namespaces/ns/services/web/status {"metadata":{"finalizers":["mine"],"resourceVersion":"7","uid":"u"},"status":{"loadBalancer":{"ingress":null}}}
            ok: Normal DeletedLoadBalancer: Deleted load balancer
        event: Normal DeletingLoadBalancer: Deleting load balancer
    "#]].assert_eq(&turns.turn(Some(deleted())).await);
    // Another process has begun this; or the write failed.
    expect![[r#"
        get ns/web
        merge /api/v1/namespaces/ns/services/web/status {"metadata":{"finalizers":["mine"],"resourceVersion":"7","uid":"u"},"status":{"loadBalancer":{"ingress":null}}}
            ok: Normal DeletedLoadBalancer: Deleted load balancer
    "#]].assert_eq(&Loop::new().turn(Some(deleted())).await);
    assert_eq!(turns.turn(None).await, "");
}

#[tokio::test]
async fn a_service_of_another_type_loses_its_load_balancer() {
    let turns = Loop::new();
    turns.turn(Some(protected(shown()))).await;
    let other = protected(json!({"spec.type": "ClusterIP"}));
    expect![[r#"
        get ns/web
        ensure_deleted ns/web
        merge /api/v1/namespaces/ns/services/web/status {"metadata":{"finalizers":["mine"],"resourceVersion":"7","uid":"u"},"status":{"loadBalancer":{"ingress":null}}}
            ok: Normal DeletedLoadBalancer: Deleted load balancer
        event: Normal DeletingLoadBalancer: Deleting load balancer
    "#]].assert_eq(&turns.turn(Some(other)).await);
    assert!(turns.cloud.lock().balancers.is_empty());
}

#[tokio::test]
async fn a_service_that_was_replaced_has_a_load_balancer_of_its_own() {
    let turns = Loop::new();
    turns.turn(Some(protected(shown()))).await;
    let other = || service(json!({"metadata.uid": "v"}));
    expect![[r#"
        ensure_deleted ns/web
        event: Normal DeletingLoadBalancer: Deleting load balancer
        event: Normal DeletedLoadBalancer: Deleted load balancer
        again after 1ms
    "#]]
    .assert_eq(&turns.turn(Some(other())).await);
    assert!(turns.turn(Some(other())).await.contains(FINALIZER));
}

//! Tests of the route controller over a cloud in memory.

use super::*;
use crate::{
    cloud_provider::fake::FakeCloud,
    node_ipam::MaskSizes,
    testing::{observed, prepared, snapshot, text},
};
use expect_test::expect;
use serde_json::Value;

fn node(name: &str, cidrs: &[&str], condition: Option<bool>) -> Value {
    let conditions: Vec<Value> = condition
        .iter()
        .map(|complete| {
            let (status, reason, _) = texts(*complete);
            json!({"type": CONDITION, "status": status, "reason": reason})
        })
        .collect();
    json!({
        "metadata": {"name": name, "uid": format!("u-{name}")},
        "spec": {"podCIDRs": cidrs},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}], "conditions": conditions},
    })
}

fn route(node: &str, destination: &str) -> Route {
    Route { target_node: node.into(), destination: destination.into(), ..Route::default() }
}

/// The calls of a look, and the plan after it.
async fn look(cloud: &FakeCloud, nodes: &[Value]) -> String {
    let ranges = NodeRanges::new(&["10.244.0.0/16"], MaskSizes::default(), &[]).unwrap();
    let loops = CloudLoops::default();
    let routes = NodeRoutes { cloud: Arc::new(cloud.clone()), ranges, loops, looked: Mutex::default() };
    let view = View::default().with(snapshot::<Node>(nodes.to_vec()));
    let plan = prepared(&routes, &view, "", "").await;
    format!("{}{}", cloud.calls(), text(&plan))
}

#[tokio::test]
async fn nodes_get_routes_and_their_condition() {
    let cloud = FakeCloud::default();
    let nodes = [node("a", &["10.244.1.0/24"], None), node("b", &[], None)];
    expect![[r#"
        list kubernetes
        create kubernetes: 10.244.1.0/24 to a
        strategic /api/v1/nodes/a/status {"metadata":{"uid":"u-a"},"status":{"conditions":[{"lastHeartbeatTime":"2025-01-01T12:00:00Z","lastTransitionTime":"2025-01-01T12:00:00Z","message":"RouteController created a route","reason":"RouteCreated","status":"False","type":"NetworkUnavailable"}]}}
        again after 10s
    "#]].assert_eq(&look(&cloud, &nodes).await);
    let settled = [node("a", &["10.244.1.0/24"], Some(true)), node("b", &[], None)];
    assert_eq!(look(&cloud, &settled).await, "list kubernetes\nagain after 10s\n");
}

#[tokio::test]
async fn looks_are_counted() {
    let ranges = NodeRanges::new(&["10.244.0.0/16"], MaskSizes::default(), &[]).unwrap();
    let cloud = Arc::new(FakeCloud::default());
    let routes = NodeRoutes { cloud, ranges, loops: CloudLoops::default(), looked: Mutex::default() };
    let view = View::default().with(snapshot::<Node>([]));
    let plan = prepared(&routes, &view, "", "").await;
    assert_eq!(observed(&plan), "decided: route_controller_route_sync_total = 1\n");
}

#[tokio::test]
async fn routes_of_others_stay_and_unused_ones_go() {
    let cloud = FakeCloud::default();
    let blackhole = Route { blackhole: true, ..route("", "10.244.8.0/24") };
    cloud.lock().routes = vec![
        route("a", "10.244.1.0/24"),
        route("a", "10.244.2.0/24"),
        route("gone", "10.244.3.0/24"),
        route("", "192.168.0.0/24"),
        route("", "no range"),
        blackhole,
    ];
    expect![[r#"
        list kubernetes
        delete kubernetes: 10.244.2.0/24 to a
        delete kubernetes: 10.244.3.0/24 to gone
        delete kubernetes: 10.244.8.0/24 to 
        again after 10s
    "#]]
    .assert_eq(&look(&cloud, &[node("a", &["10.244.1.0/24"], Some(true))]).await);
}

#[tokio::test]
async fn a_failed_route_leaves_the_node_without_a_network() {
    let cloud = FakeCloud::default();
    cloud.lock().failures.insert("create", CloudError::Failed("quota".into()));
    let text = look(&cloud, &[node("a", &["10.244.1.0/24", "fd00::/64"], Some(true))]).await;
    assert!(text.contains(r#""status":"True","type":"NetworkUnavailable""#), "{text}");
    assert!(
        text.contains(
            "event: Warning FailedToCreateRoute: Could not create route u-a 10.244.1.0/24 for node a after"
        ),
        "{text}"
    );
    let shown = look(&cloud, &[node("a", &["10.244.1.0/24"], Some(false))]).await;
    assert!(!shown.contains("strategic"), "{shown}");
    cloud.lock().failures.insert("list", CloudError::Failed("no connection".into()));
    let nothing = look(&cloud, &[node("a", &["10.244.1.0/24"], None)]).await;
    assert_eq!(nothing, "list kubernetes\nagain after 10s\n", "nothing is known of the routes");
}

#[tokio::test]
async fn routes_follow_the_addresses_of_their_nodes() {
    let cloud = FakeCloud::default();
    let old = NodeAddress { kind: "InternalIP".into(), address: "10.0.0.9".into() };
    let follows =
        Route { follows_addresses: true, target_addresses: vec![old], ..route("a", "10.244.1.0/24") };
    cloud.lock().routes = vec![follows];
    expect![[r#"
        list kubernetes
        delete kubernetes: 10.244.1.0/24 to a
        create kubernetes: 10.244.1.0/24 to a
        again after 10s
    "#]]
    .assert_eq(&look(&cloud, &[node("a", &["10.244.1.0/24"], Some(true))]).await);
}

#[tokio::test]
async fn a_node_that_lost_its_range_has_no_network() {
    let cloud = FakeCloud::default();
    cloud.lock().routes = vec![route("a", "10.244.1.0/24")];
    let text = look(&cloud, &[node("a", &[], Some(true))]).await;
    assert!(
        text.contains("delete kubernetes: 10.244.1.0/24 to a") && text.contains("NoRouteCreated"),
        "{text}"
    );
}

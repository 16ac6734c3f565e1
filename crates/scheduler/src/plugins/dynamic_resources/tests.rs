//! Decisions about pods with claims of devices, and what they keep from later ones.

use super::*;
use crate::{
    schedule_one::Decision,
    testing::{self, Cluster},
};
use expect_test::expect;

fn pod(name: &str, claims: &[&str]) -> Value {
    let claims: Vec<Value> =
        claims.iter().map(|claim| json!({"name": claim, "resourceClaimName": claim})).collect();
    json!({"name": name, "spec": {"resourceClaims": claims, "containers": [{"name": "c"}]}})
}

fn claim(name: &str, request: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "d", "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"devices": {"requests": [request]}}})
}

fn exactly(count: i64) -> Value {
    json!({"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}})
}

fn slice(node: &str, devices: &[&str]) -> Value {
    let devices: Vec<Value> = devices.iter().map(|name| json!({"name": name})).collect();
    json!({"metadata": {"name": node}, "spec": {"driver": "d.io", "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
}

/// Nodes `a` with one device, `b` with two and `c` with none.
fn cluster(claims: Vec<Value>) -> Cluster {
    Cluster::new(&["a", "b", "c"].map(|name| json!({"name": name})))
        .with::<DeviceClass>(vec![
            json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "ex.io/gpu"}}),
        ])
        .with::<ResourceSlice>(vec![slice("a", &["x"]), slice("b", &["y", "z"])])
        .with::<ResourceClaim>(claims)
}

#[test]
fn pods_go_where_the_devices_are() {
    let mut other = exactly(1);
    other["exactly"]["deviceClassName"] = json!("nope");
    let mut on_c = claim("on-c", exactly(1));
    let only = json!({"key": "metadata.name", "operator": "In", "values": ["c"]});
    on_c["status"] = json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [only]}]}},
        "reservedFor": [{"resource": "pods", "name": "x", "uid": "x"}]});
    let claims = vec![
        claim("one", exactly(1)),
        claim("two", exactly(2)),
        claim("three", exactly(3)),
        claim("other", other),
        on_c,
    ];
    let mut cluster = cluster(claims);
    let mut all = vec![];
    for claims in
        [&["two"][..], &["three"], &["other"], &["on-c"], &["on-c", "one"], &["missing"], &["one", "two"]]
    {
        all.push(format!("{claims:?}: {}", cluster.show(&pod("p", claims))));
    }
    expect![[r#"
        ["two"]: -> b
        ["three"]: 0/3 nodes are available: 3 cannot allocate all claims. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.
        ["other"]: 0/3 nodes are available: request r: device class nope does not exist. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.
        ["on-c"]: -> c
        ["on-c", "one"]: 0/3 nodes are available: 1 cannot allocate all claims, 2 resourceclaim not available on the node. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.
        ["missing"]: 0/3 nodes are available: could not find ResourceClaim "d/missing". preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.
        ["one", "two"]: 0/3 nodes are available: 3 cannot allocate all claims. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."#]]
    .assert_eq(&all.join("\n"));
    assert_eq!(
        cluster.show(&json!({"name": "large", "cpu": "100"})).split(". ").nth(1),
        Some("preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.")
    );
}

#[test]
fn what_is_reserved_counts_until_it_is_unreserved() {
    let mut cluster = cluster(vec![claim("x", exactly(2)), claim("y", exactly(2)), claim("z", exactly(1))]);
    let (node, mut state) = cluster.reserve(&pod("first", &["x"])).unwrap();
    assert_eq!(node, "b");
    assert!(cluster.show(&pod("second", &["y"])).contains("3 cannot allocate all claims"));
    assert!(
        cluster
            .show(&pod("third", &["x"]))
            .contains("resource claim d/x is in the process of being allocated")
    );
    assert_eq!(cluster.show(&pod("fourth", &["z"])), "-> a");
    let first = testing::pod(&pod("first", &["x"]));
    cluster.profiles[0].unreserve(&first, &mut state, &node);
    assert_eq!(cluster.show(&pod("second", &["y"])), "-> b");
}

#[test]
fn what_claims_have_counts() {
    let mut taken = claim("x", exactly(1));
    let result = json!({"request": "r", "driver": "d.io", "pool": "b", "device": "y"});
    taken["status"] = json!({"allocation": {"devices": {"results": [result]}}});
    let mut cluster = cluster(vec![taken, claim("y", exactly(2)), claim("z", exactly(1))]);
    assert!(cluster.show(&pod("p", &["y"])).contains("3 cannot allocate all claims"));
    // It is free again.
    cluster = cluster.with::<ResourceClaim>(vec![claim("x", exactly(1)), claim("y", exactly(2))]);
    assert_eq!(cluster.show(&pod("p", &["y"])), "-> b");
}

#[test]
fn allocations_that_are_of_no_use_are_taken_back() {
    let mut unreached = claim("x", exactly(1));
    let only = json!({"key": "metadata.name", "operator": "In", "values": ["gone"]});
    unreached["status"] =
        json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [only]}]}}});
    let mut cluster = cluster(vec![unreached.clone()]);
    let Decision::Unschedulable(why) = cluster.decide(&testing::pod(&pod("p", &["x"]))) else { panic!() };
    assert!(why.message.contains("deallocation of ResourceClaim completed, preemption:"), "{}", why.message);
    expect![[r#"[Patch { target: Target { group: "resource.k8s.io", version: "v1", resource: "resourceclaims", namespace: "d", name: "x", subresource: "status" }, kind: Merge, body: Object {"metadata": Object {"resourceVersion": String("1"), "uid": String("uid-x")}, "status": Object {"allocation": Null, "devices": Null, "reservedFor": Null}} }]"#]].assert_eq(&format!("{:?}", why.writes));
    unreached["status"]["reservedFor"] = json!([{"resource": "pods", "name": "q", "uid": "q"}]);
    cluster = cluster.with::<ResourceClaim>(vec![unreached]);
    let Decision::Unschedulable(why) = cluster.decide(&testing::pod(&pod("p", &["x"]))) else { panic!() };
    assert!(why.writes.is_empty());
}

#[test]
fn better_alternatives_are_preferred() {
    let either = json!({"name": "r", "firstAvailable": [
        {"name": "two", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2},
        {"name": "one", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}]});
    let mut cluster = cluster(vec![claim("x", either)]);
    assert_eq!(cluster.show(&pod("p", &["x"])), "-> b");
}

#[test]
fn extended_resources_become_a_claim() {
    let container = |name: &str, amount: &str| json!({"name": name, "resources": {"requests": {"cpu": "1m", "ex.io/gpu": amount}}});
    let mut cluster = cluster(vec![]);
    let value = json!({"name": "p", "spec": {"initContainers": [container("init", "2")], "containers": [container("one", "1")]}});
    let (node, state) = cluster.reserve(&value).unwrap();
    assert_eq!(node, "b");
    let reserved = state.get::<Reserved>().unwrap();
    let (wanted, allocation) = reserved.extended.as_ref().unwrap();
    let shown = format!(
        "{}\n{}\n{}",
        wanted.body(&testing::pod(&value).pod),
        json!(wanted.mappings),
        json!(allocation.devices.results)
    );
    expect![[r#"
        {"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"annotations":{"resource.kubernetes.io/extended-resource-claim":"true"},"finalizers":["resource.kubernetes.io/delete-protection"],"generateName":"p-extended-resources-","namespace":"d","ownerReferences":[{"apiVersion":"v1","controller":true,"kind":"Pod","name":"p","uid":"p"}]},"spec":{"devices":{"requests":[{"exactly":{"allocationMode":"ExactCount","count":1,"deviceClassName":"gpu"},"name":"container-0-request-1"},{"exactly":{"allocationMode":"ExactCount","count":1,"deviceClassName":"gpu"},"name":"container-1-request-1"}]}}}
        [{"containerName":"one","requestName":"container-1-request-1","resourceName":"ex.io/gpu"},{"containerName":"init","requestName":"container-1-request-1","resourceName":"ex.io/gpu"},{"containerName":"init","requestName":"container-0-request-1","resourceName":"ex.io/gpu"}]
        [{"device":"y","driver":"d.io","pool":"b","request":"container-0-request-1"},{"device":"z","driver":"d.io","pool":"b","request":"container-1-request-1"}]"#]].assert_eq(&shown);
    // What is reserved counts; a node with a device plug-in needs none.
    assert!(cluster.show(&value).contains("cannot allocate all claims"));
    let node = testing::node(&json!({"name": "d", "allocatable": {"ex.io/gpu": "4"}}));
    cluster.cache.set_node("d", Some(node));
    assert_eq!(cluster.show(&value), "-> d");
}

#[test]
fn devices_that_need_preparation_are_waited_for() {
    let mut value = claim("x", exactly(1));
    let result = json!({"request": "r", "driver": "d.io", "pool": "b", "device": "y",
        "bindingConditions": ["Attached"], "bindingFailureConditions": ["Failed"]});
    value["status"] = json!({"allocation": {"devices": {"results": [result]}, "allocationTimestamp": "2026-01-01T00:00:00Z"}});
    let of = |value: &Value| serde_json::from_value::<ResourceClaim>(value.clone()).unwrap();
    assert_eq!(claims::ready_for_binding(&of(&value)), Ok(false));
    let timeout = Duration::from_secs(600);
    let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
    assert!(!claims::binding_timed_out(&of(&value), timeout, at("2026-01-01T00:09:00Z")));
    assert!(claims::binding_timed_out(&of(&value), timeout, at("2026-01-01T00:11:00Z")));
    let state = |kind: &str| json!([{"driver": "d.io", "pool": "b", "device": "y", "conditions": [{"type": kind, "status": "True", "reason": "R", "message": "m"}]}]);
    value["status"]["devices"] = state("Attached");
    assert_eq!(claims::ready_for_binding(&of(&value)), Ok(true));
    value["status"]["devices"] = state("Failed");
    assert_eq!(
        claims::ready_for_binding(&of(&value)),
        Err("device binding failed: claim=x, reason=R, message=\"m\"".to_owned())
    );
}

#[test]
fn a_claim_that_is_gone_with_its_devices_wakes_every_pod() {
    use crate::framework::Change;
    use std::any::Any;
    let waiting = testing::pod(&pod("p", &["other"]));
    let wakes = |status: Value| {
        let mut gone = claim("gone", exactly(1));
        gone["status"] = status;
        let gone: Arc<dyn Any + Send + Sync> =
            Arc::new(serde_json::from_value::<ResourceClaim>(gone).unwrap());
        let resource = Resource::Other(ResourceClaim::RESOURCE);
        let event = Event { resource, actions: Actions::DELETE, change: Change::Other(Some(gone), None) };
        claim_changed(&waiting, &event) == Hint::Queue
    };
    assert!(wakes(json!({"allocation": {}})) && !wakes(json!({})));
}

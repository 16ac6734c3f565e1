//! Filters and scores by resources.

use crate::testing::Cluster;
use serde_json::{Value, json};

fn cluster() -> Cluster {
    Cluster::new(&[
        json!({"name": "a", "allocatable": {"cpu": "1", "pods": "1", "example.com/gpu": "1"}}),
        json!({"name": "b", "allocatable": {"cpu": "2"}}),
    ])
    .with_pods(&[json!({"name": "x", "node": "a", "cpu": "900m"})])
}

#[test]
fn reports_missing_resources_as_upstream() {
    let gpu = |count: &str| {
        json!({"name": "p", "spec": {"containers": [
            {"resources": {"requests": {"cpu": "200m", "example.com/gpu": count}}}]}})
    };
    let lines = [
        cluster().show(&json!({"name": "p", "cpu": "1500m"})),
        cluster().show(&json!({"name": "p", "cpu": "3"})),
        cluster().show(&gpu("1")),
        cluster().show(&json!({"name": "p", "spec": {"overhead": {"memory": "9Gi"}}})),
        Cluster::new(&[json!({"name": "a", "allocatable": {"pods": "0"}})]).show(&json!({"name": "p"})),
    ];
    expect_test::expect![[r#"
        -> b
        0/2 nodes are available: 1 Too many pods, 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/gpu, 1 Too many pods. preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.
        0/2 nodes are available: 1 Too many pods, 2 Insufficient memory. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        0/1 nodes are available: 1 Too many pods. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn scores_by_strategy_without_counting_pods() {
    let nodes =
        [json!({"name": "a", "allocatable": {"pods": "10"}}), json!({"name": "b"}), json!({"name": "c"})];
    let pods = [
        json!({"name": "x", "node": "a", "spec": {"containers": []}}),
        json!({"name": "y", "node": "b", "cpu": "1"}),
        json!({"name": "z", "node": "c", "cpu": "3"}),
    ];
    let pod = json!({"name": "p", "cpu": "1"});
    let scores = |args: Value| {
        let mut cluster = Cluster::new(&nodes).with_pods(&pods);
        let points = (super::PLUGIN.build)(&args);
        for plugin in &mut cluster.profiles[0].plugins {
            if plugin.points.plugin.name() == super::PLUGIN.name {
                plugin.points = points.clone();
            }
        }
        cluster.scores(super::PLUGIN.name, &pod)
    };
    let shape = json!([{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]);
    let ratio = json!({"scoringStrategy": {"type": "RequestedToCapacityRatio",
        "resources": [{"name": "cpu", "weight": 1}], "requestedToCapacityRatio": {"shape": shape}}});
    let lines = [
        scores(Value::Null),
        scores(
            json!({"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}}),
        ),
        scores(ratio),
    ];
    expect_test::expect![[r#"
        a=86 b=72 c=47
        a=25 b=50 c=100
        a=25 b=50 c=100"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn fills_equal_nodes_evenly_up_to_their_capacity() {
    let node = |name: &str| json!({"name": name, "allocatable": {"pods": "10"}});
    let mut cluster = Cluster::new(&[node("a"), node("b")]);
    for i in 0..20 {
        cluster.place(&json!({"name": format!("p{i}")})).unwrap();
    }
    let used: Vec<usize> = cluster.cache.snapshot().nodes().map(|n| n.pods.len()).collect();
    assert_eq!(used, [10, 10]);
    let text = cluster.show(&json!({"name": "last"}));
    assert!(text.starts_with("0/2 nodes are available: 2 Too many pods."), "{text}");
}

#[test]
fn reserving_and_unreserving_changes_nothing() {
    let mut cluster = cluster();
    let before: Vec<_> = cluster.cache.snapshot().nodes().cloned().collect();
    let pod = crate::testing::pod(&json!({"name": "p", "spec": {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        "containers": [{"ports": [{"hostPort": 80}], "resources": {"requests": {"cpu": "1", "example.com/gpu": "1"}}}],
    }}));
    cluster.cache.assume(&pod, "b");
    assert_ne!(cluster.cache.snapshot().node("b").unwrap().requested, before[1].requested);
    cluster.cache.forget(&pod.key(), pod.uid());
    let after: Vec<_> = cluster.cache.snapshot().nodes().cloned().collect();
    assert_eq!(before, after);
}

#[test]
fn a_class_of_devices_wakes_the_pods_that_it_may_help() {
    use crate::framework::{Actions, Change, Event, Hint, Resource};
    use kaji_runtime::{Projection, objects::DeviceClass};
    use std::{any::Any, sync::Arc};
    let class = |name: Option<&str>| -> Arc<dyn Any + Send + Sync> {
        let class = json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": name}});
        Arc::new(serde_json::from_value::<DeviceClass>(class).unwrap())
    };
    let gpu = "example.com/gpu";
    let hints = |wanted: &str, old: Option<Option<&str>>, new: Option<&str>| {
        let pod = crate::testing::pod(&json!({"name": "p", "spec": {"containers": [
            {"resources": {"requests": {wanted: "1"}}}]}}));
        let event = Event {
            resource: Resource::Other(DeviceClass::RESOURCE),
            actions: if old.is_some() { Actions::UPDATE } else { Actions::ADD },
            change: Change::Other(old.map(class), Some(class(new))),
        };
        super::stands_for_what_is_wanted(&pod, &event) == Hint::Queue
    };
    assert!(hints(gpu, None, Some(gpu)));
    assert!(!hints("example.com/other", None, Some(gpu)));
    assert!(hints(gpu, Some(None), Some(gpu)));
    assert!(!hints(gpu, Some(Some(gpu)), Some(gpu)));
    assert!(!hints(gpu, None, None));
    assert!(hints("deviceclass.resource.kubernetes.io/c", None, None));
    assert!(!hints("deviceclass.resource.kubernetes.io/c", Some(None), Some(gpu)));
    assert!(!hints("cpu", None, Some(gpu)));
}

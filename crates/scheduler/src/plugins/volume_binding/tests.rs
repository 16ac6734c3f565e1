//! Decisions about pods with claims, as text; and what reservations do to later decisions.

use super::*;
use crate::{
    configuration::Configuration,
    testing::{self, Cluster},
};
use expect_test::expect;
use serde_json::json;

fn claim(name: &str, more: &Value) -> Value {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": "5"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    });
    for part in ["metadata", "spec", "status"] {
        for (field, value) in more[part].as_object().into_iter().flatten() {
            claim[part][field] = value.clone();
        }
    }
    claim
}

fn of_class(name: &str, class: &str) -> Value {
    claim(name, &json!({"spec": {"storageClassName": class}}))
}

fn bound(name: &str, volume: &str) -> Value {
    claim(
        name,
        &json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": volume}}),
    )
}

fn volume(name: &str, class: &str, node: &str, size: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": "6"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "storageClassName": class,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]}]}}},
        "status": {"phase": "Available"},
    })
}

fn cluster(claims: Vec<Value>) -> Cluster {
    let node = |name: &str| json!({"name": name, "labels": {"host": name}});
    let class = |name: &str, mode: &str, provisioner: &str| json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
    let late = "WaitForFirstConsumer";
    let mut topology = class("topology", late, "csi.example.com");
    topology["allowedTopologies"] = json!([{"matchLabelExpressions": [{"key": "host", "values": ["b"]}]}]);
    let capacity = json!({"metadata": {"name": "c", "namespace": "x"}, "storageClassName": "full", "capacity": "1Mi",
        "nodeTopology": {}});
    Cluster::new(&[node("a"), node("b")])
        .with::<StorageClass>(vec![
            class("hand", late, "kubernetes.io/no-provisioner"),
            class("made", late, "csi.example.com"),
            class("now", "Immediate", "csi.example.com"),
            class("full", late, "full.example.com"),
            topology,
        ])
        .with::<PersistentVolume>(vec![
            volume("v-a", "hand", "a", "1Gi"),
            volume("v-b", "hand", "b", "9Gi"),
            volume("w-b", "other", "b", "1Gi"),
        ])
        .with::<CsiDriver>(vec![
            json!({"metadata": {"name": "full.example.com"}, "spec": {"storageCapacity": true}}),
        ])
        .with::<CsiStorageCapacity>(vec![capacity])
        .with::<PersistentVolumeClaim>(claims)
}

fn pod(name: &str, claims: &[&str]) -> Value {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    json!({"name": name, "spec": {"volumes": volumes}})
}

#[test]
fn decides_by_volumes() {
    let mut large = of_class("large", "hand");
    large["spec"]["resources"]["requests"]["storage"] = "5Gi".into();
    let mut chosen = of_class("chosen", "made");
    chosen["metadata"]["annotations"] = json!({SELECTED: "b"});
    let lost = claim("lost", &json!({"spec": {"volumeName": "gone"}, "status": {"phase": "Lost"}}));
    let mut cluster = cluster(vec![
        bound("on-b", "w-b"),
        bound("missing", "nothing"),
        of_class("now", "now"),
        of_class("large", "hand"),
        large,
        of_class("x", "hand"),
        of_class("y", "hand"),
        of_class("z", "hand"),
        of_class("made", "made"),
        chosen,
        of_class("topology", "topology"),
        of_class("full", "full"),
        lost,
    ]);
    let cases: [&[&str]; 11] = [
        &["on-b"],
        &["missing"],
        &["now"],
        &["large"],
        &["x", "y"],
        &["chosen"],
        &["topology"],
        &["full"],
        &["lost"],
        &["unknown"],
        &["on-b", "made"],
    ];
    let all: Vec<String> =
        cases.iter().map(|claims| format!("{claims:?}: {}", cluster.show(&pod("p", claims)))).collect();
    expect![[r#"
        ["on-b"]: -> b
        ["missing"]: 0/2 nodes are available: persistentvolume "nothing" not found. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        ["now"]: 0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        ["large"]: -> b
        ["x", "y"]: 0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        ["chosen"]: -> b
        ["topology"]: -> b
        ["full"]: 0/2 nodes are available: 2 node(s) did not have enough free storage. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        ["lost"]: 0/2 nodes are available: persistentvolumeclaim "lost" bound to non-existent persistentvolume "gone". preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        ["unknown"]: 0/2 nodes are available: persistentvolumeclaim "unknown" not found. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        ["on-b", "made"]: -> b"#]].assert_eq(&all.join("\n"));
}

const SELECTED: &str = kaji_runtime::volume_binding::SELECTED_NODE;

#[test]
fn what_is_reserved_counts_until_it_is_unreserved() {
    let mut cluster = cluster(vec![
        of_class("x", "hand"),
        of_class("y", "hand"),
        of_class("z", "hand"),
        of_class("made", "made"),
    ]);
    let (first, mut state) = cluster.reserve(&pod("p", &["x"])).unwrap();
    let (second, _) = cluster.reserve(&pod("q", &["y"])).unwrap();
    assert_ne!(first, second);
    assert!(cluster.reserve(&pod("r", &["z"])).is_none(), "both volumes are reserved");
    // A pod with the same claim goes where the claim's volume is.
    assert_eq!(cluster.reserve(&pod("s", &["x"])).unwrap().0, first);
    let info = testing::pod(&pod("p", &["x"]));
    cluster.profiles[0].unreserve(&info, &mut state, &first);
    assert_eq!(cluster.reserve(&pod("r", &["z"])).unwrap().0, first);
    // A claim that gets a new volume keeps its pods together.
    let made: Vec<String> =
        (0..4).map(|i| cluster.reserve(&pod(&format!("m{i}"), &["made"])).unwrap().0).collect();
    assert!(made.iter().all(|node| *node == made[0]), "{made:?}");
}

#[test]
fn nodes_with_more_free_storage_score_higher_unless_the_shape_says_otherwise() {
    let sized = |name: &str| {
        let mut claim = of_class(name, "full");
        claim["spec"]["resources"]["requests"]["storage"] = "5Gi".into();
        claim
    };
    let capacity = |node: &str, free: &str| {
        json!({"metadata": {"name": node, "namespace": "x"}, "storageClassName": "full", "capacity": free,
            "nodeTopology": {"matchLabels": {"host": node}}})
    };
    let claims = vec![
        sized("one"),
        sized("two"),
        of_class("present", "hand"),
        of_class("made", "made"),
        bound("on-b", "w-b"),
    ];
    let mut cluster =
        cluster(claims).with::<CsiStorageCapacity>(vec![capacity("a", "10Gi"), capacity("b", "100Gi")]);
    let cases: [&[&str]; 6] =
        [&["one"], &["one", "two"], &["present"], &["present", "one"], &["made"], &["on-b"]];
    let mut lines: Vec<String> = cases
        .iter()
        .map(|claims| format!("{claims:?}: {}", cluster.scores(PLUGIN.name, &pod("p", claims))))
        .collect();
    lines.push(cluster.show(&pod("p", &["one", "two"])));
    let points = build(&json!({"shape": [{"utilization": 0}, {"utilization": 100, "score": 10}]}));
    for plugin in &mut cluster.profiles[0].plugins {
        if plugin.points.plugin.name() == PLUGIN.name {
            plugin.points = points.clone();
        }
    }
    lines.push(cluster.scores(PLUGIN.name, &pod("p", &["one"])));
    expect![[r#"
        ["one"]: a=50 b=95
        ["one", "two"]: a=0 b=90
        ["present"]: a=0 b=89
        ["present", "one"]: a=0 b=89
        ["made"]: a=0 b=0
        ["on-b"]: skipped
        -> b
        a=50 b=5"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn the_first_bound_volume_that_is_wrong_is_reported_alone() {
    let mut cluster = cluster(vec![bound("on-b", "w-b"), bound("gone", "nothing")]);
    // Another plugin would reject the pod before for the volume that is gone.
    cluster.profiles[0] = Configuration::parse(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- plugins: {multiPoint: {disabled: [{name: VolumeZone}]}}\n",
        kaji_meta::Features::default(),
    )
    .unwrap()
    .profiles
    .remove(0);
    let lines = [cluster.show(&pod("p", &["on-b", "gone"])), cluster.show(&pod("p", &["gone", "on-b"]))];
    expect![[r#"
        0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, 1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s). preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        0/2 nodes are available: 2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s). preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."#]]
    .assert_eq(&lines.join("\n"));
}

//! Spreading by constraints of pods and by default ones.

use crate::testing::Cluster;
use kaji_runtime::objects::{ReplicaSet, Service};
use proptest::prelude::*;
use serde_json::{Value, json};

fn nodes() -> Vec<Value> {
    let node = |name: &str, zone: &str| json!({"name": name, "labels": {"zone": zone, "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}});
    vec![node("a1", "a"), node("a2", "a"), node("b1", "b"), json!({"name": "x"})]
}

fn constraint(more: Value) -> Value {
    let mut constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "w"}}});
    for (key, value) in more.as_object().unwrap() {
        constraint[key] = value.clone();
    }
    constraint
}

fn pod(name: &str, more: Value) -> Value {
    json!({"name": name, "labels": {"app": "w", "hash": "1"}, "spec": {"topologySpreadConstraints": [constraint(more)]}})
}

fn bound(name: &str, node: &str) -> Value {
    json!({"name": name, "node": node, "labels": {"app": "w"}})
}

#[test]
fn rejects_domains_beyond_the_skew() {
    let show = |pods: &[Value], pod: Value| Cluster::new(&nodes()).with_pods(pods).show(&pod);
    let one = [bound("1", "a1")];
    let mut leaving = bound("1", "a1");
    leaving["deleting"] = json!(true);
    let mut pinned = pod("p", json!({}));
    pinned["spec"]["nodeSelector"] = json!({"zone": "a"});
    let mut ignoring = pod("p", json!({"nodeAffinityPolicy": "Ignore"}));
    ignoring["spec"]["nodeSelector"] = json!({"zone": "a"});
    let lines = [
        show(&one, pod("p", json!({}))),
        show(&[bound("1", "a1"), bound("2", "b1")], pinned.clone()),
        show(&one, pinned),
        show(&one, ignoring),
        show(&one, pod("p", json!({"minDomains": 3}))),
        show(&[bound("1", "a1"), bound("2", "b1")], pod("p", json!({"minDomains": 3}))),
        show(
            &[bound("1", "a1"), bound("2", "b1")],
            pod("p", json!({"minDomains": 3, "matchLabelKeys": ["hash"]})),
        )
        .replace("a2", "a1")
        .replace("b1", "a1"),
        show(&[], pod("p", json!({"topologyKey": "rack"}))),
    ];
    expect_test::expect![[r#"
        -> b1
        -> a2
        -> a2
        0/4 nodes are available: 2 node(s) didn't match Pod's node affinity/selector, 2 node(s) didn't match pod topology spread constraints. preemption: 0/4 nodes are available: 2 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.
        -> b1
        0/4 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label), 3 node(s) didn't match pod topology spread constraints. preemption: 0/4 nodes are available: 1 Preemption is not helpful for scheduling, 3 No preemption victims found for incoming pod.
        -> a1
        0/4 nodes are available: 4 node(s) didn't match pod topology spread constraints (missing required label). preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."#]]
    .assert_eq(&lines.join("\n"));
    assert!(show(&[leaving], pod("p", json!({}))).starts_with("-> "));
}

#[test]
fn honors_taints_only_if_asked() {
    let mut nodes = nodes();
    nodes[2]["spec"] = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
    let show = |pod: Value| Cluster::new(&nodes).with_pods(&[bound("1", "a1")]).show(&pod);
    let lines = [show(pod("p", json!({"nodeTaintsPolicy": "Honor"}))), show(pod("p", json!({})))];
    expect_test::expect![[r#"
        -> a2
        0/4 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label), 1 node(s) had untolerated taint(s), 2 node(s) didn't match pod topology spread constraints. preemption: 0/4 nodes are available: 2 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."#]].assert_eq(&lines.join("\n"));
}

#[test]
fn scores_soft_constraints() {
    let soft = pod("p", json!({"whenUnsatisfiable": "ScheduleAnyway"}));
    let pods = [bound("1", "a1"), bound("2", "a2"), bound("3", "b1")];
    let scores = Cluster::new(&nodes()).with_pods(&pods).scores(super::PLUGIN.name, &soft);
    expect_test::expect!["a1=33 a2=33 b1=100 x=0"].assert_eq(&scores);
}

#[test]
fn pods_of_services_and_replica_sets_spread_by_default() {
    let service = json!({"metadata": {"name": "s", "namespace": "d"}, "spec": {"selector": {"app": "w"}}});
    let set = json!({"metadata": {"name": "r", "namespace": "d"}, "spec": {"selector": {"matchLabels": {"app": "w"}}}});
    let owners =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]);
    let of_service = json!({"name": "p", "labels": {"app": "w"}});
    let of_set = json!({"name": "p", "labels": {"app": "w"}, "owners": owners});
    let pods = [bound("1", "a1"), bound("2", "x")];
    let mut cluster = Cluster::new(&nodes()).with_pods(&pods).with::<Service>(vec![service]);
    let by_service = cluster.scores(super::PLUGIN.name, &of_service);
    let mut cluster = Cluster::new(&nodes()).with_pods(&pods).with::<ReplicaSet>(vec![set.clone()]);
    let by_set = cluster.scores(super::PLUGIN.name, &of_set);
    let of_none = cluster.scores(super::PLUGIN.name, &of_service);
    expect_test::expect![[r#"
        a1=0 a2=11 b1=33 x=100
        a1=0 a2=11 b1=33 x=100
        skipped"#]]
    .assert_eq(&format!("{by_service}\n{by_set}\n{of_none}"));
    // Three replicas come to three empty nodes.
    let labelled = nodes().into_iter().take(3).collect::<Vec<_>>();
    let mut cluster = Cluster::new(&labelled).with::<ReplicaSet>(vec![set]);
    let placed = (0..3).map(|i| {
        let mut pod = of_set.clone();
        pod["name"] = json!(format!("p{i}"));
        cluster.place(&pod).unwrap()
    });
    assert_eq!(placed.collect::<std::collections::BTreeSet<_>>().len(), 3);
}

#[test]
fn a_change_wakes_its_pod_if_it_spreads_differently() {
    use crate::framework::{Event, Hint};
    let with = |mut pod: Value, field: &str, value: Value| {
        pod[field] = value;
        crate::testing::pod(&pod)
    };
    let wakes = |old: &std::sync::Arc<crate::PodInfo>, new: &std::sync::Arc<crate::PodInfo>| {
        let event = Event::of_unscheduled_pod(Some(old.pod.clone()), Some(new.pod.clone())).unwrap();
        super::spreads_differently(new, &event) == Hint::Queue
    };
    let labelled = |labels: Value| with(pod("p", json!({})), "labels", labels);
    assert!(wakes(&labelled(json!({})), &labelled(json!({"app": "w"}))));
    assert!(!wakes(&labelled(json!({"app": "w"})), &labelled(json!({"app": "w", "other": "x"}))));
    let tolerating = |constraint: Value, tolerations: Value| {
        let mut pod = pod("p", constraint);
        pod["spec"]["tolerations"] = tolerations;
        crate::testing::pod(&pod)
    };
    let tolerations = json!([{"key": "k", "operator": "Exists"}]);
    let gains = |constraint: Value| {
        wakes(&tolerating(constraint.clone(), json!([])), &tolerating(constraint, tolerations.clone()))
    };
    assert!(gains(json!({"nodeTaintsPolicy": "Honor"})) && !gains(json!({})));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_skew_is_never_exceeded(zones in prop::collection::vec(0_u8..4, 1..8), pods in 1_usize..30, skew in 1_i64..4) {
        let nodes: Vec<Value> = zones.iter().enumerate()
            .map(|(i, zone)| json!({"name": format!("n{i}"), "labels": {"zone": zone.to_string()}, "allocatable": {"pods": "6"}}))
            .collect();
        let mut cluster = Cluster::new(&nodes);
        let mut counts: std::collections::BTreeMap<u8, i64> = zones.iter().map(|zone| (*zone, 0)).collect();
        for i in 0..pods {
            let placed = cluster.place(&pod(&format!("p{i}"), json!({"maxSkew": skew})));
            let Some(node) = placed else { continue };
            let zone = zones[node[1..].parse::<usize>().unwrap()];
            *counts.get_mut(&zone).unwrap() += 1;
            let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
            prop_assert!(most - least <= skew, "{counts:?}");
        }
    }
}

//! Which pods have to make room, and on which node.

use crate::{
    framework::Nomination,
    schedule_one::Decision,
    testing::{Cluster, pod},
};
use kaji_runtime::objects::PodDisruptionBudget;
use proptest::prelude::*;
use serde_json::{Value, json};

fn nodes(names: &[&str]) -> Vec<Value> {
    names
        .iter()
        .map(|name| json!({"name": name, "labels": {"zone": name}, "allocatable": {"cpu": "2"}}))
        .collect()
}

fn on(name: &str, node: &str, cpu: &str, priority: i64) -> Value {
    json!({"name": name, "node": node, "cpu": cpu, "priority": priority, "labels": {"app": name}})
}

fn preemptor(cpu: &str, priority: i64) -> Value {
    json!({"name": "p", "cpu": cpu, "priority": priority})
}

fn budget(app: &str, allowed: i64) -> Value {
    json!({"metadata": {"name": app, "namespace": "d"}, "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed}})
}

#[test]
fn chooses_the_fewest_and_least_important_victims() {
    let show = |nodes: &[Value], pods: &[Value], budgets: Vec<Value>, pod: Value| {
        Cluster::new(nodes).with_pods(pods).with::<PodDisruptionBudget>(budgets).show(&pod)
    };
    let two = nodes(&["a", "b"]);
    let mut never = preemptor("1", 10);
    never["spec"] = json!({"preemptionPolicy": "Never"});
    let started = |mut pod: Value, time: &str| {
        pod["status"] = json!({"startTime": time});
        pod
    };
    let lines = [
        // Only as many as needed, the less important first.
        show(&nodes(&["a"]), &[on("x", "a", "1", 1), on("y", "a", "1", 5)], vec![], preemptor("1", 10)),
        show(&nodes(&["a"]), &[on("x", "a", "1", 1), on("y", "a", "1", 5)], vec![], preemptor("2", 10)),
        show(&nodes(&["a"]), &[on("x", "a", "1", 10), on("y", "a", "1", 10)], vec![], preemptor("1", 10)),
        show(&two, &[on("x", "a", "2", 5), on("y", "b", "2", 3)], vec![], preemptor("1", 10)),
        show(
            &two,
            &[on("x", "a", "2", 3), on("y", "b", "1", 3), on("z", "b", "1", 3)],
            vec![],
            preemptor("2", 10),
        ),
        show(&two, &[on("x", "a", "2", 3), on("y", "b", "2", 5)], vec![budget("x", 0)], preemptor("1", 10)),
        show(&two, &[on("x", "a", "2", 3), on("y", "b", "2", 5)], vec![budget("x", 1)], preemptor("1", 10)),
        show(
            &nodes(&["a"]),
            &[on("x", "a", "1", 1), on("y", "a", "1", 5)],
            vec![budget("x", 0)],
            preemptor("1", 10),
        ),
        show(
            &two,
            &[
                started(on("x", "a", "2", 3), "2026-01-01T00:00:00Z"),
                started(on("y", "b", "2", 3), "2026-01-02T00:00:00Z"),
            ],
            vec![],
            preemptor("1", 10),
        ),
        show(&two, &[on("x", "a", "2", 3), on("y", "b", "2", 3)], vec![], never),
        show(&two, &[on("x", "a", "2", 3), on("y", "b", "2", 3)], vec![], preemptor("3", 10)),
    ];
    expect_test::expect![[r#"
        0/1 nodes are available: 1 Insufficient cpu. preemption: found a potential placement for pod on node a, preempting 1 victims PREEMPT x on a
        0/1 nodes are available: 1 Insufficient cpu. preemption: found a potential placement for pod on node a, preempting 2 victims PREEMPT x,y on a
        0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.
        0/2 nodes are available: 2 Insufficient cpu. preemption: found a potential placement for pod on node b, preempting 1 victims PREEMPT y on b
        0/2 nodes are available: 2 Insufficient cpu. preemption: found a potential placement for pod on node a, preempting 1 victims PREEMPT x on a
        0/2 nodes are available: 2 Insufficient cpu. preemption: found a potential placement for pod on node b, preempting 1 victims PREEMPT y on b
        0/2 nodes are available: 2 Insufficient cpu. preemption: found a potential placement for pod on node a, preempting 1 victims PREEMPT x on a
        0/1 nodes are available: 1 Insufficient cpu. preemption: found a potential placement for pod on node a, preempting 1 victims PREEMPT y on a
        0/2 nodes are available: 2 Insufficient cpu. preemption: found a potential placement for pod on node b, preempting 1 victims PREEMPT y on b
        0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never.
        0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."#]].assert_eq(&lines.join("\n"));
}

#[test]
fn removing_pods_resolves_anti_affinity_and_skew_too() {
    let anti = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}]}});
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}}}]);
    let away = json!({"name": "p", "priority": 10, "spec": {"affinity": anti}});
    let even = json!({"name": "p", "priority": 10, "labels": {"app": "x"},
        "spec": {"nodeSelector": {"zone": "a"}, "topologySpreadConstraints": spread}});
    let mut even = even;
    even["spec"]["topologySpreadConstraints"][0]["nodeAffinityPolicy"] = json!("Ignore");
    let lines = [
        Cluster::new(&nodes(&["a"])).with_pods(&[on("x", "a", "1", 1)]).show(&away),
        Cluster::new(&nodes(&["a", "b"])).with_pods(&[on("x", "a", "1", 1)]).show(&even),
    ];
    expect_test::expect![[r#"
        0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules. preemption: found a potential placement for pod on node a, preempting 1 victims PREEMPT x on a
        0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) didn't match pod topology spread constraints. preemption: found a potential placement for pod on node a, preempting 1 victims PREEMPT x on a"#]].assert_eq(&lines.join("\n"));
}

#[test]
fn room_is_kept_for_a_nominated_pod_from_less_important_ones() {
    let mut cluster = Cluster::new(&nodes(&["a"]));
    cluster.nominator.nominate(&pod(&preemptor("2", 10)), "a");
    let lines = [
        cluster.show(&json!({"name": "q", "cpu": "1", "priority": 5})),
        cluster.show(&json!({"name": "q", "cpu": "1", "priority": 11})),
        cluster.show(&preemptor("2", 10)),
    ];
    expect_test::expect![[r#"
        0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.
        -> a
        -> a"#]].assert_eq(&lines.join("\n"));
}

#[test]
fn waits_for_a_terminating_victim_on_the_nominated_node() {
    let mut leaving = on("x", "a", "2", 1);
    leaving["deleting"] = json!(true);
    leaving["status"] = json!({"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]});
    let mut cluster = Cluster::new(&nodes(&["a", "b"])).with_pods(&[leaving, on("y", "b", "2", 1)]);
    cluster.nominator.nominate(&pod(&preemptor("2", 10)), "a");
    expect_test::expect!["0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible due to a terminating pod on the nominated node."].assert_eq(&cluster.show(&preemptor("2", 10)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn victims_are_less_important_and_none_of_them_could_stay(
        pods in prop::collection::vec((0_usize..3, 1_i64..20, 0_i64..6), 0..20),
        cpu in 1_i64..25,
        priority in 0_i64..6,
    ) {
        let nodes = nodes(&["n0", "n1", "n2"]);
        let (mut used, mut placed) = ([0; 3], vec![]);
        for (i, (node, tenths, priority)) in pods.into_iter().enumerate() {
            if used[node] + tenths <= 20 {
                used[node] += tenths;
                placed.push(on(&format!("x{i}"), &format!("n{node}"), &format!("{}m", tenths * 100), priority));
            }
        }
        let mut cluster = Cluster::new(&nodes).with_pods(&placed);
        let preemptor = preemptor(&format!("{}m", cpu * 100), priority);
        let Decision::Unschedulable(why) = cluster.decide(&pod(&preemptor)) else { return Ok(()) };
        let Nomination::Node(node) = why.nomination else {
            prop_assert!(why.victims.is_empty());
            return Ok(());
        };
        let requests = |pods: &[std::sync::Arc<crate::PodInfo>]| pods.iter().map(|p| p.request.cpu).sum::<i64>();
        let taken = cluster.cache.snapshot().node(&node).unwrap().requested.cpu;
        let room = 2000 - taken + requests(&why.victims);
        prop_assert!(!why.victims.is_empty() && room >= cpu * 100);
        for victim in &why.victims {
            prop_assert!(victim.priority() < priority);
            prop_assert!(room - victim.request.cpu < cpu * 100, "{} could stay", victim.key());
        }
    }
}

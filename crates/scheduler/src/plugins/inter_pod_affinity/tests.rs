//! Affinity and anti-affinity between pods.

use crate::testing::Cluster;
use kaji_runtime::objects::Namespace;
use serde_json::{Value, json};

fn nodes() -> Vec<Value> {
    let node = |name: &str, zone: &str| json!({"name": name, "labels": {"zone": zone, "host": name}});
    vec![node("a1", "a"), node("a2", "a"), node("b1", "b"), json!({"name": "x"})]
}

fn term(app: &str, key: &str, more: Value) -> Value {
    let mut term = json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key});
    for (key, value) in more.as_object().unwrap() {
        term[key] = value.clone();
    }
    term
}

fn pod(name: &str, app: &str, kind: &str, terms: &[Value]) -> Value {
    let rule = if terms.iter().any(|t| t.get("weight").is_some()) { "preferred" } else { "required" };
    let rule = format!("{rule}DuringSchedulingIgnoredDuringExecution");
    json!({"name": name, "labels": {"app": app}, "spec": {"affinity": {kind: {rule: terms}}}})
}

fn on(mut pod: Value, node: &str) -> Value {
    pod["node"] = json!(node);
    pod
}

fn plain(name: &str, app: &str, namespace: &str, node: &str) -> Value {
    json!({"name": name, "labels": {"app": app}, "namespace": namespace, "node": node})
}

fn namespaces() -> Vec<Value> {
    let namespace = |name: &str, team: &str| json!({"metadata": {"name": name, "labels": {"team": team}}});
    vec![namespace("d", "one"), namespace("e", "two")]
}

#[test]
fn filters_by_required_terms() {
    let show = |pods: &[Value], pod: Value| {
        Cluster::new(&nodes()).with_pods(pods).with::<Namespace>(namespaces()).show(&pod)
    };
    let near = |more: Value| pod("p", "w", "podAffinity", &[term("db", "zone", more)]);
    let away = |key: &str| pod("p", "w", "podAntiAffinity", &[term("db", key, json!({}))]);
    let db = |namespace: &str, node: &str| plain("db", "db", namespace, node);
    let lines = [
        show(&[db("d", "b1")], near(json!({}))),
        show(&[db("e", "b1")], near(json!({}))),
        show(&[db("e", "b1")], near(json!({"namespaces": ["e"]}))),
        show(&[db("e", "b1")], near(json!({"namespaceSelector": {"matchLabels": {"team": "two"}}}))),
        show(&[db("e", "b1")], near(json!({"namespaceSelector": {}}))),
        show(&[db("e", "b1")], near(json!({"namespaceSelector": {"matchLabels": {"team": "one"}}}))),
        // The first of a set that its own affinity selects.
        show(&[], pod("p", "db", "podAffinity", &[term("db", "host", json!({}))]))
            .replace(['a', 'b', '1', '2'], "?"),
        show(&[db("d", "a1"), plain("b", "db", "d", "b1"), plain("c", "db", "d", "x")], away("zone")),
        show(&[db("d", "a1"), plain("b", "db", "d", "b1")], away("host")).replace('x', "a2"),
        // Anti-affinity of pods that are there holds for pods that come.
        show(
            &[
                on(pod("1", "db", "podAntiAffinity", &[term("w", "zone", json!({}))]), "a1"),
                on(pod("2", "db", "podAntiAffinity", &[term("w", "host", json!({}))]), "b1"),
            ],
            json!({"name": "p", "labels": {"app": "w"}, "spec": {"nodeSelector": {"zone": "a"}}}),
        ),
    ];
    expect_test::expect![[r#"
        -> b1
        0/4 nodes are available: 4 node(s) didn't match pod affinity rules. preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.
        -> b1
        -> b1
        -> b1
        0/4 nodes are available: 4 node(s) didn't match pod affinity rules. preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.
        -> ??
        -> x
        -> a2
        0/4 nodes are available: 2 node(s) didn't match Pod's node affinity/selector, 2 node(s) didn't satisfy existing pods anti-affinity rules. preemption: 0/4 nodes are available: 2 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."#]].assert_eq(&lines.join("\n"));
}

#[test]
fn scores_preferred_terms_in_both_directions() {
    let weighted =
        |weight: i64, app: &str| json!({"weight": weight, "podAffinityTerm": term(app, "zone", json!({}))});
    let scores = |pods: &[Value], pod: Value| {
        Cluster::new(&nodes())
            .with_pods(pods)
            .with::<Namespace>(namespaces())
            .scores(super::PLUGIN.name, &pod)
    };
    let me = json!({"name": "p", "labels": {"app": "w"}});
    let lines = [
        scores(&[plain("db", "db", "d", "b1")], pod("p", "w", "podAffinity", &[weighted(10, "db")])),
        scores(&[plain("db", "db", "d", "b1")], pod("p", "w", "podAntiAffinity", &[weighted(10, "db")])),
        scores(&[on(pod("1", "db", "podAffinity", &[weighted(5, "w")]), "a1")], me.clone()),
        scores(&[on(pod("1", "db", "podAffinity", &[term("w", "zone", json!({}))]), "b1")], me.clone()),
        scores(&[plain("db", "db", "d", "b1")], me),
        scores(
            &[plain("one", "one", "d", "a1"), plain("two", "two", "d", "b1")],
            pod("p", "w", "podAffinity", &[weighted(29, "one"), weighted(100, "two")]),
        ),
    ];
    expect_test::expect![[r#"
        a1=0 a2=0 b1=100 x=0
        a1=100 a2=100 b1=0 x=100
        a1=100 a2=100 b1=0 x=0
        a1=0 a2=0 b1=100 x=0
        skipped
        a1=28 a2=28 b1=100 x=0"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn nodes_wake_pods_if_they_are_in_another_domain() {
    use crate::framework::{Event, Hint};
    use crate::testing::node;
    let wakes = |kind: &str, old: Option<Value>, new: Value| {
        let terms = [term("db", "zone", json!({})), term("db", "host", json!({}))];
        let waiting = crate::testing::pod(&pod("p", "w", kind, &terms));
        let labelled = |labels: Value| node(&json!({"name": "n", "labels": labels}));
        let event = Event::of_node(old.map(labelled), Some(labelled(new))).unwrap();
        super::has_topology_keys(&waiting, &event) == Hint::Queue
    };
    let (none, zone, other) = (json!({}), json!({"zone": "a"}), json!({"zone": "b"}));
    let moves = [
        (None, none.clone()),
        (None, zone.clone()),
        (Some(none.clone()), zone.clone()),
        (Some(zone.clone()), other),
        (Some(zone.clone()), none),
        (Some(zone), json!({"zone": "a", "more": "x"})),
    ];
    let seen = |kind: &str| moves.clone().map(|(old, new)| wakes(kind, old, new));
    assert_eq!(seen("podAffinity"), [false, true, true, true, false, false]);
    assert_eq!(seen("podAntiAffinity"), [true, true, false, true, true, false]);
}

#[test]
fn a_pod_wakes_others_if_it_satisfies_all_of_their_terms() {
    use crate::framework::{Event, Hint};
    let wakes = |apps: &[&str]| {
        let terms: Vec<Value> = apps.iter().map(|app| term(app, "zone", json!({}))).collect();
        let waiting = crate::testing::pod(&pod("p", "w", "podAffinity", &terms));
        let came = crate::testing::pod(&plain("db", "db", "d", "b1"));
        let event = Event::of_assigned_pod(None, Some(came.pod.clone())).unwrap();
        super::concerns_terms(&waiting, &event) == Hint::Queue
    };
    assert!(wakes(&["db"]) && !wakes(&["db", "other"]));
}

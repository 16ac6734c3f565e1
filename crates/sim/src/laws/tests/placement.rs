//! Pods that are bound to a node without room, or beside ones from which they keep apart.

use super::*;

fn requesting(name: &str, cpu: &str, node: &str) -> Value {
    let mut pod = pod(name, "o", node, false);
    pod["spec"]["containers"] = json!([{"resources": {"requests": {"cpu": cpu}}}]);
    pod
}

fn key(pod: &str) -> String {
    format!("/registry/core/pods/n/{pod}")
}

#[test]
fn a_node_has_room_for_what_is_bound_to_it() {
    let node = json!({"metadata": {"name": "x", "uid": "x"}, "status": {"allocatable": {"cpu": "2"}}});
    let (a, b, c) = (key("a"), key("b"), key("c"));
    let events = [
        (0, "/registry/core/nodes/x", node),
        (1, &*a, requesting("a", "1", "")),
        (2, &*a, requesting("a", "1", "x")),
        (3, &*b, requesting("b", "1001m", "")),
        (4, &*b, requesting("b", "1001m", "x")),
    ];
    expect!["/registry/core/pods/n/b: bound to x, of which the pods request 2001m of 2000m processors"]
        .assert_eq(&check(&events));
    // One that is over needs no room.
    let mut over = requesting("a", "1", "x");
    over["status"]["phase"] = "Succeeded".into();
    let [node, first, bound, ..] = events;
    let again = [node, first, bound, (3, &*a, over), (4, &*c, requesting("c", "2", "x"))];
    assert_eq!(check(&again), "");
}

#[test]
fn pods_that_keep_apart_have_nodes_of_their_own() {
    let apart = |name: &str, node: &str| {
        let mut pod = pod(name, "o", node, false);
        let term =
            json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "o"}}});
        pod["spec"]["affinity"] =
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        pod
    };
    let (a, b) = (key("a"), key("b"));
    let events = |node| [(0, &*a, apart("a", "x")), (1, &*b, apart("b", "")), (2, &*b, apart("b", node))];
    assert_eq!(check(&events("y")), "");
    expect![[
        r#"/registry/core/pods/n/b: bound to x, beside /registry/core/pods/n/a, from which it keeps apart"#
    ]]
    .assert_eq(&check(&events("x")));
}

/// A scheduler that was killed had a binding on its way, of which its successor does not know.
#[test]
fn bindings_at_a_restart_of_the_loops_may_be_unseen() {
    let node = json!({"metadata": {"name": "x", "uid": "x"}, "status": {"allocatable": {"cpu": "1"}}});
    let mut laws = Laws::default();
    laws.apply(0, &event("/registry/core/nodes/x", 1, &node));
    laws.apply(1_000, &event(&key("a"), 1, &requesting("a", "1", "x")));
    laws.loops_restarted(1_000);
    assert_eq!(laws.apply(1_100, &event(&key("b"), 1, &requesting("b", "1", "x"))).1, [""; 0]);
    assert_eq!(laws.apply(62_000, &event(&key("c"), 1, &requesting("c", "1", "x"))).1.len(), 1);
}

//! Rollouts that take too many pods away, and what is not the rollout's doing; budgets in percent.

use super::*;

const DEPLOYMENT: &str = "/registry/apps/deployments/n/d";
const SET: &str = "/registry/apps/replicasets/n/r";
const STATEFUL_SET: &str = "/registry/apps/statefulsets/n/s";
const DAEMON_SET: &str = "/registry/apps/daemonsets/n/e";
/// When pods that were ready from the start are so for all controllers.
const LATER: u64 = 100_000;

fn key(pod: &str) -> String {
    format!("/registry/core/pods/n/{pod}")
}

fn deployment(replicas: i64, surge: &Value, unavailable: &Value) -> Value {
    json!({"metadata": {"name": "d", "uid": "d"}, "spec": {"replicas": replicas,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}})
}

fn replica_set() -> Value {
    json!({"metadata": {"name": "r", "uid": "r", "ownerReferences": [{"uid": "d", "controller": true}]}, "spec": {"replicas": 4}})
}

/// A pod with a deletion that has begun, for this reason if there is one.
fn deleted(mut pod: Value, reason: Option<&str>) -> Value {
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    if let (Some(reason), Some(conditions)) = (reason, pod["status"]["conditions"].as_array_mut()) {
        conditions.push(json!({"type": "DisruptionTarget", "status": "True", "reason": reason}));
    }
    pod
}

/// Laws that know an owner and its ready pods from the start.
struct Followed(Laws, BTreeMap<String, u64>);

impl Followed {
    fn new(owners: &[(&str, Value)], owner: &str, pods: &[&str]) -> Followed {
        let mut followed = Followed(Laws::default(), BTreeMap::new());
        for (key, object) in owners {
            followed.put(0, key, object);
        }
        for name in pods {
            assert_eq!(followed.put(0, &key(name), &pod(name, owner, "x", true)), "");
        }
        followed
    }

    fn deployment(surge: &Value, unavailable: &Value) -> Followed {
        let owners = [(DEPLOYMENT, deployment(4, surge, unavailable)), (SET, replica_set())];
        Followed::new(&owners, "r", &["a", "b", "c", "f"])
    }

    fn put(&mut self, at: u64, key: &str, object: &Value) -> String {
        let version = self.1.entry(key.to_owned()).or_default();
        *version += 1;
        self.0.apply(at, &event(key, *version, object)).1.join("\n")
    }

    fn delete(&mut self, at: u64, name: &str, owner: &str) -> String {
        self.put(at, &key(name), &deleted(pod(name, owner, "x", true), None))
    }
}

#[test]
fn a_rollout_leaves_as_many_pods_as_a_count_allows() {
    let mut followed = Followed::deployment(&json!(0), &json!(1));
    assert_eq!(followed.delete(LATER, "a", "r"), "");
    expect!["/registry/core/pods/n/b: its deletion leaves d 2 available pods, and 3 must stay"]
        .assert_eq(&followed.delete(LATER + 1, "b", "r"));
}

#[test]
fn percentages_of_unavailable_pods_are_rounded_down() {
    // A third of four is one.
    let mut followed = Followed::deployment(&json!(0), &json!("33%"));
    assert_eq!(followed.delete(LATER, "a", "r"), "");
    assert_ne!(followed.delete(LATER, "b", "r"), "");
    let mut followed = Followed::deployment(&json!(0), &json!("50%"));
    assert_eq!(followed.delete(LATER, "a", "r"), "");
    assert_eq!(followed.delete(LATER, "b", "r"), "");
    assert_ne!(followed.delete(LATER, "c", "r"), "");
    // Of both none, one may be unavailable.
    let mut followed = Followed::deployment(&json!("0%"), &json!("10%"));
    assert_eq!(followed.delete(LATER, "a", "r"), "");
    assert_ne!(followed.delete(LATER, "b", "r"), "");
    let mut followed = Followed::deployment(&json!(1), &json!("10%"));
    assert_ne!(followed.delete(LATER, "a", "r"), "");
}

#[test]
fn what_a_node_takes_is_no_rollout_and_counts_until_it_is_seen() {
    for at in [LATER + 1_000, LATER + WINDOW_MILLIS + 1_000] {
        let mut followed = Followed::deployment(&json!(0), &json!(1));
        assert_eq!(followed.put(LATER, &key("a"), &pod("a", "r", "x", false)), "");
        let evicted = deleted(pod("b", "r", "x", true), Some("DeletionByTaintManager"));
        assert_eq!(followed.put(LATER, &key("b"), &evicted), "");
        assert_eq!(followed.delete(at, "c", "r").is_empty(), at == LATER + 1_000);
    }
}

#[test]
fn a_pod_that_has_just_become_ready_may_go_as_one_that_is_not() {
    let mut followed = Followed::deployment(&json!(1), &json!(0));
    followed.put(LATER, &key("new"), &pod("new", "r", "x", true));
    for name in ["a", "b"] {
        followed.put(LATER, &key(name), &pod(name, "r", "x", false));
    }
    assert_eq!(followed.delete(LATER + 10_000, "new", "r"), "");
}

#[test]
fn what_a_user_asked_for_lately_may_still_be_acted_on() {
    let mut followed = Followed::deployment(&json!(0), &json!(1));
    followed.put(LATER, DEPLOYMENT, &deployment(2, &json!(0), &json!(1)));
    followed.put(LATER + 1, DEPLOYMENT, &deployment(4, &json!(0), &json!(1)));
    for name in ["a", "b", "c"] {
        assert_eq!(followed.delete(LATER + 2, name, "r"), "");
    }
    let mut followed = Followed::deployment(&json!(0), &json!(0));
    followed.put(LATER, DEPLOYMENT, &deployment(4, &json!(0), &json!(1)));
    assert_ne!(followed.delete(LATER + WINDOW_MILLIS, "a", "r") + &followed.delete(LATER, "b", "r"), "");
}

#[test]
fn owners_that_go_take_their_pods_along() {
    let mut followed = Followed::deployment(&json!(0), &json!(1));
    followed.put(LATER, DEPLOYMENT, &Value::Null);
    for name in ["a", "b", "c", "f"] {
        assert_eq!(followed.delete(LATER, name, "r"), "");
    }
    let mut followed = Followed::deployment(&json!(0), &json!(1));
    followed.put(LATER, DEPLOYMENT, &deleted(deployment(4, &json!(0), &json!(1)), None));
    assert_eq!(followed.delete(LATER, "a", "r") + &followed.delete(LATER, "b", "r"), "");
}

#[test]
fn nothing_is_checked_while_statuses_are_late_after_a_full_disk() {
    let mut followed = Followed::deployment(&json!(1), &json!(0));
    followed.0.disk_full_until(LATER);
    assert_eq!(followed.delete(LATER + 1, "a", "r"), "");
    assert_ne!(followed.delete(LATER + 240_001, "b", "r"), "");
}

/// A loop that was killed had deleted a pod; its successor deletes another, as upstream's does.
#[test]
fn deletions_at_a_restart_of_the_loops_may_be_unseen() {
    let mut followed = Followed::deployment(&json!(0), &json!(1));
    assert_eq!(followed.delete(LATER, "a", "r"), "");
    followed.0.loop_killed(LATER + 1);
    assert_eq!(followed.delete(LATER + 2, "b", "r"), "");
    let mut followed = Followed::deployment(&json!(0), &json!(1));
    assert_eq!(followed.delete(LATER, "a", "r"), "");
    followed.0.loop_killed(LATER + 20_000);
    assert_ne!(followed.delete(LATER + 20_001, "b", "r"), "", "that was seen");
}

fn stateful_set(policy: &str, most: &Value) -> Value {
    json!({"metadata": {"name": "s", "uid": "s"}, "spec": {"replicas": 3, "podManagementPolicy": policy,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": most}}}})
}

#[test]
fn a_stateful_set_replaces_one_pod_after_the_other() {
    let names = ["s-0", "s-1", "s-2"];
    let start = |policy: &str, most: Value| {
        Followed::new(&[(STATEFUL_SET, stateful_set(policy, &most))], "s", &names)
    };
    let mut ordered = start("OrderedReady", Value::Null);
    assert_eq!(ordered.delete(LATER, "s-2", "s"), "");
    expect![[r#"/registry/core/pods/n/s-1: deleted while ["s-2"] are not available, and 1 may not be"#]]
        .assert_eq(&ordered.delete(LATER, "s-1", "s"));
    // In parallel, those before it are not looked at.
    let unready = |followed: &mut Followed| {
        followed.put(LATER, &key("s-0"), &pod("s-0", "s", "x", false));
        followed.delete(LATER + WINDOW_MILLIS + 1, "s-2", "s")
    };
    assert_ne!(unready(&mut start("OrderedReady", Value::Null)), "");
    assert_eq!(unready(&mut start("Parallel", Value::Null)), "");
    assert_eq!(unready(&mut start("Parallel", json!("70%"))), "");
    assert_ne!(unready(&mut start("Parallel", json!(1))), "");
    // A share of the replicas is one of those that there are now.
    let mut grown = start("Parallel", json!("50%"));
    for (at, replicas) in [(0, 2), (LATER, 4)] {
        let mut set = stateful_set("Parallel", &json!("50%"));
        set["spec"]["replicas"] = replicas.into();
        grown.put(at, STATEFUL_SET, &set);
    }
    assert_eq!(grown.put(LATER, &key("s-3"), &pod("s-3", "s", "x", true)), "");
    assert_eq!(grown.delete(LATER + 30_000, "s-2", "s") + &grown.delete(LATER + 30_000, "s-1", "s"), "");
    assert_ne!(grown.delete(LATER + WINDOW_MILLIS + 1, "s-0", "s"), "");
    // Beyond the replicas none must stay.
    let mut scaled = start("OrderedReady", Value::Null);
    let mut fewer = stateful_set("OrderedReady", &Value::Null);
    fewer["spec"]["replicas"] = 1.into();
    scaled.put(LATER, STATEFUL_SET, &fewer);
    assert_eq!(scaled.delete(LATER, "s-2", "s") + &scaled.delete(LATER, "s-1", "s"), "");
}

#[test]
fn a_daemon_set_leaves_nodes_without_their_pod_up_to_a_percentage_rounded_up() {
    let set = |rolling: Value| json!({"metadata": {"name": "e", "uid": "e"}, "spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}});
    let node = |name: &str| json!({"metadata": {"name": name, "uid": name}});
    let start = |rolling: Value| {
        let nodes = ["1", "2", "3"].map(|name| (format!("/registry/core/nodes/{name}"), node(name)));
        let mut owners: Vec<(&str, Value)> = nodes.iter().map(|(key, node)| (&**key, node.clone())).collect();
        owners.push((DAEMON_SET, set(rolling)));
        Followed::new(&owners, "e", &["a", "b", "c"])
    };
    let mut half = start(json!({"maxUnavailable": "50%"}));
    assert_eq!(half.delete(LATER, "a", "e") + &half.delete(LATER, "b", "e"), "");
    expect!["/registry/core/pods/n/c: its deletion leaves e 0 available pods, and 1 must stay"]
        .assert_eq(&half.delete(LATER, "c", "e"));
    // A node that is not ready needs none, until some time after.
    for (at, allowed) in [(LATER + 1, true), (LATER + WINDOW_MILLIS + 2, false)] {
        let mut one = start(json!({"maxUnavailable": 1}));
        let mut tainted = node("3");
        tainted["spec"] =
            json!({"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]});
        one.put(LATER, "/registry/core/nodes/3", &tainted);
        one.put(LATER, "/registry/core/nodes/3", &node("3"));
        let broken = one.delete(at, "a", "e") + &one.delete(at, "b", "e");
        assert_eq!(broken.is_empty(), allowed, "{broken}");
    }
}

#[test]
fn a_daemon_set_that_surges_takes_a_pod_beside_which_another_is_available() {
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    let set = json!({"metadata": {"name": "e", "uid": "e"}, "spec": {"updateStrategy": rolling}});
    let node = |name: &str| json!({"metadata": {"name": name, "uid": name}});
    let owners =
        [("/registry/core/nodes/1", node("1")), ("/registry/core/nodes/2", node("2")), (DAEMON_SET, set)];
    let gone = |name: &str, node: &str| deleted(pod(name, "e", node, true), None);
    let mut followed = Followed::new(&owners, "e", &[]);
    for (name, node) in [("a", "1"), ("b", "1"), ("c", "2"), ("f", "3")] {
        assert_eq!(followed.put(0, &key(name), &pod(name, "e", node, true)), "");
    }
    // What another node lost does not count.
    followed.put(LATER, &key("c"), &pod("c", "e", "2", false));
    assert_eq!(followed.put(LATER, &key("a"), &gone("a", "1")), "");
    expect!["/registry/core/pods/n/b: its deletion leaves 1 without an available pod of e"]
        .assert_eq(&followed.put(LATER + 1, &key("b"), &gone("b", "1")));
    // The node 3 is gone.
    assert_eq!(followed.put(LATER + 2, &key("f"), &gone("f", "3")), "");
}

#[test]
fn budgets_in_percent_are_rounded_up_as_upstreams() {
    // Of four: 60 % are three, and 40 % are two.
    for (bound, rest) in [
        (json!({"minAvailable": "60%"}), 3),
        (json!({"maxUnavailable": "40%"}), 2),
        (json!({"maxUnavailable": 1}), 3),
        (json!({"maxUnavailable": "200%"}), 0),
    ] {
        let mut followed = Followed::deployment(&json!(1), &json!(0));
        let mut spec = bound.clone();
        spec["selector"] = json!({"matchLabels": {"app": "r"}});
        let budget = json!({"metadata": {"name": "b", "namespace": "n", "uid": "budget"}, "spec": spec});
        followed.put(0, "/registry/policy/poddisruptionbudgets/n/b", &budget);
        for (gone, name) in ["a", "b", "c", "f"].into_iter().enumerate() {
            let evicted = deleted(pod(name, "r", "x", true), Some("EvictionByEvictionAPI"));
            let broken = followed.put(LATER, &key(name), &evicted);
            assert_eq!(broken.is_empty(), 3 - gone >= rest, "{bound}: {broken}");
        }
    }
}

#[test]
fn a_budget_counts_what_was_lost_otherwise_until_that_is_seen() {
    for (at, lost) in [(LATER + 1_000, true), (LATER + WINDOW_MILLIS + 1_000, false)] {
        let mut followed = Followed::deployment(&json!(1), &json!(2));
        let budget = json!({"metadata": {"name": "b", "namespace": "n", "uid": "budget"},
            "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "r"}}}});
        followed.put(0, "/registry/policy/poddisruptionbudgets/n/b", &budget);
        followed.put(LATER, &key("a"), &pod("a", "r", "x", false));
        let evicted = deleted(pod("b", "r", "x", true), Some("EvictionByEvictionAPI"));
        assert_eq!(followed.put(at, &key("b"), &evicted).is_empty(), lost);
    }
}

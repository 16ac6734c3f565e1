//! Fixtures of laws that hold and of laws that are broken.

mod availability;
mod placement;

use super::*;
use expect_test::expect;
use kaji_store::KeyValue;
use serde_json::json;
use std::collections::BTreeMap;

/// A write, or with null a deletion.
fn event(key: &str, version: u64, object: &Value) -> Event {
    let kind = if object.is_null() { EventKind::Delete } else { EventKind::Put };
    let kv = KeyValue {
        key: key.into(),
        value: object.to_string().into_bytes().into(),
        create_revision: 1,
        mod_revision: version,
        version,
        lease: None,
    };
    Event { kind, kv, previous: None }
}

fn check(events: &[(u64, &str, Value)]) -> String {
    let (mut laws, mut versions) = (Laws::default(), BTreeMap::new());
    let mut broken = vec![];
    for (at, key, object) in events {
        let version = versions.entry(*key).or_insert(0);
        *version += 1;
        broken.extend(laws.apply(*at, &event(key, *version, object)).1);
    }
    broken.join("\n")
}

fn pod(name: &str, owner: &str, node: &str, ready: bool) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "labels": {"app": owner},
            "ownerReferences": [{"uid": owner, "controller": true, "blockOwnerDeletion": true}]},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
    })
}

#[test]
fn a_pod_stays_on_its_node() {
    let key = "/registry/core/pods/n/p";
    expect!["/registry/core/pods/n/p: bound to a, and then to b"].assert_eq(&check(&[
        (0, key, pod("p", "o", "", false)),
        (1, key, pod("p", "o", "a", false)),
        (2, key, pod("p", "o", "b", false)),
    ]));
}

#[test]
fn a_pod_that_is_over_stays_over() {
    let key = "/registry/core/pods/n/p";
    let mut over = pod("p", "o", "a", false);
    over["status"]["phase"] = "Failed".into();
    expect!["/registry/core/pods/n/p: its phase was Failed, and is Running"]
        .assert_eq(&check(&[(0, key, over), (1, key, pod("p", "o", "a", false))]));
}

#[test]
fn a_replica_set_has_no_more_pods_than_it_asked_for_lately() {
    let set = |replicas: i64| json!({"metadata": {"name": "r", "uid": "r"}, "spec": {"replicas": replicas}});
    let (key, a, b) =
        ("/registry/apps/replicasets/n/r", "/registry/core/pods/n/a", "/registry/core/pods/n/b");
    let pods = |at| [(at, a, pod("a", "r", "", false)), (at, b, pod("b", "r", "", false))];
    // What it asked for a moment ago may still be acted on.
    let late = [vec![(0, key, set(2)), (1, key, set(1))], pods(2).to_vec()].concat();
    expect![""].assert_eq(&check(&late));
    let too_late = [
        vec![(0, key, set(2)), (1, key, set(1)), (WINDOW_MILLIS + 2, key, set(1))],
        pods(WINDOW_MILLIS + 2).to_vec(),
    ]
    .concat();
    expect!["pod b: the 2th of its controller, which may have 1"].assert_eq(&check(&too_late));
}

/// Seed 20188: a request of the loops that had ended created the pod that the new ones created too.
#[test]
fn a_pod_that_was_created_at_a_restart_of_the_loops_may_be_unseen() {
    let broken = |restarted: u64, second: u64| {
        let mut laws = Laws::default();
        let set = json!({"metadata": {"name": "r", "uid": "r"}, "spec": {"replicas": 1}});
        laws.apply(0, &event("/registry/apps/replicasets/n/r", 1, &set));
        laws.apply(1_000, &event("/registry/core/pods/n/a", 1, &pod("a", "r", "", false)));
        laws.loops_restarted(restarted);
        laws.apply(second, &event("/registry/core/pods/n/b", 1, &pod("b", "r", "", false))).1
    };
    assert_eq!(broken(900, 1_300), Vec::<String>::new());
    assert_eq!(broken(20_000, 20_300), Vec::<String>::new(), "one pod that is seen, and one that may not be");
    assert_eq!(broken(900, 200_000), ["pod b: the 2th of its controller, which may have 1"]);
}

#[test]
fn replica_sets_of_a_deployment_stay_below_its_surge() {
    let deployment = json!({"metadata": {"name": "d", "uid": "d"}, "spec": {"replicas": 3, "strategy": {"rollingUpdate": {"maxSurge": "25%"}}}});
    let set = |name: &str, replicas: i64| json!({"metadata": {"name": name, "uid": name, "ownerReferences": [{"uid": "d", "controller": true}]}, "spec": {"replicas": replicas}});
    expect!["replica set new: with 2 replicas its deployment has 5, and may have 4"].assert_eq(&check(&[
        (0, "/registry/apps/deployments/n/d", deployment),
        (1, "/registry/apps/replicasets/n/old", set("old", 3)),
        (2, "/registry/apps/replicasets/n/new", set("new", 1)),
        (3, "/registry/apps/replicasets/n/new", set("new", 2)),
    ]));
}

#[test]
fn pods_of_a_stateful_set_follow_ready_ones() {
    let set = json!({"metadata": {"name": "s", "uid": "s"}, "spec": {"replicas": 2}});
    let (key, first, second) =
        ("/registry/apps/statefulsets/n/s", "/registry/core/pods/n/s-0", "/registry/core/pods/n/s-1");
    expect!["pod s-1: created before s-0 was ready"].assert_eq(&check(&[
        (0, key, set.clone()),
        (1, first, pod("s-0", "s", "a", false)),
        (2, second, pod("s-1", "s", "", false)),
    ]));
    expect![""].assert_eq(&check(&[
        (0, key, set),
        (1, first, pod("s-0", "s", "a", true)),
        (2, second, pod("s-1", "s", "", false)),
    ]));
}

#[test]
fn an_eviction_leaves_what_the_budget_asks_for() {
    let budget = json!({"metadata": {"name": "b", "namespace": "n", "uid": "b"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "o"}}}});
    let mut evicted = pod("a", "o", "x", true);
    evicted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    evicted["status"]["conditions"] =
        json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]);
    expect!["/registry/core/pods/n/a: its eviction leaves 1 healthy pods, and the budget asks for 2"]
        .assert_eq(&check(&[
            (0, "/registry/policy/poddisruptionbudgets/n/b", budget),
            (1, "/registry/core/pods/n/a", pod("a", "o", "x", true)),
            (1, "/registry/core/pods/n/b", pod("b", "o", "x", true)),
            (2, "/registry/core/pods/n/a", evicted),
        ]));
}

#[test]
fn an_owner_deleted_in_the_foreground_outlives_its_dependents() {
    let key = "/registry/apps/replicasets/n/r";
    let set = json!({"metadata": {"name": "r", "uid": "r", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}, "spec": {"replicas": 1}});
    expect!["/registry/apps/replicasets/n/r: deleted in the foreground before /registry/core/pods/n/a"]
        .assert_eq(&check(&[
            (0, "/registry/core/pods/n/a", pod("a", "r", "x", true)),
            (1, key, set.clone()),
            (2, key, Value::Null),
        ]));
    // One that a loop adds later, on an old view, does not count.
    let added =
        [(1, key, set), (2, "/registry/core/pods/n/a", pod("a", "r", "x", true)), (3, key, Value::Null)];
    expect![""].assert_eq(&check(&added));
}

#[test]
fn a_quota_counts_pods_that_are_overdue_again_when_the_clock_went_back() {
    let mut late = pod("p", "o", "a", false);
    late["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let full = |used: &str| json!({"status": {"hard": {"pods": "2"}, "used": {"pods": used}}});
    let broken = |back: bool, used: &str| {
        let mut laws = Laws::default();
        if back {
            laws.clock_stepped_back();
        }
        laws.apply(0, &event("/registry/core/pods/n/p", 1, &late));
        laws.apply(1, &event("/registry/core/resourcequotas/n/q", 1, &full(used))).1.join("\n")
    };
    expect!["/registry/core/resourcequotas/n/q: 3 pods are used of a quota of 2"]
        .assert_eq(&broken(false, "3"));
    assert_eq!(broken(true, "3") + &broken(false, "2"), "");
    assert_ne!(broken(true, "4"), "");
    // When it is deleted at last, its deletion is due now.
    let counted = |at: u64| {
        let mut laws = Laws::default();
        for (version, grace) in [(1, 30), (2, 0)] {
            late["metadata"]["deletionGracePeriodSeconds"] = grace.into();
            laws.apply(0, &event("/registry/core/pods/n/p", version, &late));
        }
        laws.apply(1, &event("/registry/core/pods/n/p", 3, &Value::Null));
        laws.apply(at, &event("/registry/core/resourcequotas/n/q", 1, &full("3"))).1.is_empty()
    };
    assert_eq!([1, HASTENED_MILLIS + 1].map(counted), [true, false]);
}

#[test]
fn a_cluster_rests_when_no_autoscaler_holds_back() {
    let scaler = |reason: &str| json!({"metadata": {"name": "h"}, "status": {"conditions": [{"type": "AbleToScale", "reason": reason}]}});
    let missing = |reason: &str| {
        let mut laws = Laws::default();
        laws.apply(0, &event("/registry/autoscaling/horizontalpodautoscalers/n/h", 1, &scaler(reason)));
        reached::missing(laws.objects())
    };
    assert_eq!(missing("ScaleDownStabilized"), ["autoscaler h is about to scale down"]);
    assert!(missing("ReadyForNewScale").is_empty());
}

#[test]
fn a_claim_is_bound_once_a_pod_uses_it() {
    let missing = |phase: &str, name: &str| {
        let mut laws = Laws::default();
        let claim = json!({"metadata": {"name": "data-s-0", "namespace": "n", "uid": "c"}, "status": {"phase": phase}});
        let mut pod = pod("p", "", "", false);
        pod["metadata"]["ownerReferences"] = json!([]);
        pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]);
        laws.apply(0, &event("/registry/core/persistentvolumeclaims/n/data-s-0", 1, &claim));
        laws.apply(0, &event("/registry/core/pods/n/p", 1, &pod));
        reached::missing(laws.objects())
    };
    assert_eq!(missing("Pending", "data-s-0"), ["claim data-s-0 is not bound"]);
    assert_eq!(missing("Lost", "data-s-1"), ["claim data-s-0 is not bound"]);
    assert!(missing("Bound", "data-s-0").is_empty());
    assert!(missing("Pending", "data-s-1").is_empty());
}

#[test]
fn a_cluster_has_reached_what_its_objects_ask_for() {
    let mut laws = Laws::default();
    let deployment = json!({"metadata": {"name": "d", "uid": "d", "generation": 2},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "o"}}},
        "status": {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}});
    laws.apply(0, &event("/registry/apps/deployments/n/d", 1, &deployment));
    let set = json!({"metadata": {"name": "r", "uid": "r",
        "ownerReferences": [{"uid": "d", "controller": true}]}, "spec": {"replicas": 1}});
    laws.apply(0, &event("/registry/apps/replicasets/n/r", 1, &set));
    laws.apply(0, &event("/registry/core/pods/n/a", 1, &pod("a", "r", "x", true)));
    laws.apply(0, &event("/registry/core/pods/n/b", 1, &pod("b", "gone", "x", true)));
    expect![[r#"
        /registry/core/pods/n/b: it has outlived its owners
        deployment d: generation 1 of 2 is observed"#]]
    .assert_eq(&reached::missing(laws.objects()).join("\n"));
}

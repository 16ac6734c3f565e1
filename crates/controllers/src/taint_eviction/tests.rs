//! Tests of taint eviction: what is deleted, when, and what cancels it.

use super::*;
use crate::testing::{now, object, observed, snapshot, text};
use expect_test::expect;
use kaji_meta::random::SeededRandom;
use proptest::prelude::*;
use serde_json::Value;

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

fn taint(key: &str) -> Value {
    json!({"key": key, "effect": "NoExecute"})
}

fn tolerate(key: &str, seconds: Option<i64>) -> Value {
    json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds})
}

/// The plan for the pod `ns/p` so many seconds after [`now`].
fn plan(eviction: &Eviction, taints: &[Value], tolerations: Option<&[Value]>, seconds: i64) -> String {
    text(&decided(eviction, taints, tolerations, seconds))
}

fn decided(eviction: &Eviction, taints: &[Value], tolerations: Option<&[Value]>, seconds: i64) -> Plan {
    let node = json!({"metadata": {"name": "n"}, "spec": {"taints": taints}});
    let pod = |tolerations: &[Value]| {
        json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 3},
            "spec": {"nodeName": "n", "tolerations": tolerations}})
    };
    let view = View::default().with(snapshot::<Node>([node])).with(snapshot::<Pod>(tolerations.map(pod)));
    let random = SeededRandom::new(1);
    let now = Timestamp::from_second(now().as_second() + seconds).unwrap();
    let cx = Cx { now, random: &random, failures: &[] };
    eviction.reconcile(&view, &Key::new("ns", "p"), &cx)
}

fn eviction() -> Eviction {
    Eviction { scheduled: Scheduled::default() }
}

#[test]
fn deletes_at_once_what_is_not_tolerated() {
    let soft = json!({"key": "k", "effect": "NoSchedule"});
    let all = [
        plan(&eviction(), &[soft], Some(&[]), 0),
        plan(&eviction(), &[taint("k")], Some(&[tolerate("k", None)]), 0),
        plan(&eviction(), &[taint("k")], Some(&[]), 0),
        plan(&eviction(), &[taint("k")], Some(&[tolerate("k", Some(0))]), 0),
    ];
    expect![[r#"
        =
        =
        strategic /api/v1/namespaces/ns/pods/p/status {"metadata":{"uid":"u"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"Taint manager: deleting due to NoExecute taint","observedGeneration":3,"reason":"DeletionByTaintManager","status":"True","type":"DisruptionTarget"}]}}
        --
        delete /api/v1/namespaces/ns/pods/p {"preconditions":{"uid":"u"}}
        event: Normal TaintManagerEviction: Marking for deletion Pod ns/p
        =
        strategic /api/v1/namespaces/ns/pods/p/status {"metadata":{"uid":"u"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"Taint manager: deleting due to NoExecute taint","observedGeneration":3,"reason":"DeletionByTaintManager","status":"True","type":"DisruptionTarget"}]}}
        --
        delete /api/v1/namespaces/ns/pods/p {"preconditions":{"uid":"u"}}
        event: Normal TaintManagerEviction: Marking for deletion Pod ns/p
    "#]].assert_eq(&all.join("=\n"));
}

#[test]
fn deletes_at_the_end_of_the_shortest_toleration() {
    let eviction = eviction();
    let tolerations =
        [tolerate(UNREACHABLE, Some(300)), tolerate("k", Some(400)), tolerate("other", Some(1))];
    let taints = [taint(UNREACHABLE), taint("k")];
    let all = [
        plan(&eviction, &taints, Some(&tolerations), 0),
        // A deletion keeps its time.
        plan(&eviction, &taints[1..], Some(&tolerations), 100),
        plan(&eviction, &taints, Some(&tolerations), 300),
        // It is tried again until the pod is gone.
        plan(&eviction, &taints, Some(&tolerations), 301),
        plan(&eviction, &taints, None, 330),
    ];
    expect![[r#"
        again after 300s
        =
        again after 200s
        =
        strategic /api/v1/namespaces/ns/pods/p/status {"metadata":{"uid":"u"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:05:00Z","message":"Taint manager: deleting due to NoExecute taint","observedGeneration":3,"reason":"DeletionByTaintManager","status":"True","type":"DisruptionTarget"}]}}
        --
        delete /api/v1/namespaces/ns/pods/p {"preconditions":{"uid":"u"}}
        event: Normal TaintManagerEviction: Marking for deletion Pod ns/p
        =
        strategic /api/v1/namespaces/ns/pods/p/status {"metadata":{"uid":"u"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:05:01Z","message":"Taint manager: deleting due to NoExecute taint","observedGeneration":3,"reason":"DeletionByTaintManager","status":"True","type":"DisruptionTarget"}]}}
        --
        delete /api/v1/namespaces/ns/pods/p {"preconditions":{"uid":"u"}}
        event: Normal TaintManagerEviction: Marking for deletion Pod ns/p
        =
    "#]].assert_eq(&all.join("=\n"));
}

#[test]
fn deletions_are_counted_and_measured() {
    let eviction = eviction();
    let counted = |taints: &[Value], tolerations: &[Value], seconds| {
        let text = observed(&decided(&eviction, taints, Some(tolerations), seconds));
        text.replace("taint_eviction_controller_", "")
    };
    expect![[r#"
        written /api/v1/namespaces/ns/pods/p: pod_deletions_total = 1
        written /api/v1/namespaces/ns/pods/p: pod_deletion_duration_seconds = 0 + elapsed
    "#]]
    .assert_eq(&counted(&[taint("k")], &[], 0));
    let tolerations = [tolerate("k", Some(300))];
    assert_eq!(counted(&[taint("k")], &tolerations, 0), "");
    // It was due three seconds ago.
    expect![[r#"
        written /api/v1/namespaces/ns/pods/p: pod_deletions_total = 1
        written /api/v1/namespaces/ns/pods/p: pod_deletion_duration_seconds = 3 + elapsed
    "#]]
    .assert_eq(&counted(&[taint("k")], &tolerations, 303));
}

#[test]
fn a_node_that_is_back_keeps_its_pods() {
    let eviction = eviction();
    let tolerations = [tolerate(UNREACHABLE, Some(300))];
    let all = [
        plan(&eviction, &[taint(UNREACHABLE)], Some(&tolerations), 0),
        plan(&eviction, &[], Some(&tolerations), 299),
        plan(&eviction, &[], Some(&tolerations), 300),
        // The next time counts from its own start.
        plan(&eviction, &[taint(UNREACHABLE)], Some(&tolerations), 1000),
        plan(&eviction, &[taint(UNREACHABLE)], Some(&[tolerate("", None)]), 1100),
        plan(&eviction, &[taint(UNREACHABLE)], Some(&[tolerate("", Some(i64::MAX))]), 1100),
    ];
    expect![[r#"
        again after 300s
        =
        event: Normal TaintManagerEviction: Cancelling deletion of Pod ns/p
        =
        =
        again after 300s
        =
        event: Normal TaintManagerEviction: Cancelling deletion of Pod ns/p
        =
        again after 86400s
    "#]]
    .assert_eq(&all.join("=\n"));
}

proptest! {
    /// A pod stays no longer than any toleration that it needs allows, and as long as one of them does.
    #[test]
    fn a_stay_is_the_minimum(limits in prop::collection::vec(prop::option::of(-5i64..1000), 0..6), lacking in any::<bool>()) {
        let key = |i: usize| format!("k{i}");
        let mut taints: Vec<Taint> = (0..limits.len()).map(|i| object_of(taint(&key(i)))).collect();
        let tolerations: Vec<Toleration> =
            limits.iter().enumerate().map(|(i, limit)| object_of(tolerate(&key(i), *limit))).collect();
        let shortest = limits.iter().flatten().map(|limit| (*limit).max(0)).min();
        let expected = shortest.map_or(Stay::Forever, |s| Stay::For(Duration::from_secs(s.unsigned_abs())));
        prop_assert_eq!(stay(&taints, &tolerations), expected);
        if lacking {
            taints.push(object_of(taint("lacking")));
            prop_assert_eq!(stay(&taints, &tolerations), Stay::For(Duration::ZERO));
        }
    }
}

fn object_of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[test]
fn looks_only_at_pods_that_taints_concern() {
    let pod = |tolerations: Value| -> Arc<Pod> {
        Arc::new(object(json!({"metadata": {"name": "p", "namespace": "ns"},
            "spec": {"nodeName": "n", "tolerations": tolerations}})))
    };
    let node = |taints: Value| -> Arc<Node> {
        Arc::new(object(json!({"metadata": {"name": "n"}, "spec": {"taints": taints}})))
    };
    let (plain, tolerant) = (pod(json!([])), pod(json!([{"operator": "Exists"}])));
    let (clean, tainted) = (node(json!([])), node(json!([taint("k")])));
    let view = |node: &Arc<Node>| {
        let mut nodes = kaji_runtime::ObjectSnapshot::<Node>::default();
        nodes.insert(node.clone());
        let mut pods = kaji_runtime::ObjectSnapshot::<Pod>::default();
        pods.insert(plain.clone());
        View::default().with(nodes).with(pods)
    };
    let pods = |old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>, node: &Arc<Node>| {
        let change = Change { old: old.cloned(), new: new.cloned() };
        keys_of_pod(&change, &view(node), &Scheduled::default()).len()
    };
    assert_eq!(pods(None, Some(&plain), &clean), 0);
    assert_eq!(pods(None, Some(&plain), &tainted), 1);
    assert_eq!(pods(Some(&plain), Some(&plain), &tainted), 0);
    assert_eq!(pods(Some(&plain), Some(&tolerant), &tainted), 1);
    assert_eq!(pods(Some(&plain), None, &tainted), 0);
    let nodes = |old: &Arc<Node>, new: &Arc<Node>| {
        let change = Change { old: Some(old.clone()), new: Some(new.clone()) };
        keys_of_node(&change, &view(new)).len()
    };
    assert_eq!([nodes(&clean, &tainted), nodes(&tainted, &clean), nodes(&tainted, &tainted)], [1, 1, 0]);
}

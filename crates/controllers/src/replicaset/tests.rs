//! Tests of `replicaset`: fixtures in, expectations out.

use super::*;
use crate::testing::{ago, now, object, observed, reconcile, snapshot, text};
use expect_test::expect;
use kaji_meta::{Status, gvk::GroupResource};
use kaji_runtime::{Error, Failure, ObjectSnapshot};

fn set(replicas: i64, status: Value) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "rs1", "resourceVersion": "7", "generation": 2},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web", "extra": "x"}}, "spec": {"containers": []}},
        },
        "status": status,
    })
}

fn pod(name: &str, owner: Option<&str>, ready: Option<i64>) -> Value {
    let conditions =
        ready.map(|s| json!([{"type": "Ready", "status": "True", "lastTransitionTime": ago(s)}]));
    let owners = owner.map(|uid| {
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": true}])
    });
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "web"},
            "ownerReferences": owners.unwrap_or_else(|| json!([])), "creationTimestamp": ago(500)},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "conditions": conditions.unwrap_or_else(|| json!([]))},
    })
}

fn plan(set: Value, pods: Vec<Value>, failures: &[Failure]) -> String {
    let view =
        View::default().with(ObjectSnapshot::of([object::<ReplicaSet>(set)])).with(snapshot::<Pod>(pods));
    text(&reconcile(&ReplicaSets::<ReplicaSet>(PhantomData), &view, "ns", "web", failures))
}

#[test]
fn creates_in_doubling_batches() {
    let text = plan(set(4, json!({})), vec![], &[]);
    let lines: Vec<&str> = text.lines().map(|l| l.split('{').next().unwrap_or_default().trim_end()).collect();
    expect![[r"
        create /api/v1/namespaces/ns/pods
            ok: Normal SuccessfulCreate: Created pod:
            failed: Warning FailedCreate: Error creating:
        --
        create /api/v1/namespaces/ns/pods
            ok: Normal SuccessfulCreate: Created pod:
            failed: Warning FailedCreate: Error creating:
        create /api/v1/namespaces/ns/pods
            ok: Normal SuccessfulCreate: Created pod:
            failed: Warning FailedCreate: Error creating:
        --
        create /api/v1/namespaces/ns/pods
            ok: Normal SuccessfulCreate: Created pod:
            failed: Warning FailedCreate: Error creating:
        --
        merge /apis/apps/v1/namespaces/ns/replicasets/web/status"]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn limits_creations_per_plan() {
    let view = View::default()
        .with(ObjectSnapshot::of([object::<ReplicaSet>(set(10_000, json!({})))]))
        .with(ObjectSnapshot::<Pod>::default());
    let plan = reconcile(&ReplicaSets::<ReplicaSet>(PhantomData), &view, "ns", "web", &[]);
    let sizes: Vec<usize> = plan.stages.iter().map(|stage| stage.steps.len()).collect();
    assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 64, 128, 245, 1]);
}

#[test]
fn adopts_and_releases() {
    let mut stray = pod("stray", Some("rs1"), None);
    stray["metadata"]["labels"] = json!({"app": "other"});
    let pods = vec![
        pod("mine", Some("rs1"), Some(100)),
        pod("orphan", None, None),
        pod("foreign", Some("rs2"), None),
        stray,
    ];
    expect![[r#"
        strategic /api/v1/namespaces/ns/pods/stray {"metadata":{"ownerReferences":[{"$patch":"delete","uid":"rs1"}],"uid":"stray"}}
        --
        merge /apis/apps/v1/namespaces/ns/replicasets/web/status {"metadata":{"resourceVersion":"7","uid":"rs1"}}
        --
        strategic /api/v1/namespaces/ns/pods/orphan {"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","blockOwnerDeletion":true,"controller":true,"kind":"ReplicaSet","name":"web","uid":"rs1"}],"uid":"orphan"}}
        --
        merge /apis/apps/v1/namespaces/ns/replicasets/web/status {"metadata":{"resourceVersion":"7","uid":"rs1"},"status":{"availableReplicas":1,"conditions":null,"fullyLabeledReplicas":null,"observedGeneration":2,"readyReplicas":1,"replicas":2,"terminatingReplicas":0}}
    "#]]
    .assert_eq(&plan(set(2, json!({})), pods, &[]));
}

#[test]
fn deletes_surplus_pods_with_events() {
    let status = json!({"replicas": 2, "readyReplicas": 1, "availableReplicas": 1, "observedGeneration": 2, "terminatingReplicas": 0});
    let pods = vec![pod("ready", Some("rs1"), Some(100)), pod("unready", Some("rs1"), None)];
    expect![[r#"
        delete /api/v1/namespaces/ns/pods/unready {"preconditions":{"uid":"unready"}}
            ok: Normal SuccessfulDelete: Deleted pod: unready
            failed: Warning FailedDelete: Error deleting: {error}
    "#]]
    .assert_eq(&plan(set(1, status), pods, &[]));
}

#[test]
fn reports_a_failed_creation_before_it_retries() {
    let denied = Status::forbidden(&GroupResource::new("", "pods"), "web-", "exceeded quota");
    let failures = [Failure { target: Target::of::<Pod>("ns", ""), error: Error::Api(Box::new(denied)) }];
    let text = plan(set(1, json!({})), vec![], &failures);
    expect![[r#"merge /apis/apps/v1/namespaces/ns/replicasets/web/status {"metadata":{"resourceVersion":"7","uid":"rs1"},"status":{"availableReplicas":null,"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"pods \"web-\" is forbidden: exceeded quota","reason":"FailedCreate","status":"True","type":"ReplicaFailure"}],"fullyLabeledReplicas":null,"observedGeneration":2,"readyReplicas":null,"replicas":0,"terminatingReplicas":0}}"#]]
        .assert_eq(text.lines().next().unwrap());
    assert!(text.contains("create /api/v1/namespaces/ns/pods"));
}

#[test]
fn waits_for_availability() {
    let mut set =
        set(1, json!({"replicas": 1, "readyReplicas": 1, "observedGeneration": 2, "terminatingReplicas": 0}));
    set["spec"]["minReadySeconds"] = 30.into();
    expect![[r"
        again after 20s
    "]]
    .assert_eq(&plan(set, vec![pod("p", Some("rs1"), Some(10))], &[]));
}

#[test]
fn creates_nothing_while_it_is_deleted() {
    let mut set = set(3, json!({"observedGeneration": 2, "terminatingReplicas": 0}));
    set["metadata"]["deletionTimestamp"] = now().to_string().into();
    expect![""].assert_eq(&plan(set, vec![pod("orphan", None, None)], &[]));
}

#[test]
fn a_changed_pod_enqueues_its_owner() {
    let view = View::default().with(ObjectSnapshot::of([object::<ReplicaSet>(set(1, json!({})))]));
    let keys = |old: Option<Value>, new: Option<Value>| {
        let change = Change { old: old.map(|p| Arc::new(object(p))), new: new.map(|p| Arc::new(object(p))) };
        keys_of_pod::<ReplicaSet>(&change, &view).iter().map(Key::to_string).collect::<Vec<_>>().join(" ")
    };
    expect!["ns/web"].assert_eq(&keys(None, Some(pod("a", Some("rs1"), None))));
    expect!["ns/web"].assert_eq(&keys(None, Some(pod("a", None, None))));
    expect![""].assert_eq(&keys(Some(pod("a", None, None)), Some(pod("a", None, Some(1)))));
    expect!["ns/web"].assert_eq(&keys(Some(pod("a", Some("rs1"), None)), None));
    expect![""].assert_eq(&keys(Some(pod("a", None, None)), None));
}

#[test]
fn ages_of_pods_that_are_chosen_are_compared_with_the_youngest() {
    let counted = |wanted: i64| {
        let aged = |name: &str, age: i64, ready: bool| {
            let mut pod = pod(name, Some("rs1"), ready.then_some(50));
            pod["metadata"]["creationTimestamp"] = ago(age).into();
            pod
        };
        let pods = vec![aged("old", 300, true), aged("young", 200, true), aged("fresh", 10, false)];
        let view = View::default()
            .with(ObjectSnapshot::of([object::<ReplicaSet>(set(wanted, json!({})))]))
            .with(snapshot::<Pod>(pods));
        observed(&reconcile(&ReplicaSets::<ReplicaSet>(PhantomData), &view, "ns", "web", &[]))
    };
    // One that is not ready goes first, and does not count.
    assert_eq!(counted(2), "");
    let ratio = |age: &str| format!("decided: replicaset_controller_sorting_deletion_age_ratio = {age}\n");
    assert_eq!(counted(1), ratio("1"));
    // Where all go, none is chosen.
    assert_eq!(counted(0), "");
}

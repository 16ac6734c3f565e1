//! Tests of `statefulset`: fixtures in, expectations out.

use super::*;
use crate::testing::{ago, now, reconcile, sample, snapshot, text};
use expect_test::expect;

fn set(spec: Value, status: Value) -> Value {
    let mut set = json!({
        "metadata": {"name": "db", "namespace": "ns", "uid": "s1", "resourceVersion": "7", "generation": 1},
        "spec": {
            "replicas": 3, "serviceName": "svc", "podManagementPolicy": "OrderedReady",
            "selector": {"matchLabels": {"app": "db"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c"}]}},
        },
        "status": status,
    });
    for (field, value) in spec.as_object().unwrap() {
        set["spec"][field] = value.clone();
    }
    set
}

fn revision(name: &str, container: &str, number: i64) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "3",
            "labels": {"app": "db", REVISION_HASH_LABEL: name},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "s1", "controller": true}]},
        "data": {"spec": {"template": {"$patch": "replace", "metadata": {"labels": {"app": "db"}},
            "spec": {"containers": [{"name": container}]}}}},
        "revision": number,
    })
}

fn pod(number: i64, revision: &str, ready: bool) -> Value {
    let name = format!("db-{number}");
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": ago(100),
            "labels": {"app": "db", HASH_LABEL: revision, identity::NAME_LABEL: name},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "s1", "controller": true}]},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" },
            "lastTransitionTime": ago(50)}]},
    })
}

fn plan(set: Value, pods: Vec<Value>, claims: Vec<Value>) -> String {
    let view = View::default()
        .with(snapshot::<StatefulSet>([set]))
        .with(snapshot::<Pod>(pods))
        .with(snapshot::<PersistentVolumeClaim>(claims))
        .with(snapshot::<ControllerRevision>([revision("old", "o", 1), revision("new", "c", 2)]));
    let text = text(&reconcile(&StatefulSets, &view, "ns", "db", &[]));
    text.lines()
        .filter(|l| !l.contains("    failed:"))
        .map(|l| l.replace("/api/v1/namespaces/ns/", "").replace("/apis/apps/v1/namespaces/ns/", "") + "\n")
        .collect()
}

/// What is done about pods and claims, in short.
fn short(set: Value, pods: Vec<Value>) -> String {
    let text = plan(set, pods, vec![]);
    let lines = text.lines().filter(|l| *l != "--" && !l.contains("/status") && !l.contains("    ok"));
    let word = |l: &str| {
        let name = l.split(r#","name":""#).nth(1).and_then(|r| r.split('"').next()).unwrap_or_default();
        let verb = l.split(" {").next().unwrap_or_default();
        if verb.starts_with("create") {
            format!("{verb} {}", l.matches(r#""hostname":"db-"#).count().max(name.len().min(1)))
        } else {
            verb.to_owned()
        }
    };
    lines.map(word).collect::<Vec<_>>().join("; ")
}

fn created(text: &str) -> Vec<String> {
    let name = |l: &str| l.split(r#""hostname":""#).nth(1)?.split('"').next().map(str::to_owned);
    text.lines().filter(|l| l.starts_with("create pods")).filter_map(name).collect()
}

#[test]
fn creates_pods_in_order() {
    let text = plan(set(json!({}), json!({})), vec![], vec![]);
    expect![[r#"
        merge statefulsets/db/status {"metadata":{"resourceVersion":"7","uid":"s1"},"status":{"availableReplicas":0,"collisionCount":0,"currentReplicas":null,"currentRevision":"new","observedGeneration":1,"readyReplicas":null,"replicas":0,"updateRevision":"new","updatedReplicas":null}}
        --
        create pods {"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"app":"db","apps.kubernetes.io/pod-index":"0","controller-revision-hash":"new","statefulset.kubernetes.io/pod-name":"db-0"},"name":"db-0","namespace":"ns","ownerReferences":[{"apiVersion":"apps/v1","blockOwnerDeletion":true,"controller":true,"kind":"StatefulSet","name":"db","uid":"s1"}]},"spec":{"containers":[{"name":"c"}],"hostname":"db-0","subdomain":"svc"}}
            ok: Normal SuccessfulCreate: Create Pod db-0 in StatefulSet db successful
    "#]].assert_eq(&text);
    assert_eq!(created(&plan(set(json!({}), json!({})), vec![pod(0, "new", false)], vec![])), [""; 0]);
    assert_eq!(created(&plan(set(json!({}), json!({})), vec![pod(0, "new", true)], vec![])), ["db-1"]);
    let parallel = set(json!({"podManagementPolicy": "Parallel"}), json!({}));
    assert_eq!(created(&plan(parallel, vec![pod(1, "new", false)], vec![])), ["db-0", "db-2"]);
    let from_five = set(json!({"ordinals": {"start": 5}}), json!({}));
    assert_eq!(created(&plan(from_five, vec![pod(5, "new", true)], vec![])), ["db-6"]);
}

#[test]
fn creates_claims_before_pods_and_applies_their_policy() {
    let template = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    let spec = |policy: Value| json!({"replicas": 1, "volumeClaimTemplates": template, "persistentVolumeClaimRetentionPolicy": policy});
    let keep = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
    expect![[r#"
        merge statefulsets/db/status {"metadata":{"resourceVersion":"7","uid":"s1"},"status":{"availableReplicas":0,"collisionCount":0,"currentReplicas":null,"currentRevision":"new","observedGeneration":1,"readyReplicas":null,"replicas":0,"updateRevision":"new","updatedReplicas":null}}
        --
        create persistentvolumeclaims {"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"labels":{"app":"db"},"name":"data-db-0","namespace":"ns"},"spec":{"accessModes":["ReadWriteOnce"]}}
            ok: Normal SuccessfulCreate: Create Claim data-db-0 Pod db-0 in StatefulSet db success
        --
        create pods {"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"app":"db","apps.kubernetes.io/pod-index":"0","controller-revision-hash":"new","statefulset.kubernetes.io/pod-name":"db-0"},"name":"db-0","namespace":"ns","ownerReferences":[{"apiVersion":"apps/v1","blockOwnerDeletion":true,"controller":true,"kind":"StatefulSet","name":"db","uid":"s1"}]},"spec":{"containers":[{"name":"c"}],"hostname":"db-0","subdomain":"svc","volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data-db-0"}}]}}
            ok: Normal SuccessfulCreate: Create Pod db-0 in StatefulSet db successful
    "#]].assert_eq(&plan(set(spec(keep), json!({})), vec![], vec![]));
    let claim = |number: i64| json!({"metadata": {"name": format!("data-db-{number}"), "namespace": "ns", "uid": "c", "resourceVersion": "4"}});
    let delete = json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
    let text = plan(
        set(spec(delete), json!({})),
        vec![pod(0, "new", true), pod(1, "new", true)],
        vec![claim(0), claim(1)],
    );
    expect![[r#"
        merge statefulsets/db/status {"metadata":{"resourceVersion":"7","uid":"s1"},"status":{"availableReplicas":2,"collisionCount":0,"currentReplicas":2,"currentRevision":"new","observedGeneration":1,"readyReplicas":2,"replicas":2,"updateRevision":"new","updatedReplicas":2}}
        --
        merge persistentvolumeclaims/data-db-0 {"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","blockOwnerDeletion":true,"controller":true,"kind":"StatefulSet","name":"db","uid":"s1"}],"resourceVersion":"4","uid":"c"}}
        --
        merge persistentvolumeclaims/data-db-1 {"metadata":{"ownerReferences":[{"apiVersion":"v1","blockOwnerDeletion":true,"controller":true,"kind":"Pod","name":"db-1","uid":"db-1"}],"resourceVersion":"4","uid":"c"}}
        --
        delete pods/db-1 {"preconditions":{"uid":"db-1"}}
            ok: Normal SuccessfulDelete: Delete Pod db-1 in StatefulSet db successful
    "#]].assert_eq(&text);
}

/// A set of one replica with a policy of order and one of deletion, and its claim with owners.
fn claimed(order: &str, policy: &str, owners: Value) -> (Value, Value) {
    let template = json!([{"metadata": {"name": "data"}, "spec": {}}]);
    let policy = json!({"whenDeleted": policy, "whenScaled": "Retain"});
    let spec = json!({"replicas": 1, "podManagementPolicy": order, "volumeClaimTemplates": template,
        "persistentVolumeClaimRetentionPolicy": policy});
    let claim = json!({"metadata": {"name": "data-db-0", "namespace": "ns", "uid": "c", "resourceVersion": "4",
        "ownerReferences": owners}});
    (set(spec, json!({})), claim)
}

fn pending() -> Value {
    let mut pod = pod(0, "new", false);
    pod["status"]["phase"] = "Pending".into();
    pod
}

#[test]
fn claims_get_their_owners_before_the_pod_is_ready() {
    let patch = r#"merge persistentvolumeclaims/data-db-0 {"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","blockOwnerDeletion":true,"controller":true,"kind":"StatefulSet","name":"db","uid":"s1"}],"resourceVersion":"4","uid":"c"}}"#;
    for order in ["OrderedReady", "Parallel"] {
        // While the pod is pending, and beside its creation: the pod may be refused.
        for pods in [vec![pending()], vec![]] {
            let (set, claim) = claimed(order, "Delete", json!([]));
            let creates = pods.is_empty();
            let text = plan(set, pods, vec![claim]);
            assert_eq!(text.matches(patch).count(), 1, "{text}");
            let stage = text.split("--\n").find(|stage| stage.contains(patch)).unwrap();
            assert_eq!(stage.contains("create pods"), creates, "{text}");
        }
    }
}

#[test]
fn claims_of_other_controllers_are_warned_of() {
    let owner = json!([{"apiVersion": "example.com/v1", "kind": "Database", "name": "x", "uid": "x", "controller": true}]);
    let warnings = |policy: &str, pods: Vec<Value>| {
        let (set, claim) = claimed("OrderedReady", policy, owner.clone());
        let text = plan(set, pods, vec![claim]);
        assert!(!text.contains("merge persistentvolumeclaims"), "{text}");
        text.lines().filter(|l| l.starts_with("event")).map(|l| l.to_owned() + "\n").collect::<String>()
    };
    let expected = expect![[r#"
        event: Warning ConflictingController: PersistentVolumeClaim data-db-0 has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim
    "#]];
    expected.assert_eq(&warnings("Delete", vec![pending()]));
    expected.assert_eq(&warnings("Delete", vec![]));
    assert_eq!(warnings("Delete", vec![pod(0, "new", true)]), "");
    assert_eq!(warnings("Retain", vec![pending()]), "");
}

#[test]
fn scales_down_from_the_highest_ordinal() {
    let one = || set(json!({"replicas": 1}), json!({}));
    let pods = |ready: [bool; 3]| (0..3).map(|i| pod(i, "new", ready[i as usize])).collect::<Vec<_>>();
    assert_eq!(short(one(), pods([true, true, true])), "delete pods/db-2");
    assert_eq!(short(one(), pods([true, true, false])), "delete pods/db-2");
    // Another one is not ready: it has to be seen to first.
    assert_eq!(short(one(), pods([true, false, false])), "");
    let parallel = set(json!({"replicas": 1, "podManagementPolicy": "Parallel"}), json!({}));
    assert_eq!(short(parallel, pods([true, false, false])), "delete pods/db-2; delete pods/db-1");
}

#[test]
fn updates_from_the_highest_ordinal() {
    let plain = || set(json!({}), json!({"currentRevision": "old"}));
    let pods = |revisions: [&str; 3]| (0..3).map(|i| pod(i, revisions[i as usize], true)).collect::<Vec<_>>();
    assert_eq!(short(plain(), pods(["old", "old", "old"])), "delete pods/db-2");
    assert_eq!(short(plain(), pods(["old", "old", "new"])), "delete pods/db-1");
    let mut sick = pods(["old", "old", "new"]);
    sick[2] = pod(2, "new", false);
    assert_eq!(short(plain(), sick), "");
    let partition = |n: i64| {
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": n}});
        set(json!({"updateStrategy": strategy}), json!({"currentRevision": "old"}))
    };
    assert_eq!(short(partition(2), pods(["old", "old", "new"])), "");
    assert_eq!(short(partition(1), pods(["old", "old", "new"])), "delete pods/db-1");
    assert_eq!(short(set(json!({"updateStrategy": {"type": "OnDelete"}}), json!({})), pods(["old"; 3])), "");
    // A pod below the partition comes back as it was.
    let text = plan(partition(2), vec![pod(1, "old", true), pod(2, "new", true)], vec![]);
    assert!(text.contains(r#""controller-revision-hash":"old""#) && text.contains(r#""name":"o""#), "{text}");
}

#[test]
fn writes_the_status() {
    let strategy = json!({"currentRevision": "old", "updateRevision": "new"});
    let line = |pods: Vec<Value>| {
        let text = plan(set(json!({"minReadySeconds": 60}), strategy.clone()), pods, vec![]);
        text.lines()
            .find(|l| l.contains("/status"))
            .unwrap_or_default()
            .split(r#""status":"#)
            .nth(1)
            .unwrap_or_default()
            .to_owned()
    };
    expect![[r#"{"availableReplicas":0,"collisionCount":0,"currentReplicas":2,"currentRevision":"old","observedGeneration":1,"readyReplicas":2,"replicas":3,"updateRevision":"new","updatedReplicas":1}}"#]].assert_eq(&line(vec![pod(0, "old", true), pod(1, "old", false), pod(2, "new", true)]));
    expect![[r#"{"availableReplicas":0,"collisionCount":0,"currentReplicas":3,"currentRevision":"new","observedGeneration":1,"readyReplicas":3,"replicas":3,"updateRevision":"new","updatedReplicas":3}}"#]].assert_eq(&line(vec![pod(0, "new", true), pod(1, "new", true), pod(2, "new", true)]));
}

#[test]
fn replaces_failed_pods() {
    let mut failed = pod(0, "new", false);
    failed["status"]["phase"] = "Failed".into();
    assert_eq!(short(set(json!({}), json!({})), vec![failed.clone()]), "delete pods/db-0");
    failed["metadata"]["deletionTimestamp"] = now().to_string().into();
    assert_eq!(short(set(json!({}), json!({})), vec![failed]), "");
}

#[test]
fn looks_again_when_a_pod_becomes_available() {
    // Ready for 50 of 60 seconds.
    let again = |spec: Value| {
        let mut all = json!({"minReadySeconds": 60});
        spec.as_object().unwrap().iter().for_each(|(k, v)| all[k] = v.clone());
        let text = plan(set(all, json!({})), (0..3).map(|i| pod(i, "new", true)).collect(), vec![]);
        text.lines().find(|l| l.starts_with("again")).unwrap_or_default().to_owned()
    };
    let strategies =
        [json!({"type": "OnDelete"}), json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 3}})];
    for strategy in strategies {
        for policy in ["Parallel", "OrderedReady"] {
            let spec = json!({"podManagementPolicy": policy, "updateStrategy": strategy});
            assert_eq!(again(spec), "again after 10s");
        }
    }
    assert_eq!(again(json!({"minReadySeconds": 50})), "");
}

#[test]
fn parallel_pods_are_written_in_doubling_batches() {
    let template = json!([{"metadata": {"name": "data"}, "spec": {}}]);
    let spec = json!({"replicas": 4, "podManagementPolicy": "Parallel", "volumeClaimTemplates": template});
    let text = plan(set(spec, json!({})), vec![], vec![]);
    let stages = text.split("--\n").map(|stage| {
        let what =
            |l: &str| l.starts_with("create").then(|| l.split(" {").next().unwrap_or_default().to_owned());
        stage
            .lines()
            .filter_map(what)
            .map(|l| l.replace("create persistentvolume", ""))
            .collect::<Vec<_>>()
            .join(" ")
    });
    assert_eq!(
        stages.collect::<Vec<_>>(),
        ["", "claims", "create pods", "claims claims", "create pods create pods", "claims", "create pods"]
    );
}

#[test]
fn as_many_pods_are_updated_as_may_be_unavailable() {
    let with = |most: Value, partition: i64, policy: &str| {
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition, "maxUnavailable": most}});
        set(
            json!({"replicas": 5, "podManagementPolicy": policy, "updateStrategy": strategy}),
            json!({"currentRevision": "old"}),
        )
    };
    let old = || (0..5).map(|i| pod(i, "old", true)).collect::<Vec<_>>();
    for policy in ["Parallel", "OrderedReady"] {
        assert_eq!(short(with(json!(2), 0, policy), old()), "delete pods/db-4; delete pods/db-3");
        // Rounded down, and at least one.
        assert_eq!(short(with(json!("59%"), 0, policy), old()), "delete pods/db-4; delete pods/db-3");
        assert_eq!(short(with(json!("1%"), 0, policy), old()), "delete pods/db-4");
        assert_eq!(short(with(json!(3), 4, policy), old()), "delete pods/db-4");
    }
    // A pod that is not ready counts, wherever it is.
    let mut pods = old();
    pods[0] = pod(0, "old", false);
    assert_eq!(short(with(json!(2), 1, "Parallel"), pods.clone()), "delete pods/db-4");
    // In parallel, one that is unavailable already is replaced first; in order, it holds up the update.
    assert_eq!(short(with(json!(2), 0, "Parallel"), pods.clone()), "delete pods/db-0; delete pods/db-4");
    assert_eq!(short(with(json!(1), 0, "Parallel"), pods.clone()), "delete pods/db-0");
    assert_eq!(short(with(json!(1), 0, "OrderedReady"), pods), "");
}

#[test]
fn only_revisions_without_pods_count_for_the_limit() {
    let deleted = |limit: i64, pods: Vec<Value>| {
        let set = set(json!({"revisionHistoryLimit": limit}), json!({}));
        plan(set, pods, vec![]).contains("delete controllerrevisions/old")
    };
    let pods = |first: &str| vec![pod(0, first, true), pod(1, "new", true), pod(2, "new", true)];
    assert!(deleted(0, pods("new")) && !deleted(1, pods("new")) && !deleted(0, pods("old")));
}

#[test]
fn unavailable_replicas_are_shown() {
    let gauges = |spec: Value, pods: Vec<Value>| {
        let all = status::gauges(&snapshot([set(spec, json!({}))]), &snapshot(pods), now());
        all.iter().map(|gauge| sample(gauge) + "\n").collect::<String>()
    };
    let mut leaving = pod(1, "new", true);
    leaving["metadata"]["deletionTimestamp"] = now().to_string().into();
    // Beside the first one: one that is being deleted, one that is missing, and one beyond the number.
    let pods = vec![pod(0, "new", true), leaving, pod(7, "new", true)];
    expect![[r#"
        statefulset_controller_statefulset_max_unavailable "ns" "db" "OrderedReady" = 1
        statefulset_controller_statefulset_unavailable_replicas "ns" "db" "OrderedReady" = 2
    "#]]
    .assert_eq(&gauges(json!({}), pods));
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "70%"}});
    let text = gauges(json!({"updateStrategy": strategy, "minReadySeconds": 60}), vec![pod(0, "new", true)]);
    assert!(text.contains("max_unavailable \"ns\" \"db\" \"OrderedReady\" = 2\n"), "{text}");
    assert!(text.contains("unavailable_replicas \"ns\" \"db\" \"OrderedReady\" = 3\n"), "{text}");
}

//! Tests of `deployment`: fixtures in, expectations out.

use super::*;
use crate::testing::{ago, now, object, reconcile, snapshot, text};
use expect_test::expect;
use kaji_meta::{Status, gvk::GroupResource};
use kaji_runtime::{Error, Failure, ObjectSnapshot, client::Target};
use serde_json::Value;
use std::fmt::Write as _;

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn deployment(replicas: i64, image: &str) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "d1", "resourceVersion": "9", "generation": 1,
            "annotations": {"note": "n", "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": template(image),
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 600,
        },
        "status": {},
    })
}

fn set(name: &str, image: &str, age: i64, replicas: i64, available: i64, desired: i64) -> Value {
    let mut labelled = template(image);
    labelled["metadata"]["labels"][HASH_LABEL] = name.into();
    json!({
        "metadata": {"name": format!("web-{name}"), "namespace": "ns", "uid": name, "resourceVersion": "1",
            "creationTimestamp": ago(age), "generation": 1, "labels": {"app": "web", HASH_LABEL: name},
            "annotations": {"note": "n", sets::REVISION: (1000 - age).to_string(), sets::DESIRED: desired.to_string(),
                sets::MAX: (desired + (desired + 3) / 4).to_string()},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d1", "controller": true}]},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": labelled},
        "status": {"replicas": replicas, "readyReplicas": available, "availableReplicas": available,
            "observedGeneration": 1, "terminatingReplicas": 0},
    })
}

fn view(d: Value, sets: Vec<Value>, pods: Vec<Value>) -> View {
    View::default()
        .with(ObjectSnapshot::of([object::<Deployment>(d)]))
        .with(snapshot::<ReplicaSet>(sets))
        .with(snapshot::<Pod>(pods))
}

fn plan(d: Value, sets: Vec<Value>, failures: &[Failure]) -> String {
    text(&reconcile(&Deployments, &view(d, sets, vec![]), "ns", "web", failures))
}

/// Only what happens to sizes, as events tell it.
fn scaling(plan: &str) -> String {
    plan.lines().filter_map(|l| l.split("ScalingReplicaSet: ").nth(1)).collect::<Vec<_>>().join("\n")
}

#[test]
fn creates_the_first_set() {
    expect![[r#"
        create /apis/apps/v1/namespaces/ns/replicasets {"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"annotations":{"deployment.kubernetes.io/desired-replicas":"3","deployment.kubernetes.io/max-replicas":"4","deployment.kubernetes.io/revision":"1","note":"n"},"labels":{"app":"web","pod-template-hash":"55745ff497"},"name":"web-55745ff497","namespace":"ns","ownerReferences":[{"apiVersion":"apps/v1","blockOwnerDeletion":true,"controller":true,"kind":"Deployment","name":"web","uid":"d1"}]},"spec":{"minReadySeconds":0,"replicas":3,"selector":{"matchLabels":{"app":"web","pod-template-hash":"55745ff497"}},"template":{"metadata":{"labels":{"app":"web","pod-template-hash":"55745ff497"}},"spec":{"containers":[{"image":"i:1","name":"c"}]}}}}
            ok: Normal ScalingReplicaSet: Scaled up replica set web-55745ff497 from 0 to 3
            failed: Warning ReplicaSetCreateError: Failed to create new replica set "web-55745ff497": {error}
        --
        merge /apis/apps/v1/namespaces/ns/deployments/web/status {"metadata":{"annotations":{"deployment.kubernetes.io/revision":"1"},"resourceVersion":"9","uid":"d1"},"status":{"availableReplicas":null,"collisionCount":null,"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","lastUpdateTime":"2025-01-01T12:00:00Z","message":"Created new replica set \"web-55745ff497\"","reason":"NewReplicaSetCreated","status":"True","type":"Progressing"},{"lastTransitionTime":"2025-01-01T12:00:00Z","lastUpdateTime":"2025-01-01T12:00:00Z","message":"Deployment does not have minimum availability.","reason":"MinimumReplicasUnavailable","status":"False","type":"Available"}],"observedGeneration":1,"readyReplicas":null,"replicas":null,"terminatingReplicas":0,"unavailableReplicas":3,"updatedReplicas":null}}
    "#]].assert_eq(&plan(deployment(3, "i:1"), vec![], &[]));
}

/// Carries plans out until nothing changes; new pods become available between the steps.
fn simulate(mut d: Value, mut sets: Vec<Value>) -> String {
    let mut out = String::new();
    for _ in 0..30 {
        let plan = reconcile(&Deployments, &view(d.clone(), sets.clone(), vec![]), "ns", "web", &[]);
        let mut progress = false;
        for step in plan.stages.iter().flat_map(|stage| &stage.steps) {
            if let Some(event) = &step.on_success {
                let _ = writeln!(out, "{}", event.message);
            }
            match &step.write {
                Write::Create { body, .. } => {
                    let mut body = body.clone();
                    body["metadata"]["uid"] = body["metadata"]["name"].clone();
                    body["metadata"]["creationTimestamp"] = now().to_string().into();
                    sets.push(body);
                }
                Write::Patch { target, body, .. } => {
                    let object = if target.resource == "deployments" {
                        &mut d
                    } else {
                        sets.iter_mut().find(|s| s["metadata"]["name"] == target.name).unwrap()
                    };
                    merge(object, body);
                }
                other => panic!("{other:?}"),
            }
            progress = true;
        }
        for set in &mut sets {
            let replicas = set["spec"]["replicas"].clone();
            let status = json!({"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
                "terminatingReplicas": 0, "observedGeneration": 1});
            progress |= set["status"] != status;
            set["status"] = status;
        }
        if !progress {
            let conditions: Vec<String> = d["status"]["conditions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|c| format!("{}={} {}: {}", c["type"], c["status"], c["reason"], c["message"]))
                .collect();
            let _ = write!(out, "{}", conditions.join("\n"));
            return out;
        }
    }
    panic!("does not settle:\n{out}")
}

fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (into, Value::Object(patch)) => {
            *into = json!({});
            merge(into, &Value::Object(patch.clone()));
        }
        (into, patch) => *into = patch.clone(),
    }
}

#[test]
fn rolls_step_by_step() {
    let mut d = deployment(10, "i:2");
    d["spec"]["strategy"]["rollingUpdate"] = json!({"maxSurge": 3, "maxUnavailable": 2});
    expect![[r#"
        Scaled up replica set web-789775d5f4 from 0 to 3
        Scaled down replica set web-old from 10 to 8
        Scaled up replica set web-789775d5f4 from 3 to 5
        Scaled down replica set web-old from 8 to 3
        Scaled up replica set web-789775d5f4 from 5 to 10
        Scaled down replica set web-old from 3 to 0
        "Available"="True" "MinimumReplicasAvailable": "Deployment has minimum availability."
        "Progressing"="True" "NewReplicaSetAvailable": "ReplicaSet \"web-789775d5f4\" has successfully progressed.""#]].assert_eq(&simulate(d, vec![set("old", "i:1", 100, 10, 10, 10)]));
}

#[test]
fn rolls_one_by_one_when_both_bounds_round_to_zero() {
    let mut d = deployment(2, "i:2");
    d["spec"]["strategy"]["rollingUpdate"] = json!({"maxSurge": 0, "maxUnavailable": "25%"});
    expect![[r#"
        Scaled down replica set web-old from 2 to 1
        Scaled up replica set web-789775d5f4 from 0 to 1
        Scaled down replica set web-old from 1 to 0
        Scaled up replica set web-789775d5f4 from 1 to 2
        "Available"="True" "MinimumReplicasAvailable": "Deployment has minimum availability."
        "Progressing"="True" "NewReplicaSetAvailable": "ReplicaSet \"web-789775d5f4\" has successfully progressed.""#]].assert_eq(&simulate(d, vec![set("old", "i:1", 100, 2, 2, 2)]));
}

#[test]
fn recreates_pods() {
    let mut d = deployment(2, "i:2");
    d["spec"]["strategy"] = json!({"type": "Recreate"});
    expect![[r#"
        Scaled down replica set web-old from 2 to 0
        Scaled up replica set web-789775d5f4 from 0 to 2
        "Available"="True" "MinimumReplicasAvailable": "Deployment has minimum availability."
        "Progressing"="True" "NewReplicaSetAvailable": "ReplicaSet \"web-789775d5f4\" has successfully progressed.""#]].assert_eq(&simulate(d, vec![set("old", "i:1", 100, 2, 2, 2)]));
}

#[test]
fn recreation_waits_for_old_pods() {
    let mut d = deployment(2, "i:2");
    d["spec"]["strategy"] = json!({"type": "Recreate"});
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p", "deletionTimestamp": ago(1),
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-old", "uid": "old", "controller": true}]},
        "status": {"phase": "Running"}});
    let view = view(d, vec![set("old", "i:1", 100, 0, 0, 2)], vec![pod]);
    let text = text(&reconcile(&Deployments, &view, "ns", "web", &[]));
    assert!(!text.contains("create"), "{text}");
}

#[test]
fn rollback_reuses_the_old_replica_set() {
    let sets = vec![set("old", "i:1", 100, 0, 0, 2), set("new", "i:2", 50, 2, 2, 2)];
    expect![[r#"
        merge /apis/apps/v1/namespaces/ns/replicasets/web-old {"metadata":{"annotations":{"deployment.kubernetes.io/revision":"951","deployment.kubernetes.io/revision-history":"900"},"resourceVersion":"1","uid":"old"},"spec":{"replicas":1}}
            ok: Normal ScalingReplicaSet: Scaled up replica set web-old from 0 to 1
        --
        merge /apis/apps/v1/namespaces/ns/deployments/web/status {"metadata":{"annotations":{"deployment.kubernetes.io/revision":"951"},"resourceVersion":"9","uid":"d1"},"status":{"availableReplicas":2,"collisionCount":null,"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","lastUpdateTime":"2025-01-01T12:00:00Z","message":"Deployment has minimum availability.","reason":"MinimumReplicasAvailable","status":"True","type":"Available"},{"lastTransitionTime":"2025-01-01T12:00:00Z","lastUpdateTime":"2025-01-01T12:00:00Z","message":"ReplicaSet \"web-old\" is progressing.","reason":"ReplicaSetUpdated","status":"True","type":"Progressing"}],"observedGeneration":1,"readyReplicas":2,"replicas":2,"terminatingReplicas":0,"unavailableReplicas":1,"updatedReplicas":null}}
    "#]].assert_eq(&plan(deployment(2, "i:1"), sets, &[]));
}

#[test]
fn an_annotation_asks_for_a_rollback() {
    let run = |image: &str, to: &str| {
        let mut d = deployment(2, image);
        d["metadata"]["annotations"][sets::ROLLBACK_TO] = to.into();
        d["metadata"]["annotations"][sets::REVISION] = "950".into();
        let mut old = set("old", "i:1", 100, 0, 0, 2);
        old["metadata"]["annotations"] = json!({sets::REVISION: "900", "cause": "old"});
        plan(d, vec![old, set("new", "i:2", 50, 2, 2, 2)], &[])
    };
    let back = run("i:2", "900");
    expect![[r#"
        strategic /apis/apps/v1/namespaces/ns/deployments/web {"metadata":{"annotations":{"cause":"old","deprecated.deployment.rollback.to":null,"note":null},"resourceVersion":"9","uid":"d1"},"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"image":"i:1","name":"c"}]}}}}
            ok: Normal DeploymentRollback: Rolled back deployment "web" to revision 900
    "#]].assert_eq(&back);
    // The last revision is the one before the present one.
    assert_eq!(run("i:2", "0"), back);
    let given_up = |text: &str| text.replace("/apis/apps/v1/namespaces/ns/deployments/", "");
    expect![[r#"
        strategic web {"metadata":{"annotations":{"deprecated.deployment.rollback.to":null},"resourceVersion":"9","uid":"d1"}}
        event: Warning DeploymentRollbackRevisionNotFound: Unable to find the revision to rollback to.
    "#]].assert_eq(&given_up(&run("i:2", "7")));
    expect![[r#"
        strategic web {"metadata":{"annotations":{"deprecated.deployment.rollback.to":null},"resourceVersion":"9","uid":"d1"}}
        event: Warning DeploymentRollbackTemplateUnchanged: The rollback revision contains the same template as current deployment "web"
    "#]].assert_eq(&given_up(&run("i:2", "950")));
    // Without a set of the present template that comes first; it is revision 951 then.
    let text = run("i:3", "951");
    let verbs: Vec<&str> = text.lines().filter(|l| !l.starts_with("    ")).collect();
    assert!(verbs[0].starts_with("create ") && verbs[2].starts_with("strategic "), "{text}");
    assert!(text.contains("DeploymentRollbackTemplateUnchanged"), "{text}");
    // What is no number is ignored.
    assert!(!run("i:2", "x").contains("strategic"));
}

#[test]
fn scales_proportionally() {
    let mut d = deployment(20, "i:2");
    d["spec"]["strategy"]["rollingUpdate"] = json!({"maxSurge": 0, "maxUnavailable": 2});
    let sets = |max: &str| {
        let mut sets = vec![set("old", "i:1", 100, 6, 6, 10), set("new", "i:2", 50, 4, 2, 10)];
        for set in &mut sets {
            set["metadata"]["annotations"][sets::MAX] = max.into();
        }
        sets
    };
    expect![[r#"
        Scaled up replica set web-old from 6 to 12
        Scaled up replica set web-new from 4 to 8"#]]
    .assert_eq(&scaling(&plan(d.clone(), sets("10"), &[])));
    d["spec"]["replicas"] = 5.into();
    expect![[r#"
        Scaled down replica set web-old from 6 to 3
        Scaled down replica set web-new from 4 to 2"#]]
    .assert_eq(&scaling(&plan(d.clone(), sets("10"), &[])));
    d["spec"]["replicas"] = 0.into();
    expect![[r#"
        Scaled down replica set web-old from 6 to 0
        Scaled down replica set web-new from 4 to 0"#]]
    .assert_eq(&scaling(&plan(d, sets("10"), &[])));
}

#[test]
fn scales_down_unhealthy_old_pods_first() {
    // The new set does not come up; two of the old one's pods are broken as well.
    let mut d = deployment(10, "i:2");
    d["spec"]["strategy"]["rollingUpdate"] = json!({"maxSurge": 3, "maxUnavailable": 2});
    let sets =
        vec![set("a", "i:0", 100, 4, 2, 10), set("b", "i:1", 90, 6, 6, 10), set("new", "i:2", 50, 3, 0, 10)];
    expect!["Scaled down replica set web-a from 4 to 2"].assert_eq(&scaling(&plan(d, sets, &[])));
}

/// The old set was scaled from four to three, and its controller is slow: one of four available pods goes already.
#[test]
fn counts_no_pods_that_go_already_as_available() {
    let mut d = deployment(4, "i:2");
    d["spec"]["strategy"]["rollingUpdate"] = json!({"maxSurge": 1, "maxUnavailable": 1});
    let sets = |available| vec![set("old", "i:1", 100, 3, available, 4), set("new", "i:2", 50, 2, 1, 4)];
    assert_eq!(scaling(&plan(d.clone(), sets(4), &[])), "");
    expect!["Scaled down replica set web-old from 3 to 2"].assert_eq(&scaling(&plan(d, sets(3), &[])));
}

#[test]
fn scales_without_rollout_while_paused() {
    let mut d = deployment(3, "i:2");
    d["spec"]["paused"] = true.into();
    expect![[r#"
        merge /apis/apps/v1/namespaces/ns/replicasets/web-old {"metadata":{"annotations":{"deployment.kubernetes.io/desired-replicas":"3","deployment.kubernetes.io/max-replicas":"4"},"resourceVersion":"1","uid":"old"},"spec":{"replicas":3}}
            ok: Normal ScalingReplicaSet: Scaled up replica set web-old from 2 to 3
        --
        merge /apis/apps/v1/namespaces/ns/deployments/web/status {"metadata":{"resourceVersion":"9","uid":"d1"},"status":{"availableReplicas":2,"collisionCount":null,"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","lastUpdateTime":"2025-01-01T12:00:00Z","message":"Deployment is paused","reason":"DeploymentPaused","status":"Unknown","type":"Progressing"},{"lastTransitionTime":"2025-01-01T12:00:00Z","lastUpdateTime":"2025-01-01T12:00:00Z","message":"Deployment does not have minimum availability.","reason":"MinimumReplicasUnavailable","status":"False","type":"Available"}],"observedGeneration":1,"readyReplicas":2,"replicas":2,"terminatingReplicas":0,"unavailableReplicas":1,"updatedReplicas":null}}
    "#]].assert_eq(&plan(d, vec![set("old", "i:1", 100, 2, 2, 2)], &[]));
}

#[test]
fn reports_an_exceeded_progress_deadline() {
    let stuck = |seconds: i64| {
        let mut d = deployment(1, "i:1");
        d["metadata"]["annotations"][sets::REVISION] = "900".into();
        d["status"] = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1,
            "terminatingReplicas": 0, "conditions": [
            {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable", "message": "Deployment does not have minimum availability."},
            {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "message": "m",
                "lastUpdateTime": ago(seconds), "lastTransitionTime": ago(seconds)}]});
        plan(d, vec![set("new", "i:1", 100, 1, 0, 1)], &[])
    };
    expect![[r#"
        again after 501s
    "#]]
    .assert_eq(&stuck(100));
    expect![[r#"
        merge /apis/apps/v1/namespaces/ns/deployments/web/status {"metadata":{"resourceVersion":"9","uid":"d1"},"status":{"availableReplicas":null,"collisionCount":null,"conditions":[{"message":"Deployment does not have minimum availability.","reason":"MinimumReplicasUnavailable","status":"False","type":"Available"},{"lastTransitionTime":"2025-01-01T12:00:00Z","lastUpdateTime":"2025-01-01T12:00:00Z","message":"ReplicaSet \"web-new\" has timed out progressing.","reason":"ProgressDeadlineExceeded","status":"False","type":"Progressing"}],"observedGeneration":1,"readyReplicas":null,"replicas":1,"terminatingReplicas":0,"unavailableReplicas":1,"updatedReplicas":1}}
    "#]].assert_eq(&stuck(700));
}

#[test]
fn cleans_up_over_the_history_limit() {
    let mut d = deployment(1, "i:9");
    d["spec"]["revisionHistoryLimit"] = 1.into();
    d["status"] = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1});
    let mut busy = set("busy", "i:0", 400, 0, 0, 1);
    busy["status"]["replicas"] = 1.into();
    let sets = vec![
        busy,
        set("a", "i:1", 300, 0, 0, 1),
        set("b", "i:2", 200, 0, 0, 1),
        set("new", "i:9", 100, 1, 1, 1),
    ];
    let text = plan(d, sets, &[]);
    let deletes: Vec<&str> = text.lines().filter(|l| l.starts_with("delete")).collect();
    expect![[r#"delete /apis/apps/v1/namespaces/ns/replicasets/web-a {"preconditions":{"uid":"a"}}"#]]
        .assert_eq(&deletes.join("\n"));
}

fn failure(status: Status) -> [Failure; 1] {
    [Failure { target: Target::of::<ReplicaSet>("ns", ""), error: Error::Api(Box::new(status)) }]
}

#[test]
fn counts_hash_collisions() {
    let d = deployment(1, "i:1");
    let hash = template_hash(&template("i:1"), None);
    let mut other = set("x", "i:0", 10, 0, 0, 1);
    other["metadata"]["name"] = format!("web-{hash}").into();
    other["metadata"]["ownerReferences"] = json!([]);
    other["metadata"]["labels"] = json!({});
    let exists = Status::already_exists(&GroupResource::new("apps", "replicasets"), "x");
    expect![[r#"
        merge /apis/apps/v1/namespaces/ns/deployments/web/status {"metadata":{"resourceVersion":"9","uid":"d1"},"status":{"collisionCount":1}}
    "#]].assert_eq(&plan(d, vec![other], &failure(exists)));
}

#[test]
fn reports_a_failed_creation() {
    let denied = Status::forbidden(&GroupResource::new("apps", "replicasets"), "x", "no");
    expect![[r#"
        merge /apis/apps/v1/namespaces/ns/deployments/web/status {"metadata":{"resourceVersion":"9","uid":"d1"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","lastUpdateTime":"2025-01-01T12:00:00Z","message":"Failed to create new replica set \"web-55745ff497\": replicasets.apps \"x\" is forbidden: no","reason":"ReplicaSetCreateError","status":"False","type":"Progressing"}]}}
    "#]].assert_eq(&plan(deployment(1, "i:1"), vec![], &failure(denied)));
}

#[test]
fn ignores_a_deployment_that_selects_all_pods() {
    let mut d = deployment(1, "i:1");
    d["spec"]["selector"] = json!({});
    expect![[r#"
        merge /apis/apps/v1/namespaces/ns/deployments/web/status {"metadata":{"resourceVersion":"9","uid":"d1"},"status":{"observedGeneration":1}}
        event: Warning SelectingAll: This deployment is selecting all pods. A non-empty selector is required.
    "#]].assert_eq(&plan(d, vec![], &[]));
}

//! Tests of `daemonset`: fixtures in, expectations out.

use super::*;
use crate::testing::{ago, object, reconcile, snapshot, text};
use expect_test::expect;

fn set(spec: Value) -> Value {
    let mut set = json!({
        "metadata": {"name": "agent", "namespace": "ns", "uid": "d1", "resourceVersion": "7", "generation": 1,
            "annotations": {GENERATION: "1"}},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "c"}]}},
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        set["spec"][field] = value.clone();
    }
    set
}

fn revision(set: &Value, name: &str, number: i64) -> Value {
    let mut template = set["spec"]["template"].clone();
    template["$patch"] = "replace".into();
    json!({
        "metadata": {"name": format!("agent-{name}"), "namespace": "ns", "uid": name, "resourceVersion": "3",
            "labels": {"app": "agent", HASH_LABEL: name},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d1", "controller": true}]},
        "data": {"spec": {"template": template}}, "revision": number,
    })
}

fn node(name: &str, taints: Value) -> Value {
    json!({"metadata": {"name": name, "labels": {"zone": name}}, "spec": {"taints": taints}})
}

fn pod(name: &str, node: &str, hash: &str, ready: bool) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": ago(100),
            "labels": {"app": "agent", HASH_LABEL: hash},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d1", "controller": true}]},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" },
            "lastTransitionTime": ago(50)}]},
    })
}

fn plan(set: Value, nodes: Vec<Value>, pods: Vec<Value>, revisions: Vec<Value>) -> String {
    plan_of(&DaemonSets::default(), set, nodes, pods, revisions)
}

fn plan_of(
    sets: &DaemonSets,
    set: Value,
    nodes: Vec<Value>,
    pods: Vec<Value>,
    revisions: Vec<Value>,
) -> String {
    let view = View::default()
        .with(snapshot::<DaemonSet>([set]))
        .with(snapshot::<Node>(nodes))
        .with(snapshot::<Pod>(pods))
        .with(snapshot::<ControllerRevision>(revisions));
    let text = text(&reconcile(sets, &view, "ns", "agent", &[]));
    text.lines()
        .filter(|l| !l.contains("    failed:") && !l.contains("    ok:"))
        .map(|l| l.replace("/api/v1/namespaces/ns/", "").replace("/apis/apps/v1/namespaces/ns/", "") + "\n")
        .collect()
}

/// The first words of each line.
fn verbs(text: &str) -> String {
    text.lines()
        .filter(|l| !l.starts_with("--"))
        .map(|l| l.split(" {").next().unwrap_or_default().to_owned())
        .filter(|l| !l.ends_with("/status"))
        .collect::<Vec<_>>()
        .join("; ")
}

#[test]
fn creates_the_revision_before_pods() {
    expect![[r#"
        create controllerrevisions {"apiVersion":"apps/v1","data":{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"agent"}},"spec":{"containers":[{"name":"c"}]}}}},"kind":"ControllerRevision","metadata":{"annotations":{"deprecated.daemonset.template.generation":"1"},"labels":{"app":"agent","controller-revision-hash":"64c66f5559"},"name":"agent-64c66f5559","namespace":"ns","ownerReferences":[{"apiVersion":"apps/v1","blockOwnerDeletion":true,"controller":true,"kind":"DaemonSet","name":"agent","uid":"d1"}]},"revision":1}
    "#]].assert_eq(&plan(set(json!({})), vec![node("n1", json!([]))], vec![], vec![]));
    // Going back to a former template goes back to its revision.
    let now = set(json!({}));
    let mut other = set(json!({}));
    other["spec"]["template"]["spec"]["containers"][0]["name"] = "other".into();
    let revisions = vec![revision(&now, "aaa", 1), revision(&other, "bbb", 2)];
    expect![[r#"
        merge controllerrevisions/agent-aaa {"metadata":{"resourceVersion":"3","uid":"aaa"},"revision":3}
    "#]]
    .assert_eq(&plan(now, vec![], vec![], revisions));
}

#[test]
fn pods_of_a_second_revision_of_the_template_are_kept() {
    let set = set(json!({}));
    let mut other = set.clone();
    other["spec"]["template"]["spec"]["containers"][0]["name"] = "other".into();
    let revisions = vec![revision(&other, "old", 1), revision(&set, "aaa", 2), revision(&set, "bbb", 3)];
    let nodes = ["n1", "n2", "n3"].map(|name| node(name, json!([]))).to_vec();
    let pods = vec![pod("p1", "n1", "aaa", true), pod("p2", "n2", "bbb", true), pod("p3", "n3", "old", true)];
    expect![[r#"
        merge pods/p1 {"metadata":{"labels":{"controller-revision-hash":"bbb"},"uid":"p1"}}
        --
        delete controllerrevisions/agent-aaa {"preconditions":{"uid":"aaa"}}
    "#]]
    .assert_eq(&plan(set, nodes, pods, revisions));
}

#[test]
fn runs_one_pod_per_node() {
    let set = set(json!({}));
    let nodes = vec![
        node("n1", json!([])),
        node("n2", json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])),
        node("n3", json!([{"key": "special", "effect": "NoSchedule"}])),
        node("n4", json!([{"key": "special", "effect": "NoExecute"}])),
    ];
    let mut failed = pod("failed", "n2", "aaa", false);
    failed["status"]["phase"] = "Failed".into();
    let pods = vec![pod("kept", "n3", "aaa", true), pod("driven-out", "n4", "aaa", true), failed];
    expect![[r#"
        merge daemonsets/agent/status {"metadata":{"resourceVersion":"7","uid":"d1"},"status":{"currentNumberScheduled":1,"desiredNumberScheduled":2,"numberAvailable":null,"numberMisscheduled":2,"numberReady":0,"numberUnavailable":2,"observedGeneration":1,"updatedNumberScheduled":1}}
        --
        create pods {"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"agent-","labels":{"app":"agent","controller-revision-hash":"aaa","pod-template-generation":"1"},"ownerReferences":[{"apiVersion":"apps/v1","blockOwnerDeletion":true,"controller":true,"kind":"DaemonSet","name":"agent","uid":"d1"}]},"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n1"]}]}]}}},"containers":[{"name":"c"}],"tolerations":[{"effect":"NoExecute","key":"node.kubernetes.io/not-ready","operator":"Exists"},{"effect":"NoExecute","key":"node.kubernetes.io/unreachable","operator":"Exists"},{"effect":"NoSchedule","key":"node.kubernetes.io/disk-pressure","operator":"Exists"},{"effect":"NoSchedule","key":"node.kubernetes.io/memory-pressure","operator":"Exists"},{"effect":"NoSchedule","key":"node.kubernetes.io/pid-pressure","operator":"Exists"},{"effect":"NoSchedule","key":"node.kubernetes.io/unschedulable","operator":"Exists"}]}}
        -- independent
        delete pods/failed {"preconditions":{"uid":"failed"}}
        delete pods/driven-out {"preconditions":{"uid":"driven-out"}}
        event: Warning FailedDaemonPod: Found failed daemon pod ns/failed on node n2, will try to kill it
    "#]].assert_eq(&plan(set.clone(), nodes, pods, vec![revision(&set, "aaa", 1)]));
}

#[test]
fn backs_off_before_it_deletes_failed_pods() {
    let set = set(json!({}));
    let sets = DaemonSets::default();
    let deleted = |name: &str, node_name: &str| {
        let mut failed = pod(name, node_name, "aaa", false);
        failed["status"]["phase"] = "Failed".into();
        let nodes = vec![node(node_name, json!([]))];
        let plan = plan_of(&sets, set.clone(), nodes, vec![failed], vec![revision(&set, "aaa", 1)]);
        verbs(&plan).split("; event").next().unwrap_or_default().to_owned()
    };
    assert_eq!(deleted("first", "n1"), "delete pods/first");
    assert_eq!(deleted("second", "n1"), "again after 1s");
    assert_eq!(deleted("other", "n2"), "delete pods/other");
}

#[test]
fn updates_within_the_bounds() {
    let set = |strategy: Value| {
        set(json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": strategy}}))
    };
    let nodes = || (1..=4).map(|i| node(&format!("n{i}"), json!([]))).collect::<Vec<_>>();
    let pods = |hashes: [(&str, bool); 4]| {
        let all = hashes.iter().enumerate();
        all.map(|(i, (hash, ready))| pod(&format!("p{}", i + 1), &format!("n{}", i + 1), hash, *ready))
            .collect::<Vec<_>>()
    };
    let run = |strategy: Value, pods: Vec<Value>| {
        let set = set(strategy);
        verbs(&plan(set.clone(), nodes(), pods, vec![revision(&set, "new", 2)]))
    };
    let one = || json!({"maxUnavailable": 1, "maxSurge": 0});
    assert_eq!(run(one(), pods([("old", true); 4])), "delete pods/p1");
    assert_eq!(run(one(), pods([("new", false), ("old", true), ("old", true), ("old", true)])), "");
    assert_eq!(
        run(one(), pods([("new", true), ("old", true), ("old", false), ("old", true)])),
        "delete pods/p3"
    );
    assert_eq!(
        run(json!({"maxUnavailable": "50%", "maxSurge": 0}), pods([("old", true); 4])),
        "delete pods/p1; delete pods/p2"
    );
    // With a surge the new pod comes before the old one goes.
    let surge = || json!({"maxUnavailable": 0, "maxSurge": 1});
    assert_eq!(run(surge(), pods([("old", true); 4])), "create pods");
    let mut both = pods([("old", true); 4]);
    both.push(pod("p1-new", "n1", "new", false));
    assert_eq!(run(surge(), both.clone()), "");
    both[4] = pod("p1-new", "n1", "new", true);
    assert_eq!(run(surge(), both), "delete pods/p1");
}

#[test]
fn a_new_pod_that_surges_is_looked_at_again_when_it_becomes_available() {
    let strategy =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "20%"}});
    let set = set(json!({"updateStrategy": strategy, "minReadySeconds": 10}));
    let mut new = pod("p-new", "n1", "new", true);
    let run = |new: &Value| {
        let pods = vec![pod("p", "n1", "old", true), new.clone()];
        let text = plan(set.clone(), vec![node("n1", json!([]))], pods, vec![revision(&set, "new", 2)]);
        verbs(&text)
    };
    new["status"]["conditions"][0]["lastTransitionTime"] = ago(9).into();
    assert_eq!(run(&new), "again after 10s");
    new["status"]["conditions"][0]["lastTransitionTime"] = ago(10).into();
    assert_eq!(run(&new), "delete pods/p");
}

#[test]
fn selects_nodes() {
    let fits = |spec: Value| {
        let template = json!({"spec": spec});
        let node: Node = object(node("n1", json!([])));
        Placement::of(&template).fit(&node).run
    };
    assert!(fits(json!({})));
    assert!(fits(json!({"nodeSelector": {"zone": "n1"}})));
    assert!(!fits(json!({"nodeSelector": {"zone": "n2"}})));
    assert!(!fits(json!({"nodeName": "n2"})));
    let required = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
    let expression = |op: &str, values: Value| {
        required(json!([{"matchExpressions": [{"key": "zone", "operator": op, "values": values}]}]))
    };
    assert!(fits(expression("In", json!(["n1", "x"]))));
    assert!(!fits(expression("NotIn", json!(["n1"]))));
    assert!(fits(expression("Exists", json!([]))));
    assert!(!fits(expression("DoesNotExist", json!([]))));
    assert!(!fits(required(json!([{}]))));
    assert!(fits(required(
        json!([{}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}])
    )));
}

#[test]
fn deletes_old_revisions() {
    let set = set(json!({"revisionHistoryLimit": 1}));
    let mut others: Vec<Value> = (1..=3)
        .map(|i| {
            let mut other = set.clone();
            other["spec"]["template"]["spec"]["containers"][0]["name"] = format!("c{i}").into();
            revision(&other, &format!("r{i}"), i)
        })
        .collect();
    others.push(revision(&set, "new", 4));
    // The first is still in use.
    let pods = vec![pod("p1", "n1", "r1", false)];
    let mut on_delete = set;
    on_delete["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    expect!["delete controllerrevisions/agent-r2; delete controllerrevisions/agent-r3"]
        .assert_eq(&verbs(&plan(on_delete, vec![node("n1", json!([]))], pods, others)));
}

#[test]
fn refused_pods_do_not_keep_what_has_to_go() {
    let set = set(json!({}));
    let nodes = (1..=6).map(|i| node(&format!("n{i}"), json!([])));
    let mut extra = pod("extra", "n6", "aaa", true);
    extra["metadata"]["creationTimestamp"] = ago(10).into();
    let pods = vec![pod("first", "n6", "aaa", true), extra];
    let view = View::default()
        .with(snapshot::<DaemonSet>([set.clone()]))
        .with(snapshot::<Node>(nodes))
        .with(snapshot::<Pod>(pods))
        .with(snapshot::<ControllerRevision>([revision(&set, "aaa", 1)]));
    let plan = reconcile(&DaemonSets::default(), &view, "ns", "agent", &[]);
    let stage = |stage: &kaji_runtime::plan::Stage| {
        let deletes = stage.steps.iter().filter(|s| matches!(s.write, Write::Delete { .. })).count();
        (stage.steps.len() - deletes, deletes, stage.independent)
    };
    // After the status.
    let stages: Vec<_> = plan.stages.iter().skip(1).map(stage).collect();
    assert_eq!(stages, [(1, 0, true), (2, 0, true), (2, 0, true), (0, 1, false)]);
}

#[test]
fn tolerations_of_every_daemon_replace_its_own() {
    let own = |key: &str, operator: &str, effect: &str| json!({"key": key, "operator": operator, "effect": effect, "tolerationSeconds": 30});
    let spec = json!({"tolerations": [
        own("node.kubernetes.io/not-ready", "Exists", "NoExecute"),
        own("node.kubernetes.io/unreachable", "Equal", "NoExecute"),
        {"key": "special", "operator": "Exists"},
    ]});
    let all: Vec<String> = tolerations(&spec).iter().map(Value::to_string).collect();
    expect![[r#"
        {"effect":"NoExecute","key":"node.kubernetes.io/not-ready","operator":"Exists"}
        {"effect":"NoExecute","key":"node.kubernetes.io/unreachable","operator":"Equal","tolerationSeconds":30}
        {"key":"special","operator":"Exists"}
        {"effect":"NoExecute","key":"node.kubernetes.io/unreachable","operator":"Exists"}"#]]
    .assert_eq(&all[..4].join("\n"));
    assert_eq!(all.len(), 8);
}

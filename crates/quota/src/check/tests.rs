//! Fixtures: the usage of objects, and the results of checking quotas.

use super::*;
use crate::LimitedResource;
use expect_test::expect;
use kaji_meta::GroupResource;
use serde_json::json;
use std::collections::BTreeMap;

fn with<R>(f: impl FnOnce(&Context<'_>) -> R) -> R {
    let extended = BTreeMap::from([("gpus".to_owned(), "example.com/gpu".to_owned())]);
    let now = "2026-01-01T00:01:00Z".parse().unwrap();
    f(&Context { now, extended_resources: &extended, charged_to_pods: &BTreeMap::new() })
}

fn evaluator(group: &str, resource: &str) -> Evaluator {
    Evaluator::of(&GroupResource::new(group, resource)).unwrap()
}

fn usage(group: &str, resource: &str, item: Value) -> String {
    with(|cx| print(&evaluator(group, resource).usage(&item, cx)))
}

fn pod(spec: Value, status: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": spec, "status": status})
}

fn ask(cpu: &str) -> Value {
    json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": "2"}}})
}

#[test]
fn pods_use_what_runs_at_once() {
    let spec = json!({"containers": [ask("500m"), ask("250m")], "initContainers": [ask("1")], "overhead": {"cpu": "10m", "memory": "1Mi"}});
    expect![[r#"count/pods=1,cpu=1010m,limits.cpu=4010m,memory=2049Mi,pods=1,requests.cpu=1010m,requests.memory=2049Mi"#]]
        .assert_eq(&usage("", "pods", pod(spec.clone(), json!({}))));
    expect!["count/pods=1"].assert_eq(&usage("", "pods", pod(spec.clone(), json!({"phase": "Succeeded"}))));
    let mut deleted = pod(spec, json!({}));
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    deleted["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    expect!["count/pods=1"].assert_eq(&usage("", "pods", deleted.clone()));
    deleted["metadata"]["deletionGracePeriodSeconds"] = 60.into();
    assert!(usage("", "pods", deleted).contains("pods=1,requests"));
}

#[test]
fn sidecars_run_beside_everything() {
    let mut sidecar = ask("100m");
    sidecar["restartPolicy"] = "Always".into();
    let spec = json!({"containers": [ask("500m")], "initContainers": [sidecar, ask("450m")]});
    assert!(usage("", "pods", pod(spec, json!({}))).contains(",cpu=600m,"));
}

#[test]
fn resized_pods_use_the_maximum_of_requested_and_allocated() {
    let status = |reason: &str| {
        json!({"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "5"}}}],
        "conditions": [{"type": "PodResizePending", "reason": reason}]})
    };
    let of =
        |cpu: &str, reason: &str| usage("", "pods", pod(json!({"containers": [ask(cpu)]}), status(reason)));
    expect!["count/pods=1,cpu=3,limits.cpu=5,memory=1Gi,pods=1,requests.cpu=3,requests.memory=1Gi"]
        .assert_eq(&of("1", "Deferred"));
    assert!(of("4", "Deferred").contains(",cpu=4,"));
    assert!(of("4", "Infeasible").contains(",cpu=3,"));
}

#[test]
fn pod_level_resources_replace_those_of_containers() {
    let spec = json!({"containers": [ask("500m")], "resources": {"requests": {"cpu": "3"}, "limits": {"memory": "5Gi"}}});
    expect!["count/pods=1,cpu=3,limits.cpu=2,limits.memory=5Gi,memory=1Gi,pods=1,requests.cpu=3,requests.memory=1Gi"]
        .assert_eq(&usage("", "pods", pod(spec, json!({}))));
}

#[test]
fn extended_resources_count_as_requests() {
    let spec = json!({"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "2", "hugepages-2Mi": "4Mi", "attachable.kubernetes.io/x": "1"}}}]});
    expect!["count/pods=1,hugepages-2Mi=4Mi,pods=1,requests.example.com/gpu=2,requests.hugepages-2Mi=4Mi"]
        .assert_eq(&usage("", "pods", pod(spec, json!({}))));
}

#[test]
fn services_and_claims() {
    let service = |spec: Value| usage("", "services", json!({"spec": spec}));
    let ports = json!([{"port": 1, "nodePort": 30000}, {"port": 2}]);
    expect!["count/services=1,services=1,services.loadbalancers=0,services.nodeports=2"]
        .assert_eq(&service(json!({"type": "NodePort", "ports": ports})));
    expect!["count/services=1,services=1,services.loadbalancers=1,services.nodeports=1"].assert_eq(&service(
        json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}),
    ));
    expect!["count/services=1,services=1,services.loadbalancers=0,services.nodeports=0"]
        .assert_eq(&service(json!({"type": "ClusterIP", "ports": ports})));
    let claim = json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "5Gi"}}},
        "status": {"allocatedResources": {"storage": "6Gi"}}});
    expect!["count/persistentvolumeclaims=1,fast.storageclass.storage.k8s.io/persistentvolumeclaims=1,fast.storageclass.storage.k8s.io/requests.storage=6Gi,persistentvolumeclaims=1,requests.storage=6Gi"]
        .assert_eq(&usage("", "persistentvolumeclaims", claim));
    let claim = json!({"spec": {"devices": {"requests": [
        {"name": "a", "exactly": {"deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 2}},
        {"name": "b", "firstAvailable": [
            {"name": "x", "deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 1},
            {"name": "y", "deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 3},
            {"name": "z", "deviceClassName": "nics", "allocationMode": "All"}]},
    ]}}});
    expect!["count/resourceclaims.resource.k8s.io=1,gpus.deviceclass.resource.k8s.io/devices=5,nics.deviceclass.resource.k8s.io/devices=32,requests.deviceclass.resource.kubernetes.io/gpus=5,requests.deviceclass.resource.kubernetes.io/nics=32,requests.example.com/gpu=5"]
        .assert_eq(&usage("resource.k8s.io", "resourceclaims", claim));
    assert_eq!(usage("", "secrets", json!({})), "count/secrets=1,secrets=1");
    assert_eq!(usage("example.com", "widgets", json!({})), "count/widgets.example.com=1");
    assert_eq!(Evaluator::of(&GroupResource::new("events.k8s.io", "events")), None);
}

fn quota(spec: Value, hard: Value, used: Value) -> Vec<Arc<Value>> {
    vec![Arc::new(json!({"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": used}}))]
}

fn verdict(quotas: &[Arc<Value>], old: Option<&Value>, new: &Value) -> String {
    limited_verdict(&[], quotas, old, new)
}

fn limited_verdict(
    entries: &[LimitedResource],
    quotas: &[Arc<Value>],
    old: Option<&Value>,
    new: &Value,
) -> String {
    let resource = &GroupResource::new("", "pods");
    let (change, limited) = (Change { subresource: "", old, new }, Limited { resource, entries });
    with(|cx| match check(quotas, &Evaluator::Pods, change, cx, limited) {
        Ok(charged) => charged.iter().map(|(i, used)| format!("{i} {used}")).collect::<Vec<_>>().join("\n"),
        Err(error) => error.to_string(),
    })
}

#[test]
fn limited_resources_need_a_quota() {
    let limited = |resource: &str, contains: &[&str], scopes: Value| LimitedResource {
        resource: GroupResource::new("", resource),
        match_contains: contains.iter().map(|&part| part.to_owned()).collect(),
        match_scopes: scopes.as_array().cloned().unwrap_or_default(),
    };
    let mut p = pod(json!({"containers": [ask("500m")], "priorityClassName": "high"}), json!({}));
    let cpu = [limited("pods", &["cpu", "gpu"], json!([]))];
    let mut out = vec![limited_verdict(&cpu, &[], None, &p)];
    let other = [limited("services", &["cpu"], json!([]))];
    out.push(limited_verdict(&other, &[], None, &p));
    // A quota of some of the names, and one of all.
    let some = quota(json!({}), json!({"requests.cpu": "1"}), json!({"requests.cpu": "0"}));
    out.push(limited_verdict(&cpu, &some, None, &p));
    let none = json!({"cpu": "0", "requests.cpu": "0", "limits.cpu": "0"});
    let all = quota(json!({}), json!({"cpu": "1", "requests.cpu": "1", "limits.cpu": "4"}), none.clone());
    out.push(limited_verdict(&cpu, &all, None, &p));
    // A change that consumes no more needs none.
    out.push(limited_verdict(&cpu, &[], Some(&p), &p));

    let class =
        |value: &str| json!({"scopeName": "PriorityClass", "operator": "In", "values": ["top", value]});
    let scoped = [limited("pods", &[], json!([class("high")]))];
    out.push(limited_verdict(&scoped, &[], None, &p));
    out.push(limited_verdict(&scoped, &all, None, &p));
    let selector = |value: &str| json!({"scopeSelector": {"matchExpressions": [class(value)]}});
    let of_another_class = quota(selector("low"), json!({"pods": "5"}), json!({"pods": "0"}));
    out.push(limited_verdict(&scoped, &of_another_class, None, &p));
    let covering = quota(selector("high"), json!({"pods": "5"}), json!({"pods": "0"}));
    out.push(limited_verdict(&scoped, &covering, None, &p));
    p["spec"]["priorityClassName"] = "low".into();
    out.push(limited_verdict(&scoped, &[], None, &p));
    expect![[r#"
        insufficient quota to consume: cpu,limits.cpu,requests.cpu

        insufficient quota to consume: cpu,limits.cpu
        0 {"cpu":"500m","limits.cpu":"2","requests.cpu":"500m"}

        insufficient quota to match these scopes: [{PriorityClass In [top high]}]
        insufficient quota to match these scopes: [{PriorityClass In [top high]}]
        insufficient quota to match these scopes: [{PriorityClass In [top high]}]
        0 {"pods":"1"}
    "#]]
    .assert_eq(&out.join("\n"));
}

#[test]
fn quotas_are_charged_or_refuse() {
    let p = pod(json!({"containers": [ask("500m")]}), json!({}));
    let q = |used: &str| {
        quota(
            json!({}),
            json!({"cpu": "1", "pods": "5", "secrets": "1"}),
            json!({"cpu": used, "pods": "1", "secrets": "0"}),
        )
    };
    expect![[r#"0 {"cpu":"1","pods":"2","secrets":"0"}"#]].assert_eq(&verdict(&q("500m"), None, &p));
    expect!["exceeded quota: q, requested: cpu=500m, used: cpu=501m, limited: cpu=1"].assert_eq(&verdict(
        &q("501m"),
        None,
        &p,
    ));
    let both = quota(json!({}), json!({"cpu": "1", "pods": "1"}), json!({"cpu": "1", "pods": "1"}));
    expect!["exceeded quota: q, requested: cpu=500m,pods=1, used: cpu=1,pods=1, limited: cpu=1,pods=1"]
        .assert_eq(&verdict(&both, None, &p));
    let fresh = quota(json!({}), json!({"cpu": "1", "pods": "1"}), json!({"cpu": "0"}));
    expect!["status unknown for quota: q, resources: cpu,pods"].assert_eq(&verdict(&fresh, None, &p));
    let plain =
        pod(json!({"containers": [{"name": "b"}, {"name": "a"}], "initContainers": [ask("1")]}), json!({}));
    expect!["failed quota: q: must specify cpu for: a,b; limits.memory for: a,b,c"].assert_eq(&verdict(
        &quota(
            json!({}),
            json!({"cpu": "1", "limits.memory": "1"}),
            json!({"cpu": "0", "limits.memory": "0"}),
        ),
        None,
        &plain,
    ));
    // A quota of other resources does not count.
    assert_eq!(verdict(&quota(json!({}), json!({"secrets": "0"}), json!({"secrets": "0"})), None, &p), "");
}

#[test]
fn changes_are_charged_by_what_they_add() {
    let of = |cpu: &str| pod(json!({"containers": [ask(cpu)]}), json!({}));
    let q = quota(json!({}), json!({"cpu": "1", "pods": "1"}), json!({"cpu": "500m", "pods": "1"}));
    expect![[r#"0 {"cpu":"1","pods":"1"}"#]].assert_eq(&verdict(&q, Some(&of("500m")), &of("1")));
    assert_eq!(verdict(&q, Some(&of("500m")), &of("100m")), "");
    expect!["exceeded quota: q, requested: cpu=1500m, used: cpu=500m, limited: cpu=1"].assert_eq(&verdict(
        &q,
        Some(&of("500m")),
        &of("2"),
    ));
    // What enters a scope is charged whole.
    let scoped = quota(json!({"scopes": ["Terminating"]}), json!({"pods": "1"}), json!({"pods": "1"}));
    let mut ending = of("1");
    ending["spec"]["activeDeadlineSeconds"] = 5.into();
    expect!["exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"].assert_eq(&verdict(
        &scoped,
        Some(&of("1")),
        &ending,
    ));
}

#[test]
fn scopes_select_pods() {
    let takes = |spec: Value, pod: &Value| Evaluator::Pods.in_scopes(&json!({"spec": spec}), pod);
    let scope = |s: &str| json!({"scopes": [s]});
    let plain = pod(json!({"containers": [{"name": "c"}]}), json!({}));
    let class = pod(
        json!({"containers": [ask("1")], "priorityClassName": "high", "activeDeadlineSeconds": 1,
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {"namespaces": ["x"]}}]}}}),
        json!({}),
    );
    for (name, of_plain, of_class) in [
        ("BestEffort", true, false),
        ("NotBestEffort", false, true),
        ("Terminating", false, true),
        ("NotTerminating", true, false),
        ("PriorityClass", false, true),
        ("CrossNamespacePodAffinity", false, true),
        ("VolumeAttributesClass", false, false),
    ] {
        assert_eq!((takes(scope(name), &plain), takes(scope(name), &class)), (of_plain, of_class), "{name}");
    }
    let select = |operator: &str, values: &[&str]| json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}});
    for (operator, values, of_plain, of_class) in [
        ("In", &["high", "low"][..], false, true),
        ("NotIn", &["high"][..], true, false),
        ("Exists", &[][..], false, true),
        ("DoesNotExist", &[][..], true, false),
    ] {
        let spec = select(operator, values);
        assert_eq!((takes(spec.clone(), &plain), takes(spec, &class)), (of_plain, of_class), "{operator}");
    }
}

#[test]
fn claims_are_selected_by_any_attributes_class_they_have() {
    let takes = |operator: &str, values: &[&str], claim: Value| {
        let quota = json!({"spec": {"scopeSelector": {"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": operator, "values": values}]}}});
        Evaluator::Claims.in_scopes(&quota, &claim)
    };
    let moving = json!({"spec": {"volumeAttributesClassName": "gold"}, "status": {"currentVolumeAttributesClassName": "silver"}});
    assert!(takes("In", &["silver"], moving.clone()));
    assert!(takes("NotIn", &["silver"], moving.clone()));
    assert!(!takes("NotIn", &["silver", "gold"], moving.clone()));
    assert!(takes("Exists", &[], moving));
    assert!(takes("DoesNotExist", &[], json!({})));
    assert!(!takes("In", &["gold"], json!({})));
}

#[test]
fn totals_have_every_limited_name() {
    let quota = json!({"spec": {"hard": {"cpu": "1", "pods": "2", "count/pods": "3", "secrets": "4", "requests.example.com/gpu": "1"}}});
    let pods = [
        pod(json!({"containers": [ask("1")]}), json!({})),
        pod(json!({"containers": [ask("2")]}), json!({"phase": "Failed"})),
    ];
    let sum = with(|cx| total(&quota, &Evaluator::Pods, &pods, cx));
    expect!["count/pods=2,cpu=1,pods=1,requests.example.com/gpu=0"].assert_eq(&print(&sum));
}

#[test]
fn ignores_writes_that_change_no_usage() {
    let p = pod(json!({}), json!({}));
    let mut ending = p.clone();
    ending["spec"]["activeDeadlineSeconds"] = 5.into();
    assert!(Evaluator::Pods.handles("", None, &p));
    assert!(!Evaluator::Pods.handles("", Some(&p), &p));
    assert!(Evaluator::Pods.handles("", Some(&p), &ending));
    assert!(Evaluator::Pods.handles("resize", Some(&p), &p));
    assert!(!Evaluator::Pods.handles("status", Some(&p), &p));
    assert!(Evaluator::Claims.handles("status", Some(&p), &p));
    assert!(!evaluator("apps", "deployments").handles("", Some(&p), &p));
    assert!(!evaluator("apps", "deployments").handles("scale", Some(&p), &p));
}

/// A claim that the scheduler made for a pod with two devices, one of them only while it starts.
fn made_claim(name: &str, at: &str) -> Value {
    json!({"metadata": {"name": name, "creationTimestamp": at,
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]},
        "spec": {"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 2}},
            {"name": "b", "exactly": {"deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 1}}]}}})
}

#[test]
fn claims_made_for_a_pod_are_charged_for_what_the_pod_is_not() {
    let now = "2026-01-01T00:01:00Z".parse().unwrap();
    let spec = json!({"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "2", "deviceclass.resource.kubernetes.io/gpus": "1"}}}]});
    let with_status = |status: Value| {
        let mut pod = pod(spec.clone(), status);
        pod["metadata"]["uid"] = "u".into();
        pod
    };
    let named = with_status(json!({"extendedResourceClaimStatus": {"resourceClaimName": "x"}}));
    let unnamed = with_status(json!({}));
    let first = made_claim("x", "2026-01-01T00:00:00Z");
    let extended = BTreeMap::from([("gpus".to_owned(), "example.com/gpu".to_owned())]);
    let usage = |claim: &Value, pod: &Value, others: &[Value]| {
        let charged = crate::charged_to_pod(claim, pod, others, now);
        let charged_to_pods: BTreeMap<String, Usage> =
            charged.map(|usage| (object::name(claim).to_owned(), usage)).into_iter().collect();
        let cx = Context { now, extended_resources: &extended, charged_to_pods: &charged_to_pods };
        print(&Evaluator::ResourceClaims.usage(claim, &cx))
    };
    let less = expect![
        "count/resourceclaims.resource.k8s.io=1,gpus.deviceclass.resource.k8s.io/devices=3,requests.deviceclass.resource.kubernetes.io/gpus=2,requests.example.com/gpu=1"
    ];
    let whole = expect![
        "count/resourceclaims.resource.k8s.io=1,gpus.deviceclass.resource.k8s.io/devices=3,requests.deviceclass.resource.kubernetes.io/gpus=3,requests.example.com/gpu=3"
    ];
    less.assert_eq(&usage(&first, &named, &[]));
    less.assert_eq(&usage(&first, &unnamed, std::slice::from_ref(&first)));
    // Another claim in the name of the same pod.
    let later = [made_claim("y", "2026-01-01T00:00:01Z"), made_claim("z", "2026-01-01T00:00:00Z")];
    for other in &later {
        whole.assert_eq(&usage(other, &named, std::slice::from_ref(&first)));
        whole.assert_eq(&usage(other, &unnamed, std::slice::from_ref(&first)));
    }
    less.assert_eq(&usage(&first, &unnamed, &later));
    let mut former = unnamed.clone();
    former["metadata"]["uid"] = "former".into();
    whole.assert_eq(&usage(&first, &former, &[]));
    let mut plain = first.clone();
    plain["metadata"]["annotations"] = json!({});
    whole.assert_eq(&usage(&plain, &unnamed, &[]));
}

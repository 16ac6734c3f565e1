//! Tests of `legacy`: fixtures in, expectations out.

use super::*;
use crate::testing::{ago, now, object, reconcile, snapshot, text};
use expect_test::expect;
use serde_json::Value;

fn service() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "s1", "labels": {"team": "a"}, "creationTimestamp": ago(60)},
        "spec": {
            "selector": {"app": "web"}, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"],
            "ports": [
                {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080},
                {"name": "named", "port": 81, "protocol": "TCP", "targetPort": "h"},
            ],
        },
    })
}

fn pod(name: &str, ip: &str, ready: Option<i64>) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "h", "containerPort": 8081, "protocol": "TCP"}]}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": ready.map(|s| json!([{"type": "Ready", "status": "True", "lastTransitionTime": ago(s)}]))
                .unwrap_or_else(|| json!([]))},
    })
}

fn view(services: Vec<Value>, pods: Vec<Value>, endpoints: Vec<Value>) -> View {
    View::default()
        .with(snapshot::<Service>(services))
        .with(snapshot::<Pod>(pods))
        .with(snapshot::<Endpoints>(endpoints))
}

fn plan(services: Vec<Value>, pods: Vec<Value>, endpoints: Vec<Value>) -> String {
    let text = text(&reconcile(&Legacy, &view(services, pods, endpoints), "ns", "web", &[]));
    text.lines().filter(|l| !l.starts_with("    failed:")).map(|l| format!("{l}\n")).collect()
}

fn created(service: Value, pods: Vec<Value>) -> Value {
    let plan = reconcile(&Legacy, &view(vec![service], pods, vec![]), "ns", "web", &[]);
    let Some(Write::Create { body, .. }) = plan.writes().next() else { panic!("no create: {plan:?}") };
    let mut body = body.clone();
    body["metadata"]["uid"] = "e1".into();
    body["metadata"]["resourceVersion"] = "9".into();
    body
}

#[test]
fn creates_endpoints_of_a_service() {
    let mut unnamed = pod("c", "10.1.0.3", Some(4));
    unnamed["spec"]["containers"] = json!([]);
    let mut leaving = pod("d", "10.1.0.4", Some(4));
    leaving["metadata"]["deletionTimestamp"] = now().to_string().into();
    let pods = vec![pod("a", "10.1.0.1", Some(30)), pod("b", "10.1.0.2", None), unnamed, leaving];
    let text = text(&reconcile(&Legacy, &view(vec![service()], pods, vec![]), "ns", "web", &[]));
    expect![[r#"
        create /api/v1/namespaces/ns/endpoints {"apiVersion":"v1","kind":"Endpoints","metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2025-01-01T11:59:00Z"},"labels":{"endpoints.kubernetes.io/managed-by":"endpoint-controller","team":"a"},"name":"web","namespace":"ns"},"subsets":[{"addresses":[{"ip":"10.1.0.1","nodeName":"n1","targetRef":{"kind":"Pod","name":"a","namespace":"ns","uid":"a"}},{"ip":"10.1.0.3","nodeName":"n1","targetRef":{"kind":"Pod","name":"c","namespace":"ns","uid":"c"}}],"notReadyAddresses":[{"ip":"10.1.0.2","nodeName":"n1","targetRef":{"kind":"Pod","name":"b","namespace":"ns","uid":"b"}}],"ports":[{"name":"http","port":8080,"protocol":"TCP"}]},{"addresses":[{"ip":"10.1.0.1","nodeName":"n1","targetRef":{"kind":"Pod","name":"a","namespace":"ns","uid":"a"}}],"notReadyAddresses":[{"ip":"10.1.0.2","nodeName":"n1","targetRef":{"kind":"Pod","name":"b","namespace":"ns","uid":"b"}}],"ports":[{"name":"named","port":8081,"protocol":"TCP"}]}]}
            failed: Warning FailedToCreateEndpoint: Failed to create endpoint for service ns/web: {error}
    "#]].assert_eq(&text);
}

#[test]
fn writes_only_differences() {
    let pods = vec![pod("a", "10.1.0.1", Some(30)), pod("b", "10.1.0.2", None)];
    let mut there = created(service(), pods.clone());
    assert_eq!(plan(vec![service()], pods.clone(), vec![there.clone()]), "");
    there["subsets"][0]["addresses"][0]["targetRef"]["resourceVersion"] = "77".into();
    assert_eq!(plan(vec![service()], pods, vec![there.clone()]), "");
    let pods = vec![pod("a", "10.1.0.1", Some(30)), pod("b", "10.1.0.2", Some(7))];
    expect![[r#"
        merge /api/v1/namespaces/ns/endpoints/web {"metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2025-01-01T11:59:53Z"},"resourceVersion":"9","uid":"e1"},"subsets":[{"addresses":[{"ip":"10.1.0.1","nodeName":"n1","targetRef":{"kind":"Pod","name":"a","namespace":"ns","uid":"a"}},{"ip":"10.1.0.2","nodeName":"n1","targetRef":{"kind":"Pod","name":"b","namespace":"ns","uid":"b"}}],"ports":[{"name":"http","port":8080,"protocol":"TCP"},{"name":"named","port":8081,"protocol":"TCP"}]}]}
    "#]].assert_eq(&plan(vec![service()], pods, vec![there.clone()]));
    expect![[r#"
        merge /api/v1/namespaces/ns/endpoints/web {"metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":null},"resourceVersion":"9","uid":"e1"},"subsets":null}
    "#]].assert_eq(&plan(vec![service()], vec![], vec![there]));
}

#[test]
fn handles_headless_services_without_ports() {
    let mut headless = service();
    headless["spec"]["clusterIP"] = "None".into();
    headless["spec"]["ports"] = json!([]);
    let body = created(headless, vec![pod("a", "10.1.0.1", Some(1))]);
    expect![[r#"{"endpoints.kubernetes.io/managed-by":"endpoint-controller","service.kubernetes.io/headless":"","team":"a"} [{"addresses":[{"ip":"10.1.0.1","nodeName":"n1","targetRef":{"kind":"Pod","name":"a","namespace":"ns","uid":"a"}}]}]"#]].assert_eq(&format!("{} {}", body["metadata"]["labels"], body["subsets"]));
}

#[test]
fn truncates_addresses_at_the_limit() {
    let pods =
        |n: usize| (0..n).map(|i| pod(&format!("p{i}"), &format!("10.1.{}.{}", i / 250, i % 250), Some(1)));
    let mut one = service();
    one["spec"]["ports"] = json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]);
    let there = created(one.clone(), pods(1001).collect());
    assert_eq!(there["subsets"][0]["addresses"].as_array().unwrap().len(), 1000);
    assert_eq!(there["metadata"]["annotations"][OVER_CAPACITY], "truncated");
    assert_eq!(plan(vec![one.clone()], pods(1001).collect(), vec![there.clone()]), "");
    assert!(
        plan(vec![one], pods(900).collect(), vec![there])
            .contains(r#""endpoints.kubernetes.io/over-capacity":null"#)
    );
}

#[test]
fn deletes_endpoints_of_deleted_services() {
    let there = created(service(), vec![]);
    expect![[r#"
        delete /api/v1/namespaces/ns/endpoints/web {"preconditions":{"uid":"e1"}}
    "#]]
    .assert_eq(&plan(vec![], vec![], vec![there.clone()]));
    let mut lock = there.clone();
    lock["metadata"]["annotations"] = json!({LEADER: "{}"});
    assert_eq!(plan(vec![], vec![], vec![lock]), "");
    let keys = |old: Option<Value>, new: Option<Value>| {
        let change = Change { old: old.map(|e| Arc::new(object(e))), new: new.map(|e| Arc::new(object(e))) };
        keys_of_endpoints(&change, &View::default()).len()
    };
    let users = json!({"metadata": {"name": "web", "namespace": "ns"}});
    assert_eq!(keys(None, Some(users.clone())), 0);
    assert_eq!(keys(Some(users), None), 1);
    assert_eq!(keys(None, Some(there)), 1);
}

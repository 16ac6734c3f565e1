//! Tests of `mirroring`: fixtures in, expectations out.

use super::*;
use crate::testing::{object, observed, reconcile, sample, snapshot, text};
use expect_test::expect;
use serde_json::Value;

fn endpoints(subsets: Value) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "e1", "labels": {"team": "a"},
            "annotations": {"note": "x", TRIGGER_TIME: "2025-01-01T00:00:00Z", LAST_APPLIED: "{}"}},
        "subsets": subsets,
    })
}

fn service(selector: Value) -> Value {
    json!({"metadata": {"name": "web", "namespace": "ns", "uid": "s1"}, "spec": {"selector": selector}})
}

fn view(service: Option<Value>, endpoints: Value, slices: Vec<Value>) -> View {
    View::default()
        .with(snapshot::<Service>(service))
        .with(snapshot::<Endpoints>([endpoints]))
        .with(snapshot::<EndpointSlice>(slices))
}

fn plan(service: Option<Value>, endpoints: Value, slices: Vec<Value>) -> String {
    text(&reconcile(&Mirroring { limit: 1000 }, &view(service, endpoints, slices), "ns", "web", &[]))
}

fn created(endpoints: Value) -> Vec<Value> {
    let plan = reconcile(
        &Mirroring { limit: 1000 },
        &view(Some(service(Value::Null)), endpoints, vec![]),
        "ns",
        "web",
        &[],
    );
    let named = |(i, write): (usize, &Write)| {
        let Write::Create { body, .. } = write else { return None };
        let mut body = body.clone();
        body["metadata"]["name"] = format!("web-{i}").into();
        body["metadata"]["uid"] = format!("m{i}").into();
        body["metadata"]["resourceVersion"] = "9".into();
        Some(body)
    };
    plan.writes().enumerate().filter_map(named).collect()
}

fn subsets() -> Value {
    json!([
        {"addresses": [{"ip": "10.1.0.1", "hostname": "h"}, {"ip": "fd00::1"}, {"ip": "nonsense"}],
            "notReadyAddresses": [{"ip": "10.1.0.2", "nodeName": "n1"}],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    ])
}

#[test]
fn mirrors_endpoints() {
    expect![[r#"
        create /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices {"addressType":"IPv4","apiVersion":"discovery.k8s.io/v1","endpoints":[{"addresses":["10.1.0.1"],"conditions":{"ready":true},"hostname":"h"},{"addresses":["10.1.0.2"],"conditions":{"ready":false},"nodeName":"n1"}],"kind":"EndpointSlice","metadata":{"annotations":{"note":"x"},"generateName":"web-","labels":{"endpointslice.kubernetes.io/managed-by":"endpointslicemirroring-controller.k8s.io","kubernetes.io/service-name":"web","team":"a"},"namespace":"ns","ownerReferences":[{"apiVersion":"v1","blockOwnerDeletion":true,"controller":true,"kind":"Endpoints","name":"web","uid":"e1"}]},"ports":[{"name":"http","port":80,"protocol":"TCP"}]}
        create /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices {"addressType":"IPv6","apiVersion":"discovery.k8s.io/v1","endpoints":[{"addresses":["fd00::1"],"conditions":{"ready":true}}],"kind":"EndpointSlice","metadata":{"annotations":{"note":"x"},"generateName":"web-","labels":{"endpointslice.kubernetes.io/managed-by":"endpointslicemirroring-controller.k8s.io","kubernetes.io/service-name":"web","team":"a"},"namespace":"ns","ownerReferences":[{"apiVersion":"v1","blockOwnerDeletion":true,"controller":true,"kind":"Endpoints","name":"web","uid":"e1"}]},"ports":[{"name":"http","port":80,"protocol":"TCP"}]}
        event: Warning InvalidIPAddress: Skipped 1 invalid IP addresses when mirroring to EndpointSlices
    "#]].assert_eq(&plan(Some(service(Value::Null)), endpoints(subsets()), vec![]));
}

#[test]
fn updates_mirrors() {
    let slices = created(endpoints(subsets()));
    let bare = || Some(service(Value::Null));
    let lines = |text: String| {
        text.lines().filter(|l| !l.starts_with("event")).map(|l| format!("{l}\n")).collect::<String>()
    };
    assert_eq!(lines(plan(bare(), endpoints(subsets()), slices.clone())), "");
    let mut changed =
        endpoints(json!([{"addresses": [{"ip": "10.1.0.9"}], "ports": [{"port": 81, "protocol": "TCP"}]}]));
    changed["metadata"]["annotations"] = json!({});
    expect![[r#"
        merge /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/web-0 {"endpoints":[{"addresses":["10.1.0.9"],"conditions":{"ready":true}}],"metadata":{"annotations":{"note":null},"ownerReferences":[{"apiVersion":"v1","blockOwnerDeletion":true,"controller":true,"kind":"Endpoints","name":"web","uid":"e1"}],"resourceVersion":"9","uid":"m0"},"ports":[{"name":"","port":81,"protocol":"TCP"}]}
        --
        delete /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/web-1 {"preconditions":{"uid":"m1"}}
    "#]].assert_eq(&lines(plan(bare(), changed, slices)));
}

#[test]
fn deletes_mirrors() {
    let slices = || created(endpoints(subsets()));
    let verbs = |text: String| {
        text.lines().map(|l| l.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        verbs(plan(Some(service(json!({"a": "b"}))), endpoints(subsets()), slices())),
        "delete delete"
    );
    assert_eq!(verbs(plan(None, endpoints(subsets()), slices())), "delete delete");
    let mut skipped = endpoints(subsets());
    skipped["metadata"]["labels"][SKIP_LABEL] = "true".into();
    assert_eq!(verbs(plan(Some(service(Value::Null)), skipped, slices())), "delete delete");
    let mut other = slices();
    other.iter_mut().for_each(|s| s["metadata"]["labels"][SLICE_MANAGED_BY] = "me".into());
    assert_eq!(plan(None, endpoints(subsets()), other), "");
}

#[test]
fn truncates_addresses_at_the_limit() {
    let addresses: Vec<Value> =
        (0..1100).map(|i| json!({"ip": format!("10.1.{}.{}", i / 250, i % 250)})).collect();
    let there = endpoints(json!([{"addresses": addresses, "ports": [{"port": 80, "protocol": "TCP"}]}]));
    let plan = reconcile(
        &Mirroring { limit: 1000 },
        &view(Some(service(Value::Null)), there.clone(), vec![]),
        "ns",
        "web",
        &[],
    );
    assert_eq!(created(there)[0]["endpoints"].as_array().unwrap().len(), 1000);
    expect!["A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset. 100 addresses were skipped"].assert_eq(&plan.events[0].message);
}

#[test]
fn enqueues_services_without_selector() {
    let keys = |service: Value, old: Option<Value>, new: Option<Value>| {
        let view = View::default().with(snapshot::<Service>([service]));
        let change = Change { old: old.map(|e| Arc::new(object(e))), new: new.map(|e| Arc::new(object(e))) };
        keys_of_endpoints(&change, &view).len()
    };
    let there = || Some(endpoints(subsets()));
    assert_eq!(keys(service(Value::Null), None, there()), 1);
    assert_eq!(keys(service(json!({"a": "b"})), None, there()), 0);
    let mut lock = endpoints(subsets());
    lock["metadata"]["annotations"][LEADER] = "{}".into();
    assert_eq!(keys(service(Value::Null), None, Some(lock.clone())), 0);
    assert_eq!(keys(service(Value::Null), there(), Some(lock)), 1);
}

#[test]
fn syncs_and_slices_are_measured() {
    let slices = created(endpoints(subsets()));
    let counted = |endpoints: Value, slices: &[Value]| {
        let view = view(Some(service(Value::Null)), endpoints, slices.to_vec());
        let text = observed(&reconcile(&Mirroring { limit: 1000 }, &view, "ns", "web", &[]));
        text.replace("endpoint_slice_mirroring_controller_", "")
            .replace("/apis/discovery.k8s.io/v1/namespaces/ns/", "")
    };
    expect![[r#"
        written endpointslices: changes "create" = 1
        decided: endpoints_added_per_sync = 3
        decided: endpoints_updated_per_sync = 0
        decided: endpoints_removed_per_sync = 0
        decided: addresses_skipped_per_sync = 1
        succeeded: endpoints_sync_duration = 0 + elapsed
        failed: endpoints_sync_duration = 0 + elapsed
    "#]]
    .assert_eq(&counted(endpoints(subsets()), &[]));
    // An address is another one's, another is ready now, and there are none of the other family.
    let mut changed = subsets();
    changed[0]["addresses"] = json!([{"ip": "10.1.0.2", "nodeName": "n1"}, {"ip": "10.1.0.3"}]);
    changed[0]["notReadyAddresses"] = json!([]);
    expect![[r#"
        written endpointslices/web-0: changes "update" = 1
        written endpointslices/web-1: changes "delete" = 1
        decided: endpoints_added_per_sync = 1
        decided: endpoints_updated_per_sync = 1
        decided: endpoints_removed_per_sync = 1
        decided: addresses_skipped_per_sync = 0
        succeeded: endpoints_sync_duration = 0 + elapsed
        failed: endpoints_sync_duration = 0 + elapsed
    "#]]
    .assert_eq(&counted(endpoints(changed), &slices));
    let gauges: Vec<String> = metrics::gauges(&snapshot(slices)).iter().map(sample).collect();
    expect![[r#"
        endpoint_slice_mirroring_controller_endpoints_desired = 3
        endpoint_slice_mirroring_controller_num_endpoint_slices = 2
        endpoint_slice_mirroring_controller_desired_endpoint_slices = 2"#]]
    .assert_eq(&gauges.join("\n"));
}

//! Fixtures: where services are.

use super::*;
use expect_test::expect;
use kaji_meta::SeededRandom;
use kaji_resource::testing::FakeApi;
use serde_json::json;

type Object = (GroupResource, Value);

fn api(objects: Vec<Object>) -> FakeApi {
    let api = FakeApi::default();
    objects.into_iter().for_each(|(resource, object)| api.put(&resource, object));
    api
}

fn service(name: &str, spec: Value) -> Object {
    let service = json!({"metadata": {"namespace": "n", "name": name}, "spec": spec});
    (GroupResource::new("", "services"), service)
}

fn slice(service: &str, family: &str, port: Value, endpoints: &[(&str, Value)]) -> Object {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(ip, ready)| json!({"addresses": [ip], "conditions": {"ready": ready}}))
        .collect();
    let labels = json!({"kubernetes.io/service-name": service});
    let slice = json!({"metadata": {"namespace": "n", "name": format!("{service}-{family}"), "labels": labels},
        "addressType": family, "ports": [{"name": "other", "port": 1}, port], "endpoints": endpoints});
    (GroupResource::new("discovery.k8s.io", "endpointslices"), slice)
}

#[test]
fn resolves_services() {
    let https = json!({"name": "https", "port": 443});
    let plain = json!({"type": "ClusterIP", "ports": [https], "ipFamilies": ["IPv6"]});
    let there = json!({"name": "https", "port": 8443});
    let api = api(vec![
        service("outside", json!({"type": "ExternalName", "externalName": "hooks.example"})),
        service("empty", plain.clone()),
        service("unready", plain.clone()),
        slice("unready", "IPv4", there.clone(), &[("10.1.0.1", json!(false))]),
        service("good", plain.clone()),
        slice("good", "IPv4", there.clone(), &[("10.1.0.2", json!(true))]),
        slice("good", "IPv6", there.clone(), &[("fd::1", json!(false)), ("fd::2", Value::Null)]),
        service("otherport", plain),
        slice("otherport", "IPv4", json!({"name": "http", "port": 80}), &[("10.1.0.3", json!(true))]),
    ]);
    let random = SeededRandom::new(1);
    let mut seen = String::new();
    for (name, port) in [
        ("outside", 8443),
        ("missing", 443),
        ("empty", 443),
        ("unready", 443),
        ("good", 443),
        ("good", 80),
        ("otherport", 443),
    ] {
        seen += &match resolve(&api, &random, ("n", name), port) {
            Ok(Endpoint { host, port: at }) => format!("{name}:{port} is {host} {at}\n"),
            Err(status) => format!("{name}:{port} {} {}\n", status.code, status.message),
        };
    }
    expect![[r#"
        outside:8443 is hooks.example 8443
        missing:443 404 service "missing" not found
        empty:443 503 no endpoints available for service "empty"
        unready:443 503 no endpoints available for service "unready"
        good:443 is fd::2 8443
        good:80 503 no service port 80 found for service "good"
        otherport:443 503 no endpoints available for service "otherport"
    "#]]
    .assert_eq(&seen);
}

#[test]
fn all_endpoints_get_their_share() {
    let api = api(vec![
        service("s", json!({"type": "ClusterIP", "ports": [{"port": 443}], "ipFamilies": ["IPv4"]})),
        slice(
            "s",
            "IPv4",
            json!({"name": "", "port": 8443}),
            &[("10.1.0.1", json!(true)), ("10.1.0.2", json!(true)), ("10.1.0.3", json!(false))],
        ),
    ]);
    let random = SeededRandom::new(1);
    let mut seen: Vec<String> =
        (0..64).map(|_| resolve(&api, &random, ("n", "s"), 443).unwrap().host).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["10.1.0.1", "10.1.0.2"]);
}

#[test]
fn addresses_of_simulated_pods_are_not_connected_to() {
    let on = |node: &str| {
        let (resource, mut slice) =
            slice(node, "IPv4", json!({"name": "https", "port": 8443}), &[("10.1.0.1", json!(true))]);
        slice["endpoints"][0]["nodeName"] = node.into();
        (resource, slice)
    };
    let node = |name: &str, runtime: &str| {
        let node =
            json!({"metadata": {"name": name}, "status": {"nodeInfo": {"containerRuntimeVersion": runtime}}});
        (GroupResource::new("", "nodes"), node)
    };
    let spec = json!({"type": "ClusterIP", "ports": [{"name": "https", "port": 443}]});
    let api = api(vec![
        service("sim-1", spec.clone()),
        service("real", spec),
        on("sim-1"),
        on("real"),
        node("sim-1", "simulated://1.0"),
        node("real", "kaji://1.0"),
    ]);
    let random = SeededRandom::new(1);
    let refused = resolve(&api, &random, ("n", "sim-1"), 443).unwrap_err();
    assert_eq!(refused.message, "dial tcp 10.1.0.1:8443: connect: connection refused (a simulated pod)");
    assert_eq!(resolve(&api, &random, ("n", "real"), 443).unwrap().host, "10.1.0.1");
}

//! Fixtures: where services are.

use super::*;
use expect_test::expect;
use kaji_meta::{GroupVersionKind, SeededRandom};
use kaji_resource::{BoxFuture, DeleteOptions};
use serde_json::json;

#[derive(Default)]
struct Objects(Vec<(&'static str, Arc<Value>)>);

impl Api for Objects {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let is = |o: &Value| object::namespace(o) == namespace && object::name(o) == name;
        self.0.iter().find(|(r, o)| *r == resource.resource && is(o)).map(|(_, o)| o.clone())
    }
    fn list(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let is = |o: &Value| Some(object::namespace(o)) == namespace;
        self.0.iter().filter(|(r, o)| *r == resource.resource && is(o)).map(|(_, o)| o.clone()).collect()
    }
    fn resource_of(&self, _: &GroupVersionKind) -> Option<(GroupResource, bool)> {
        None
    }
    fn create<'a>(
        &'a self,
        _: &'a GroupResource,
        _: &'a str,
        _: Value,
        _: bool,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        unreachable!()
    }
    fn update<'a>(
        &'a self,
        _: &'a GroupResource,
        _: &'a str,
        _: &'a str,
        _: &'a str,
        _: bool,
        _: &'a (dyn Fn(&mut Value) -> Result<(), Status> + Send + Sync),
    ) -> BoxFuture<'a, Result<Value, Status>> {
        unreachable!()
    }
    fn delete<'a>(
        &'a self,
        _: &'a GroupResource,
        _: &'a str,
        _: &'a str,
        _: DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        unreachable!()
    }
}

fn service(name: &str, spec: Value) -> (&'static str, Arc<Value>) {
    ("services", Arc::new(json!({"metadata": {"namespace": "n", "name": name}, "spec": spec})))
}

fn slice(
    service: &str,
    family: &str,
    port: Value,
    endpoints: &[(&str, Value)],
) -> (&'static str, Arc<Value>) {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(ip, ready)| json!({"addresses": [ip], "conditions": {"ready": ready}}))
        .collect();
    let labels = json!({"kubernetes.io/service-name": service});
    let slice = json!({"metadata": {"namespace": "n", "name": ip_name(family), "labels": labels},
        "addressType": family, "ports": [{"name": "other", "port": 1}, port], "endpoints": endpoints});
    ("endpointslices", Arc::new(slice))
}

fn ip_name(family: &str) -> String {
    format!("slice-{family}")
}

#[test]
fn services() {
    let https = json!({"name": "https", "port": 443});
    let plain = json!({"type": "ClusterIP", "ports": [https], "ipFamilies": ["IPv6"]});
    let there = json!({"name": "https", "port": 8443});
    let api = Objects(vec![
        service("outside", json!({"type": "ExternalName", "externalName": "hooks.example"})),
        service("empty", plain.clone()),
        service("unready", plain.clone()),
        slice("unready", "IPv4", there.clone(), &[("10.1.0.1", json!(false))]),
        service("good", plain.clone()),
        slice("good", "IPv4", there.clone(), &[("10.1.0.2", json!(true))]),
        slice("good", "IPv6", there.clone(), &[("fd::1", json!(false)), ("fd::2", Value::Null)]),
        service("elsewhere", plain),
        slice("elsewhere", "IPv4", json!({"name": "http", "port": 80}), &[("10.1.0.3", json!(true))]),
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
        ("elsewhere", 443),
    ] {
        seen += &match resolve(&api, &random, ("n", name), port) {
            Ok(Endpoint { host, port: at }) => format!("{name}:{port} is {host} {at}\n"),
            Err(status) => format!("{name}:{port} {} {}\n", status.code, status.message),
        };
    }
    expect![[r#"
        outside:8443 is hooks.example 8443
        missing:443 404 services "missing" not found
        empty:443 503 no endpoints available for service "empty"
        unready:443 503 no endpoints available for service "unready"
        good:443 is fd::2 8443
        good:80 503 no service port 80 found for service "good"
        elsewhere:443 503 no endpoints available for service "elsewhere"
    "#]]
    .assert_eq(&seen);
}

#[test]
fn all_endpoints_get_their_share() {
    let api = Objects(vec![
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

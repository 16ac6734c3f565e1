//! Tests of `endpoints`: fixtures in, expectations out.

use super::*;
use crate::testing::{object, snapshot};

fn service(name: &str, selector: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"selector": selector}})
}

fn pod(labels: Value, ready: bool) -> Arc<Pod> {
    Arc::new(object(json!({
        "metadata": {"name": "p", "namespace": "ns", "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
    })))
}

#[test]
fn a_changed_pod_enqueues_its_services() {
    let view = View::default().with(snapshot::<Service>([
        service("web", json!({"app": "web"})),
        service("strict", json!({"app": "web", "tier": "front"})),
        service("other", json!({"app": "other"})),
        service("none", json!({})),
    ]));
    let keys = |old: Option<Arc<Pod>>, new: Option<Arc<Pod>>| {
        keys_of_pod(&Change { old, new }, &view).iter().map(Key::to_string).collect::<Vec<_>>().join(" ")
    };
    let (web, front) = (json!({"app": "web"}), json!({"app": "web", "tier": "front", "x": "y"}));
    assert_eq!(keys(None, Some(pod(web.clone(), true))), "ns/web");
    assert_eq!(keys(Some(pod(front.clone(), true)), None), "ns/strict ns/web");
    assert_eq!(
        keys(Some(pod(web.clone(), true)), Some(pod(json!({"app": "other"}), true))),
        "ns/other ns/web"
    );
    assert_eq!(keys(Some(pod(front.clone(), true)), Some(pod(front.clone(), true))), "");
    assert_eq!(keys(Some(pod(front.clone(), true)), Some(pod(front, false))), "ns/strict ns/web");
}

#[test]
fn resolves_ports_by_number_and_name() {
    let container =
        |name: &str, port: i64| json!({"ports": [{"name": name, "containerPort": port, "protocol": "TCP"}]});
    let mut sidecar = container("metrics", 9);
    sidecar["restartPolicy"] = "Always".into();
    let pod: Pod = object(json!({"spec": {
        "containers": [container("http", 8080)],
        "initContainers": [container("setup", 7), sidecar],
    }}));
    let port = |target: Value, protocol: &str| {
        port_number(&pod, &object_port(json!({"port": 80, "protocol": protocol, "targetPort": target})))
    };
    assert_eq!(port(json!(81), "TCP"), Some(81));
    assert_eq!(port(json!("http"), "TCP"), Some(8080));
    assert_eq!(port(json!("http"), "UDP"), None);
    assert_eq!(port(json!("metrics"), "TCP"), Some(9));
    assert_eq!(port(json!("setup"), "TCP"), None);
    assert_eq!(port(Value::Null, "TCP"), Some(80));
}

fn object_port(value: Value) -> ServicePort {
    serde_json::from_value(value).unwrap()
}

//! The server's own admission plugins on real requests.

mod accounts;
mod certificates;
mod classes;
mod limits;
mod nodes;
mod optional;
mod quota;
mod security;
mod volumes;

use serde_json::{Value, json};

const PODS: &str = "/v1/pods?namespace=default";

/// A pod with one container and these fields in its spec.
fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (k, v) in spec.as_object().unwrap() {
        pod["spec"][k] = v.clone();
    }
    pod
}

//! Connections through the API server: logs, `exec` and the like, proxies of nodes, pods and services. The other side is a
//! server in this process, over real TLS where it stands for a kubelet.

mod backend;
mod logs;
mod proxies;
mod streams;

use crate::common::TestCluster;
use backend::Backend;
use kaji_meta::GroupResource;
use kaji_resource::{FieldManagement, ObjectWriter, UpdateOptions};
use serde_json::{Value, json};

/// The pods of the default namespace.
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A cluster with a node `n`, the kubelet of which is a server of this test.
async fn cluster() -> (TestCluster, Backend) {
    let cluster = TestCluster::start(0).await;
    let kubelet = Backend::kubelet(&cluster, &cluster.cluster.pki.ca.clone()).await;
    node(&cluster, "n", "127.0.0.1", kubelet.port).await;
    (cluster, kubelet)
}

async fn create(cluster: &TestCluster, resource: &str, object: Value) {
    let namespace = if resource == "nodes" { "" } else { "default" };
    let resource = GroupResource::new("", resource);
    cluster.cluster.stack.engine.create(&resource, namespace, object, false).await.unwrap();
}

/// Makes a node with a kubelet at this address.
async fn node(cluster: &TestCluster, name: &str, address: &str, port: u16) {
    let status = json!({
        "addresses": [{"type": "Hostname", "address": "nowhere.invalid"}, {"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    });
    create(cluster, "nodes", json!({"metadata": {"name": name}, "status": status})).await;
}

/// Makes a pod, on a node if one is named, with an address if one is given.
async fn pod(cluster: &TestCluster, name: &str, node: Option<&str>, ip: Option<&str>) {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    if let Some(node) = node {
        spec["nodeName"] = node.into();
    }
    create(cluster, "pods", json!({"metadata": {"name": name}, "spec": spec})).await;
    let Some(ip) = ip else { return };
    let set = |pod: &mut Value| {
        pod["status"]["podIPs"] = json!([{ "ip": ip }]);
        pod["status"]["podIP"] = ip.into();
        Ok(())
    };
    let options = UpdateOptions::new("status", FieldManagement::Skip);
    let engine = &cluster.cluster.stack.engine;
    engine.update(&GroupResource::new("", "pods"), "default", name, options, &set).await.unwrap();
}

/// The values of a header of a request that was seen.
fn header(said: &Value, name: &str) -> Vec<String> {
    let prefix = format!("{name}: ");
    let all = said["headers"].as_array().unwrap().iter();
    all.filter_map(|h| h.as_str().unwrap().strip_prefix(&prefix)).map(str::to_owned).collect()
}

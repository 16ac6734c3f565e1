//! The loops of a cloud's provider, with their own accounts' rights; and a cloud that is left to a cloud-controller-manager.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use kaji::{Environment, StoreKind};
use kaji_controllers::cloud_provider::{
    Answer, CloudProvider, InstanceLifecycle, InstanceMetadata, Instances, LoadBalancers, LoadBalancing,
    Route, Routes,
};
use kaji_runtime::objects::{LoadBalancerIngress, Node, NodeAddress, Service};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

const SERVICE: &str = "/api/v1/namespaces/default/services/web";
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// A cloud with one machine, `vm`.
#[derive(Debug, Default)]
struct Cloud {
    balancers: Mutex<BTreeSet<String>>,
    routes: Mutex<Vec<Route>>,
}

fn answer<'a, T: Send + 'a>(value: T) -> Answer<'a, T> {
    Box::pin(std::future::ready(Ok(value)))
}

impl CloudProvider for Cloud {
    fn name(&self) -> &'static str {
        "test"
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn lifecycle(&self) -> Option<&dyn InstanceLifecycle> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }

    fn load_balancing(&self) -> Option<LoadBalancing<'_>> {
        Some(LoadBalancing::Outside(self))
    }
}

impl Instances for Cloud {
    fn metadata<'a>(&'a self, node: &'a Node) -> Answer<'a, Option<InstanceMetadata>> {
        answer((node.metadata.name == "vm").then(|| InstanceMetadata {
            provider_id: "test://vm".into(),
            zone: "a".into(),
            addresses: vec![NodeAddress { kind: "InternalIP".into(), address: "192.0.2.7".into() }],
            ..InstanceMetadata::default()
        }))
    }
}

impl InstanceLifecycle for Cloud {
    fn exists<'a>(&'a self, node: &'a Node) -> Answer<'a, bool> {
        answer(node.metadata.name != "gone")
    }

    fn is_shut_down<'a>(&'a self, node: &'a Node) -> Answer<'a, bool> {
        answer(node.metadata.name == "vm")
    }
}

impl Routes for Cloud {
    fn list<'a>(&'a self, _cluster: &'a str) -> Answer<'a, Vec<Route>> {
        answer(self.routes.lock().unwrap().clone())
    }

    fn create<'a>(&'a self, _cluster: &'a str, _hint: &'a str, route: &'a Route) -> Answer<'a, ()> {
        self.routes.lock().unwrap().push(route.clone());
        answer(())
    }

    fn delete<'a>(&'a self, _cluster: &'a str, route: &'a Route) -> Answer<'a, ()> {
        self.routes.lock().unwrap().retain(|other| other != route);
        answer(())
    }
}

impl LoadBalancers for Cloud {
    fn get<'a>(
        &'a self,
        _cluster: &'a str,
        service: &'a Service,
    ) -> Answer<'a, Option<Vec<LoadBalancerIngress>>> {
        let known = self.balancers.lock().unwrap().contains(&service.metadata.uid);
        answer(known.then(Vec::new))
    }

    fn ensure<'a>(
        &'a self,
        _cluster: &'a str,
        service: &'a Service,
        _nodes: &'a [Arc<Node>],
    ) -> Answer<'a, Vec<LoadBalancerIngress>> {
        self.balancers.lock().unwrap().insert(service.metadata.uid.clone());
        let hostname = "lb.example.com".to_owned();
        answer(vec![LoadBalancerIngress { hostname, ..LoadBalancerIngress::default() }])
    }

    fn update<'a>(
        &'a self,
        _cluster: &'a str,
        _service: &'a Service,
        _nodes: &'a [Arc<Node>],
    ) -> Answer<'a, ()> {
        answer(())
    }

    fn ensure_deleted<'a>(&'a self, _cluster: &'a str, service: &'a Service) -> Answer<'a, ()> {
        self.balancers.lock().unwrap().remove(&service.metadata.uid);
        answer(())
    }
}

fn uninitialized(name: &str) -> Value {
    let taint = json!({"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"});
    json!({"metadata": {"name": name}, "spec": {"taints": [taint]}})
}

async fn get(test: &TestCluster, path: &str) -> (u16, Value) {
    ask(test, &admin(), &format!("GET {path}"), &Value::Null).await
}

fn has_taint(node: &Value, key: &str) -> bool {
    let taints = node["spec"]["taints"].as_array();
    taints.is_some_and(|taints| taints.iter().any(|taint| taint["key"] == key))
}

#[tokio::test]
async fn a_cloud_has_nodes_routes_and_load_balancers() {
    let cloud = Arc::new(Cloud::default());
    let provider = cloud.clone();
    let test = TestCluster::start_from(
        tempfile::tempdir().unwrap(),
        1,
        StoreKind::Memory,
        |options| {
            options.loops.nodes.period = std::time::Duration::from_secs(1);
            options.loops.cloud.route_period = std::time::Duration::from_secs(1);
        },
        |options| Environment { cloud: Some(provider), ..Environment::machine(options) },
    )
    .await;
    for name in ["vm", "gone"] {
        ok(&test, &admin(), "POST /api/v1/nodes", uninitialized(name)).await;
    }
    until("the node of a machine is initialized, reachable and known to be switched off", async || {
        let (_, node) = get(&test, "/api/v1/nodes/vm").await;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        node["spec"]["providerID"] == "test://vm"
            && node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "a"
            && node["status"]["addresses"][0]["address"] == "192.0.2.7"
            && !has_taint(&node, "node.cloudprovider.kubernetes.io/uninitialized")
            && has_taint(&node, "node.cloudprovider.kubernetes.io/shutdown")
            && conditions.iter().any(|c| c["type"] == "NetworkUnavailable" && c["reason"] == "RouteCreated")
    })
    .await;
    until("the node without a machine is gone", async || get(&test, "/api/v1/nodes/gone").await.0 == 404)
        .await;

    let service =
        json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    ok(&test, &admin(), "POST /api/v1/namespaces/default/services", service).await;
    until("the service has a load balancer", async || {
        let (_, service) = get(&test, SERVICE).await;
        service["status"]["loadBalancer"]["ingress"][0]["hostname"] == "lb.example.com"
            && service["metadata"]["finalizers"] == json!([FINALIZER])
    })
    .await;
    assert_eq!(cloud.balancers.lock().unwrap().len(), 1);
    ok(&test, &admin(), &format!("DELETE {SERVICE}"), Value::Null).await;
    until("the service is gone", async || get(&test, SERVICE).await.0 == 404).await;
    assert!(cloud.balancers.lock().unwrap().is_empty());
    test.stop().await;
}

#[tokio::test]
async fn an_external_cloud_is_left_to_its_controller_manager() {
    let external = |options: &mut kaji::Options| options.loops.cloud.external = true;
    let test = TestCluster::start_over(tempfile::tempdir().unwrap(), 1, StoreKind::Memory, external).await;
    until("the node is registered", async || get(&test, "/api/v1/nodes/sim-1").await.0 == 200).await;
    let (_, node) = get(&test, "/api/v1/nodes/sim-1").await;
    assert!(has_taint(&node, "node.cloudprovider.kubernetes.io/uninitialized"), "{node}");
    assert!(node["spec"]["providerID"].is_null(), "{node}");
    until("there is an account", async || {
        get(&test, "/api/v1/namespaces/default/serviceaccounts/default").await.0 == 200
    })
    .await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    ok(&test, &admin(), "POST /api/v1/namespaces/default/pods", pod).await;
    let pod = "/api/v1/namespaces/default/pods/p";
    until("the pod does not fit", async || {
        get(&test, pod).await.1["status"]["conditions"][0]["reason"] == "Unschedulable"
    })
    .await;
    let (_, node) = get(&test, "/api/v1/nodes/sim-1").await;
    assert!(node["spec"]["providerID"].is_null(), "{node}");
    let initialized = json!({"spec": {"providerID": "other://1", "taints": null}});
    ok(&test, &admin(), "PATCH /api/v1/nodes/sim-1", initialized).await;
    until("the pod runs", async || get(&test, pod).await.1["status"]["phase"] == "Running").await;
    test.stop().await;
}

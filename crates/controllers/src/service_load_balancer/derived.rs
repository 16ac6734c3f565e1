//! Addresses of services that follow from the cluster's own objects.
//!
//! Invariant: nothing exists outside of the cluster that would have to be removed, so that services get no finalizer.

use super::{COMPONENT, QUEUE, is_balanced, metrics, reference};
use crate::cloud_provider::{CloudProvider, LoadBalancing, is_included, is_leaving};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, ObjectSnapshot, PatchKind, Plan, Reconciler, Step,
    View, Write,
    client::Target,
    objects::{EndpointSlice, Node, SERVICE_NAME_LABEL, Service},
};
use serde_json::json;
use std::{net::IpAddr, sync::Arc};

/// The controller of a provider with derived addresses.
pub fn controller(informers: &Arc<Informers>, cloud: Arc<dyn CloudProvider>) -> Controller {
    let services = informers.get::<Service>();
    Controller::new(Derived { cloud }, informers)
        .reads::<Service>(move |change, _| keys_of_service(change, &services.snapshot()))
        .reads::<Node>(keys_of_node)
        .reads::<EndpointSlice>(|change, _| {
            let slice = &change.any().metadata;
            let service = slice.labels.get(SERVICE_NAME_LABEL);
            service.map(|name| Key::new(slice.namespace.as_str(), name.as_str())).into_iter().collect()
        })
        .gauges(|_| vec![metrics::runs()])
}

/// A service that comes or goes takes ports or leaves them to others.
fn keys_of_service(change: &Change<Service>, services: &ObjectSnapshot<Service>) -> Vec<Key> {
    let ports = |service: &Option<Arc<Service>>| {
        service.as_deref().filter(|service| is_balanced(service)).map(|service| service.spec.ports.clone())
    };
    let (old, new) = (ports(&change.old), ports(&change.new));
    match (old, new) {
        (None, None) => vec![],
        (old, new) if old == new => vec![change.any().metadata.key()],
        _ => balanced(services),
    }
}

fn keys_of_node(change: &Change<Node>, view: &View) -> Vec<Key> {
    let seen = |node: &Option<Arc<Node>>| {
        let exposed = |node: &&Node| {
            !node.metadata.deleting() && node.ready() && is_included(node) && !is_leaving(node)
        };
        node.as_deref().filter(exposed).map(|node| node.status.addresses.clone())
    };
    if seen(&change.old) == seen(&change.new) { vec![] } else { balanced(&view.get::<Service>()) }
}

fn balanced(services: &ObjectSnapshot<Service>) -> Vec<Key> {
    services.iter().filter(|service| is_balanced(service)).map(|service| service.metadata.key()).collect()
}

struct Derived {
    cloud: Arc<dyn CloudProvider>,
}

impl Reconciler for Derived {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        QUEUE
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let services = view.get::<Service>();
        let Some(service) = services.by_key(key).filter(|service| is_balanced(service)) else {
            return Plan::nothing();
        };
        let Some(LoadBalancing::Derived(rules)) = self.cloud.load_balancing() else { return Plan::nothing() };
        let shown = &service.status.load_balancer.ingress;
        match rules.addresses(service, view) {
            Ok(addresses)
                if addresses.iter().map(IpAddr::to_string).eq(shown.iter().map(|i| i.ip.clone())) =>
            {
                Plan::nothing()
            }
            Ok(addresses) => {
                let regarding = reference(service);
                let mut plan = Plan::nothing().event(EventRecord::normal(
                    regarding.clone(),
                    "EnsuringLoadBalancer",
                    "Ensuring load balancer",
                ));
                if addresses.is_empty() {
                    let text = "There are no available nodes for LoadBalancer";
                    plan =
                        plan.event(EventRecord::warning(regarding.clone(), "UnAvailableLoadBalancer", text));
                }
                let ensured = EventRecord::normal(regarding, "EnsuredLoadBalancer", "Ensured load balancer");
                let write = patch(service, &addresses);
                plan.stage(vec![Step { write, on_success: Some(ensured), on_failure: None }])
            }
            Err(reason) => {
                let text = format!("Error syncing load balancer: failed to ensure load balancer: {reason}");
                let plan = Plan::nothing().event(EventRecord::warning(
                    reference(service),
                    "SyncLoadBalancerFailed",
                    text,
                ));
                if shown.is_empty() { plan } else { plan.then(patch(service, &[])) }
            }
        }
    }
}

fn patch(service: &Service, addresses: &[IpAddr]) -> Write {
    let meta = &service.metadata;
    let ingress: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip.to_string(), "ipMode": "VIP"})).collect();
    Write::Patch {
        target: Target::of::<Service>(&meta.namespace, &meta.name).subresource("status"),
        kind: PatchKind::Merge,
        body: json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"loadBalancer": {"ingress": ingress}},
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cloud_provider::BareMachines,
        testing::{ago, reconcile, snapshot, text},
    };
    use expect_test::expect;
    use serde_json::Value;

    fn service(name: &str, port: u16, age: i64, more: Value) -> Value {
        let mut spec = json!({"type": "LoadBalancer", "ipFamilies": ["IPv4"], "ports": [{"protocol": "TCP", "port": port}]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7", "creationTimestamp": ago(age)},
            "spec": spec})
    }

    fn node(name: &str, ready: &str, labels: Value, addresses: Value) -> Value {
        let addresses: Vec<Value> = addresses
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(kind, all)| {
                all.as_array().unwrap().iter().map(move |a| json!({"type": kind, "address": a}))
            })
            .collect();
        json!({"metadata": {"name": name, "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": ready}], "addresses": addresses}})
    }

    fn view(services: Vec<Value>) -> View {
        let slice = json!({"metadata": {"name": "s", "namespace": "ns", "labels": {SERVICE_NAME_LABEL: "local"}},
            "endpoints": [{"nodeName": "b", "conditions": {"ready": true}}, {"nodeName": "a", "conditions": {"ready": false}}]});
        let nodes = [
            node("a", "True", json!({}), json!({"InternalIP": ["10.0.0.1", "fd00::1"], "Hostname": ["a"]})),
            node(
                "b",
                "True",
                json!({"node.kubernetes.io/exclude-from-external-load-balancers": "false"}),
                json!({"InternalIP": ["10.0.0.2"], "ExternalIP": ["192.0.2.2"]}),
            ),
            node("c", "False", json!({}), json!({"InternalIP": ["10.0.0.3"]})),
            node(
                "d",
                "True",
                json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""}),
                json!({"InternalIP": ["10.0.0.4"]}),
            ),
            node("e", "True", json!({}), json!({"InternalIP": ["127.0.0.1"]})),
        ];
        View::default().with(snapshot::<Service>(services)).with(snapshot::<Node>(nodes)).with(snapshot::<
            EndpointSlice,
        >([
            slice,
        ]))
    }

    fn plan(services: Vec<Value>, name: &str) -> String {
        let cloud = Arc::new(BareMachines::with_load_balancing(vec![6443]));
        text(&reconcile(&Derived { cloud }, &view(services), "ns", name, &[]))
    }

    #[test]
    fn services_get_addresses_of_nodes() {
        let dual = json!({"ipFamilies": ["IPv6", "IPv4"]});
        expect![[r#"
            merge /api/v1/namespaces/ns/services/web/status {"metadata":{"resourceVersion":"7","uid":"web"},"status":{"loadBalancer":{"ingress":[{"ip":"fd00::1","ipMode":"VIP"},{"ip":"10.0.0.1","ipMode":"VIP"},{"ip":"192.0.2.2","ipMode":"VIP"}]}}}
                ok: Normal EnsuredLoadBalancer: Ensured load balancer
            event: Normal EnsuringLoadBalancer: Ensuring load balancer
        "#]]
        .assert_eq(&plan(vec![service("web", 80, 9, dual)], "web"));
        let mut done = service("web", 80, 9, json!({}));
        done["status"] = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}, {"ip": "192.0.2.2"}]}});
        assert_eq!(plan(vec![done], "web"), "");
        expect![[r#"
            merge /api/v1/namespaces/ns/services/local/status {"metadata":{"resourceVersion":"7","uid":"local"},"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.2","ipMode":"VIP"}]}}}
                ok: Normal EnsuredLoadBalancer: Ensured load balancer
            event: Normal EnsuringLoadBalancer: Ensuring load balancer
        "#]]
        .assert_eq(&plan(vec![service("local", 80, 9, json!({"externalTrafficPolicy": "Local"}))], "local"));
        let class = json!({"loadBalancerClass": "example.com/mine"});
        assert_eq!(plan(vec![service("other", 80, 9, class)], "other"), "");
    }

    #[test]
    fn a_port_belongs_to_the_older_service() {
        let mut second = service("second", 80, 5, json!({}));
        second["status"] = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}});
        expect![[r#"
            merge /api/v1/namespaces/ns/services/second/status {"metadata":{"resourceVersion":"7","uid":"second"},"status":{"loadBalancer":{"ingress":[]}}}
            event: Warning SyncLoadBalancerFailed: Error syncing load balancer: failed to ensure load balancer: port 80/TCP of the nodes is in use by service ns/first
        "#]]
        .assert_eq(&plan(vec![service("first", 80, 9, json!({})), second], "second"));
        expect![[r#"
            event: Warning SyncLoadBalancerFailed: Error syncing load balancer: failed to ensure load balancer: port 6443/TCP of the nodes is a port of the cluster
        "#]]
        .assert_eq(&plan(vec![service("api", 6443, 9, json!({}))], "api"));
        expect![[r#"
            event: Warning SyncLoadBalancerFailed: Error syncing load balancer: failed to ensure load balancer: 10.9.9.9 is not an address of a node
        "#]]
        .assert_eq(&plan(vec![service("web", 80, 9, json!({"loadBalancerIP": "10.9.9.9"}))], "web"));
    }
}

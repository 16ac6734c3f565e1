//! Addresses of services of type `LoadBalancer` on machines without a cloud: those of the nodes. Their service proxies take what arrives
//! at the ports of a service.
//!
//! Invariants:
//! - A service has the addresses of the nodes that are ready, are not excluded from load balancers and, where its external traffic
//!   policy is `Local`, have endpoints of it.
//! - A port of the nodes belongs to one service: the older one has it. Ports of the cluster's own servers belong to none.
//! - Services with a load balancer class belong to another controller.
//!
//! Source: upstream's service controller of `k8s.io/cloud-provider`. Nothing exists outside of the cluster that would have to be
//! removed, so that services get no finalizer.

use crate::{Descriptor, Start};
use kaji_runtime::{
    Change, Controller, Cx, EventRecord, Informers, Key, PatchKind, Plan, Projection, Reconciler, Snapshot,
    Step, View, Write,
    client::Target,
    objects::{EndpointSlice, Node, SERVICE_NAME_LABEL, Service},
};
use serde_json::json;
use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

const COMPONENT: &str = "service-controller";
const KIND: &str = "LoadBalancer";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The cluster autoscaler's, of nodes that it is about to remove.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// What services may not take of the nodes.
#[derive(Clone, Debug, Default)]
pub struct LoadBalancerConfig {
    /// TCP ports of the cluster's own servers.
    pub reserved_ports: Vec<u16>,
}

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "service-lb-controller",
    components: &[COMPONENT],
    service_account: Some("service-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        config.load_balancer.iter().map(|config| controller(informers, config.clone())).collect()
    }),
};

fn controller(informers: &Arc<Informers>, config: LoadBalancerConfig) -> Controller {
    let services = informers.get::<Service>();
    Controller::new(LoadBalancers { config }, informers)
        .reads::<Service>(move |change, _| keys_of_service(change, &services.snapshot()))
        .reads::<Node>(keys_of_node)
        .reads::<EndpointSlice>(|change, _| {
            let slice = &change.any().metadata;
            let service = slice.labels.get(SERVICE_NAME_LABEL);
            service.map(|name| Key::new(slice.namespace.as_str(), name.as_str())).into_iter().collect()
        })
}

/// A service that comes or goes takes ports or leaves them to others.
fn keys_of_service(change: &Change<Service>, services: &Snapshot<Service>) -> Vec<Key> {
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
        node.as_deref().filter(|node| is_exposed(node)).map(|node| node.status.addresses.clone())
    };
    if seen(&change.old) == seen(&change.new) { vec![] } else { balanced(&view.get::<Service>()) }
}

fn balanced(services: &Snapshot<Service>) -> Vec<Key> {
    services.iter().filter(|service| is_balanced(service)).map(|service| service.metadata.key()).collect()
}

fn is_balanced(service: &Service) -> bool {
    service.spec.kind == KIND && service.spec.load_balancer_class.is_none() && !service.metadata.deleting()
}

/// Whether a node is to be reached from outside of the cluster.
fn is_exposed(node: &Node) -> bool {
    let excluded = node
        .metadata
        .labels
        .get(EXCLUDED)
        .is_some_and(|value| !matches!(&**value, "0" | "f" | "F" | "false" | "False" | "FALSE"));
    let removed = node.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED);
    !node.metadata.deleting() && node.ready() && !excluded && !removed
}

struct LoadBalancers {
    config: LoadBalancerConfig,
}

impl Reconciler for LoadBalancers {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "service"
    }

    fn reconcile(&self, view: &View, key: &Key, _: &Cx<'_>) -> Plan {
        let services = view.get::<Service>();
        let Some(service) = services.by_key(key).filter(|service| is_balanced(service)) else {
            return Plan::nothing();
        };
        let addresses = self.conflict(service, &services).map_or_else(|| addresses(service, view), Err);
        let shown = &service.status.load_balancer.ingress;
        match addresses {
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

impl LoadBalancers {
    /// Why a service cannot have its ports.
    fn conflict(&self, service: &Service, services: &Snapshot<Service>) -> Option<String> {
        let ports = |service: &Service| -> BTreeSet<(String, i64)> {
            service.spec.ports.iter().map(|port| (port.protocol.clone(), port.port)).collect()
        };
        let wanted = ports(service);
        let reserved = self.config.reserved_ports.iter().map(|port| i64::from(*port));
        if let Some(port) = reserved.into_iter().find(|port| wanted.contains(&("TCP".to_owned(), *port))) {
            return Some(format!("port {port}/TCP of the nodes is a port of the cluster"));
        }
        let age = |service: &Service| {
            let meta = &service.metadata;
            (meta.creation_timestamp, meta.namespace.clone(), meta.name.clone())
        };
        let own = age(service);
        let older = services.iter().filter(|other| is_balanced(other) && age(other) < own);
        older.into_iter().find_map(|other| {
            let (protocol, port) = ports(other).intersection(&wanted).next()?.clone();
            let meta = &other.metadata;
            Some(format!(
                "port {port}/{protocol} of the nodes is in use by service {}/{}",
                meta.namespace, meta.name
            ))
        })
    }
}

/// The addresses of a service, by family in the service's order; or why the one that it asks for cannot be had.
fn addresses(service: &Service, view: &View) -> Result<Vec<IpAddr>, String> {
    let nodes = view.get::<Node>();
    let local =
        (service.spec.external_traffic_policy == "Local").then(|| nodes_with_endpoints(service, view));
    let exposed = nodes.iter().filter(|node| {
        is_exposed(node) && local.as_ref().is_none_or(|local| local.contains(&node.metadata.name))
    });
    let all: BTreeSet<IpAddr> = exposed.flat_map(|node| addresses_of(node)).collect();
    if !service.spec.load_balancer_ip.is_empty() {
        let wanted = service.spec.load_balancer_ip.parse().ok();
        let found = wanted.filter(|ip| all.contains(ip));
        return match found {
            Some(ip) => Ok(vec![ip]),
            None => Err(format!("{} is not an address of a node", service.spec.load_balancer_ip)),
        };
    }
    let of_family = |family: &String| {
        let v6 = family == "IPv6";
        all.iter().filter(move |ip| ip.is_ipv6() == v6).copied().collect::<Vec<_>>()
    };
    Ok(service.spec.ip_families.iter().flat_map(of_family).collect())
}

/// A node's addresses from outside of the cluster, or those inside where it has none.
fn addresses_of(node: &Node) -> Vec<IpAddr> {
    let of = |kind: &str| -> Vec<IpAddr> {
        let addresses = node.status.addresses.iter().filter(|address| &*address.kind == kind);
        addresses
            .filter_map(|address| address.address.parse().ok())
            .filter(|ip: &IpAddr| !ip.is_loopback())
            .collect()
    };
    let external = of("ExternalIP");
    if external.is_empty() { of("InternalIP") } else { external }
}

fn nodes_with_endpoints(service: &Service, view: &View) -> BTreeSet<String> {
    let slices = view.get::<EndpointSlice>();
    let name = format!("{}/{}", service.metadata.namespace, service.metadata.name);
    let endpoints = slices.indexed("service", &name).flat_map(|slice| slice.endpoints.iter());
    endpoints
        .filter(|endpoint| endpoint.conditions.ready != Some(false))
        .filter_map(|endpoint| endpoint.node_name.clone())
        .collect()
}

fn reference(service: &Service) -> serde_json::Value {
    service.metadata.reference(&Service::api_version(), Service::KIND)
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
    use crate::testing::{ago, reconcile, snapshot, text};
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
                json!({EXCLUDED: "false"}),
                json!({"InternalIP": ["10.0.0.2"], "ExternalIP": ["192.0.2.2"]}),
            ),
            node("c", "False", json!({}), json!({"InternalIP": ["10.0.0.3"]})),
            node("d", "True", json!({EXCLUDED: ""}), json!({"InternalIP": ["10.0.0.4"]})),
            node("e", "True", json!({}), json!({"InternalIP": ["127.0.0.1"]})),
        ];
        View::default().with(snapshot::<Service>(services)).with(snapshot::<Node>(nodes)).with(snapshot::<
            EndpointSlice,
        >([
            slice,
        ]))
    }

    fn plan(services: Vec<Value>, name: &str) -> String {
        let config = LoadBalancerConfig { reserved_ports: vec![6443] };
        text(&reconcile(&LoadBalancers { config }, &view(services), "ns", name, &[]))
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

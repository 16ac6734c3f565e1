//! Machines without a cloud. Nodes are initialized with what is known of any machine, and services of type `LoadBalancer` have
//! addresses of the nodes, where service proxies take what arrives at the ports of a service.
//!
//! Invariants:
//! - A service has the addresses of the nodes that are ready, are not excluded from load balancers and, where its external traffic
//!   policy is `Local`, have endpoints of it.
//! - A port of the nodes belongs to one service: the older one has it. Ports of the cluster's own servers belong to none.
//! - Whether a machine that is silent still exists cannot be known, so that no node is ever deleted here. Nodes have routes to each
//!   other's pods by the pod network.

use super::{
    Answer, CloudProvider, DerivedAddresses, InstanceMetadata, Instances, LoadBalancing,
    is_for_default_provider, is_included, is_leaving,
};
use kaji_runtime::{
    ObjectSnapshot, View,
    objects::{EndpointSlice, Node, Service},
};
use std::{collections::BTreeSet, net::IpAddr};

/// The provider of machines without a cloud.
#[derive(Clone, Debug, Default)]
pub struct BareMachines {
    /// TCP ports of the cluster's own servers, where containers run; without it services get no addresses.
    load_balancing: Option<Vec<u16>>,
}

impl BareMachines {
    /// Machines without load balancing: no traffic would arrive.
    pub fn new() -> BareMachines {
        BareMachines::default()
    }

    /// Machines with service proxies. Services may not take these TCP ports.
    pub fn with_load_balancing(reserved_ports: Vec<u16>) -> BareMachines {
        BareMachines { load_balancing: Some(reserved_ports) }
    }
}

impl CloudProvider for BareMachines {
    fn name(&self) -> &'static str {
        "kaji"
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn load_balancing(&self) -> Option<LoadBalancing<'_>> {
        self.load_balancing.as_ref().map(|_| LoadBalancing::Derived(self))
    }
}

impl Instances for BareMachines {
    fn metadata<'a>(&'a self, node: &'a Node) -> Answer<'a, Option<InstanceMetadata>> {
        let provider_id = match &*node.spec.provider_id {
            "" => format!("{}://{}", self.name(), node.metadata.name),
            known => known.to_owned(),
        };
        let metadata = InstanceMetadata { provider_id, ..InstanceMetadata::default() };
        Box::pin(std::future::ready(Ok(Some(metadata))))
    }

    fn has_addresses(&self) -> bool {
        false
    }
}

impl DerivedAddresses for BareMachines {
    fn addresses(&self, service: &Service, view: &View) -> Result<Vec<IpAddr>, String> {
        let reserved = self.load_balancing.as_deref().unwrap_or_default();
        match conflict(service, &view.get::<Service>(), reserved) {
            Some(reason) => Err(reason),
            None => addresses(service, view),
        }
    }
}

/// Whether a node is to be reached from outside of the cluster.
fn is_exposed(node: &Node) -> bool {
    !node.metadata.deleting() && node.ready() && is_included(node) && !is_leaving(node)
}

/// Why a service cannot have its ports.
fn conflict(service: &Service, services: &ObjectSnapshot<Service>, reserved: &[u16]) -> Option<String> {
    let ports = |service: &Service| -> BTreeSet<(String, i64)> {
        service.spec.ports.iter().map(|port| (port.protocol.clone(), port.port)).collect()
    };
    let wanted = ports(service);
    let reserved = reserved.iter().map(|port| i64::from(*port));
    if let Some(port) = reserved.into_iter().find(|port| wanted.contains(&("TCP".to_owned(), *port))) {
        return Some(format!("port {port}/TCP of the nodes is a port of the cluster"));
    }
    let age = |service: &Service| {
        let meta = &service.metadata;
        (meta.creation_timestamp, meta.namespace.clone(), meta.name.clone())
    };
    let own = age(service);
    let balanced = |other: &Service| is_for_default_provider(other) && !other.metadata.deleting();
    let older = services.iter().filter(|other| balanced(other) && age(other) < own);
    older.into_iter().find_map(|other| {
        let (protocol, port) = ports(other).intersection(&wanted).next()?.clone();
        let meta = &other.metadata;
        Some(format!(
            "port {port}/{protocol} of the nodes is in use by service {}/{}",
            meta.namespace, meta.name
        ))
    })
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

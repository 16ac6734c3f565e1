//! What a Service becomes on a node: elements of the maps in nftables. Pure.

use crate::{
    NodeConfig,
    changes::{Elements, Value},
    endpoints::{self, Endpoint, LocalReady, Policies, Usable},
    tables::{SetId, Spread, SpreadKind, TrafficPolicy},
};
use kaji_netfilter::{Family, octets, set::Key};
use kaji_network::{Cidr, cidr::disjoint};
use kaji_runtime::objects::{EndpointSlice, Service, ServicePort};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// A service with this label is another proxy's.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// Affinity when the service does not say how long.
const AFFINITY_SECONDS: u32 = 10800;

/// Connections that are tracked although they have no end: those of UDP and SCTP.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tracked {
    /// Destinations with their protocol; an unspecified address stands for every address of the node. With the endpoints that
    /// still serve.
    pub destinations: BTreeMap<(u8, SocketAddr), BTreeSet<SocketAddr>>,
}

/// What a service becomes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compiled {
    /// IPv4.
    pub v4: Elements,
    /// IPv6.
    pub v6: Elements,
    /// For the clean-up of connections to endpoints that are gone.
    pub tracked: Tracked,
    /// Its health check node port, with the numbers of local ready endpoints.
    pub health_check: Option<(u16, LocalReady)>,
}

/// Number of a transport protocol.
fn protocol_number(name: &str) -> u8 {
    match name {
        "UDP" => 17,
        "SCTP" => 132,
        _ => 6,
    }
}

/// Whether the proxy has anything to do for a service.
fn proxied(service: &Service) -> bool {
    !service.headless()
        && !service.spec.cluster_ip.is_empty()
        && service.spec.kind != "ExternalName"
        && !service.metadata.labels.contains_key(PROXY_NAME_LABEL)
}

/// What a service with these slices becomes on a node.
#[must_use]
pub fn compile(service: &Service, slices: &[Arc<EndpointSlice>], node: &NodeConfig) -> Compiled {
    let mut compiled = Compiled::default();
    if !proxied(service) {
        return compiled;
    }
    let mut local_ready = LocalReady::default();
    for family in [Family::V4, Family::V6] {
        let Some(addresses) = Addresses::of(service, family) else { continue };
        let mut elements = Elements::new();
        let mut local = BTreeSet::new();
        for port in &service.spec.ports {
            let found = endpoints::of_port(slices, (port.name.as_str(), protocol(port)), family, node);
            local.extend(found.iter().filter(|e| e.local && e.ready).map(|e| e.address.ip()));
            Port { service, port, addresses: &addresses, node, family }.compile_port(
                &found,
                &mut elements,
                &mut compiled.tracked,
            );
        }
        match family {
            Family::V4 => (compiled.v4, local_ready.v4) = (elements, local.len()),
            Family::V6 => (compiled.v6, local_ready.v6) = (elements, local.len()),
        }
    }
    let checked = service.spec.kind == "LoadBalancer" && service.spec.external_traffic_policy == "Local";
    if checked && service.spec.health_check_node_port != 0 {
        compiled.health_check = Some((service.spec.health_check_node_port, local_ready));
    }
    compiled
}

fn protocol(port: &ServicePort) -> &str {
    if port.protocol.is_empty() { "TCP" } else { &port.protocol }
}

/// A service's addresses of one family.
struct Addresses {
    cluster: IpAddr,
    external: Vec<IpAddr>,
    load_balancer: Vec<IpAddr>,
    sources: Vec<Cidr>,
}

impl Addresses {
    /// `None` for a family that the service does not have.
    fn of(service: &Service, family: Family) -> Option<Addresses> {
        let of_family = |text: &str| text.parse().ok().filter(|ip| Family::of(*ip) == family);
        let spec = &service.spec;
        let single = std::slice::from_ref(&spec.cluster_ip);
        let cluster_ips = if spec.cluster_ips.is_empty() { single } else { &spec.cluster_ips[..] };
        let cluster = cluster_ips.iter().find_map(|text| of_family(text))?;
        let ingress = service.status.load_balancer.ingress.iter();
        let virtual_ips = ingress.filter(|ingress| ingress.ip_mode != "Proxy");
        let sources: Vec<Cidr> = spec
            .load_balancer_source_ranges
            .iter()
            .filter_map(|text| text.parse::<Cidr>().ok())
            .filter(|range| range.family() == family)
            .collect();
        // A range of everything means no restriction.
        let all = sources.iter().any(|range| range.prefix_length() == 0);
        Some(Addresses {
            cluster,
            external: spec.external_ips.iter().filter_map(|text| of_family(text)).collect(),
            load_balancer: virtual_ips.filter_map(|ingress| of_family(&ingress.ip)).collect(),
            sources: if all { vec![] } else { disjoint(sources) },
        })
    }
}

/// A port of a service, in one family.
struct Port<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    addresses: &'a Addresses,
    node: &'a NodeConfig,
    family: Family,
}

impl Port<'_> {
    fn protocol(&self) -> u8 {
        protocol_number(protocol(self.port))
    }

    fn affinity(&self) -> Option<u32> {
        let spec = &self.service.spec;
        let config = spec.session_affinity_config.as_ref();
        let seconds = config.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
        (spec.session_affinity == "ClientIP").then(|| seconds.unwrap_or(AFFINITY_SECONDS))
    }

    /// Cluster IP and port. As long as the service exists they are the same, and so stand for its port in clients' affinity.
    fn cluster(&self) -> SocketAddr {
        SocketAddr::new(self.addresses.cluster, self.port.port as u16)
    }

    /// Addresses and ports for traffic from outside.
    fn external(&self) -> Vec<SocketAddr> {
        let port = self.port.port as u16;
        let addresses = self.addresses.external.iter().chain(&self.addresses.load_balancer);
        let mut all: Vec<SocketAddr> = addresses.map(|ip| SocketAddr::new(*ip, port)).collect();
        if self.port.node_port != 0 {
            all.push(SocketAddr::new(self.family.unspecified(), self.port.node_port as u16));
        }
        all
    }

    fn compile_port(&self, found: &[Endpoint], elements: &mut Elements, tracked: &mut Tracked) {
        let external = self.external();
        let policies = Policies {
            internal_local: self.service.spec.internal_traffic_policy == "Local",
            external_local: self.service.spec.external_traffic_policy == "Local",
            external: !external.is_empty(),
        };
        let usable = endpoints::usable(found, policies, self.node);
        let cluster = self.cluster();
        elements.insert((SetId::ClusterIps, octets(cluster.ip())), Value::Present);
        self.internal(cluster, policies, &usable, elements);
        for destination in &external {
            self.serve_outside(*destination, policies, &usable, elements);
        }
        for endpoint in found.iter().filter(|endpoint| endpoint.local) {
            let used = usable.cluster.contains(&endpoint.address) || usable.local.contains(&endpoint.address);
            if used {
                let pair = Key::new().address(endpoint.address.ip()).address(endpoint.address.ip()).bytes();
                elements.insert((SetId::Hairpin, pair), Value::Present);
            }
        }
        self.firewall(elements);
        if self.protocol() != 6 {
            let serving: BTreeSet<SocketAddr> =
                found.iter().filter(|endpoint| endpoint.serving).map(|endpoint| endpoint.address).collect();
            for destination in external.into_iter().chain([cluster]) {
                tracked.destinations.insert((self.protocol(), destination), serving.clone());
            }
        }
    }

    fn key(&self, destination: SocketAddr) -> Key {
        Key::new().address(destination.ip()).protocol(self.protocol()).port(destination.port())
    }

    fn internal(&self, to: SocketAddr, policies: Policies, usable: &Usable, elements: &mut Elements) {
        let list = if policies.internal_local { &usable.local } else { &usable.cluster };
        let count = list.len() as u32;
        let (policy, kind) = if policies.internal_local {
            (TrafficPolicy::Local, SpreadKind::Local(count))
        } else {
            (TrafficPolicy::Cluster, SpreadKind::Cluster(count))
        };
        if list.is_empty() {
            self.refuse(to, usable.any, elements);
        } else {
            self.spread(to, kind, elements);
            self.endpoints(policy, to, list, elements);
        }
    }

    fn serve_outside(&self, to: SocketAddr, policies: Policies, usable: &Usable, elements: &mut Elements) {
        let (cluster, local) = (usable.cluster.len() as u32, usable.local.len() as u32);
        if usable.any {
            let kind = if policies.external_local {
                SpreadKind::ExternalLocal { cluster, local }
            } else {
                SpreadKind::External(cluster)
            };
            self.spread(to, kind, elements);
            self.endpoints(TrafficPolicy::Cluster, to, &usable.cluster, elements);
            if policies.external_local {
                self.endpoints(TrafficPolicy::Local, to, &usable.local, elements);
            }
        }
        if !usable.any || (policies.external_local && local == 0) {
            self.refuse(to, usable.any, elements);
        }
    }

    fn spread(&self, to: SocketAddr, kind: SpreadKind, elements: &mut Elements) {
        let spread = Spread { any: to.ip().is_unspecified(), affinity: self.affinity(), kind };
        elements.insert((SetId::ServiceIps, self.key(to).bytes()), Value::Spread(spread));
        if spread.affinity.is_some() {
            let port = Value::ServicePort(self.key(self.cluster()).bytes());
            elements.insert((SetId::ServicePorts, self.key(to).bytes()), port);
        }
    }

    fn refuse(&self, to: SocketAddr, silently: bool, elements: &mut Elements) {
        elements.insert((SetId::NoEndpoints, self.key(to).bytes()), Value::Refuse { silently });
    }

    fn endpoints(&self, policy: TrafficPolicy, to: SocketAddr, list: &[SocketAddr], elements: &mut Elements) {
        let key = self.key(to);
        let kept = self.affinity().map(|_| self.key(self.cluster()));
        for (endpoint, index) in list.iter().zip(0_u32..) {
            let value = Key::new().address(endpoint.ip()).port(endpoint.port()).bytes();
            elements.insert((policy.endpoints(), key.clone().integer(index).bytes()), Value::Endpoint(value));
            if let Some(kept) = &kept {
                let pair = kept.clone().address(endpoint.ip()).port(endpoint.port()).bytes();
                elements.insert((policy.affinity_endpoints(), pair), Value::Present);
            }
        }
    }

    /// Load balancers' addresses with source ranges.
    fn firewall(&self, elements: &mut Elements) {
        if self.addresses.sources.is_empty() {
            return;
        }
        let mut sources = self.addresses.sources.clone();
        let includes_node =
            self.node.node_ips.iter().any(|ip| sources.iter().any(|range| range.contains(*ip)));
        if includes_node {
            // The node reaches the load balancer's address with that address as its source.
            sources.extend(self.addresses.load_balancer.iter().map(|ip| Cidr::host(*ip)));
        }
        for ip in &self.addresses.load_balancer {
            let key = self.key(SocketAddr::new(*ip, self.port.port as u16));
            elements.insert((SetId::Firewalled, key.clone().bytes()), Value::Present);
            for range in disjoint(sources.clone()) {
                let (first, last) = (key.clone().address(range.first()), key.clone().address(range.last()));
                elements.insert((SetId::AllowedSources, first.bytes()), Value::Until(last.bytes()));
            }
        }
    }
}

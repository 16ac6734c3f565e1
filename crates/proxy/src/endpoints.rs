//! A service's endpoints, and which of them a node uses.
//!
//! Ready endpoints are used; where there are none, those that still serve while they terminate. Topology hints narrow the cluster's
//! endpoints only if every ready endpoint has them and one is for this node or zone.
//!
//! Slices of headless services are left out, as upstream's proxy does not list them.

use crate::NodeConfig;
use kaji_netfilter::Family;
use kaji_runtime::objects::{Endpoint as SliceEndpoint, EndpointSlice, HEADLESS_LABEL};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// An endpoint of a service's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it listens.
    pub address: SocketAddr,
    /// Takes connections.
    pub ready: bool,
    /// Answers, maybe while it terminates.
    pub serving: bool,
    /// Is being deleted.
    pub terminating: bool,
    /// On this node.
    pub local: bool,
    zones: BTreeSet<String>,
    nodes: BTreeSet<String>,
}

/// What a service's port uses its endpoints for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policies {
    /// Only local endpoints for traffic to cluster IPs.
    pub internal_local: bool,
    /// Only local endpoints for traffic from outside.
    pub external_local: bool,
    /// Whether there is a way from outside.
    pub external: bool,
}

impl Policies {
    fn uses_cluster(self) -> bool {
        !self.internal_local || self.external
    }

    fn uses_local(self) -> bool {
        self.internal_local || (self.external_local && self.external)
    }
}

/// The endpoints that a node uses for a service's port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usable {
    /// By policy `Cluster`.
    pub cluster: Vec<SocketAddr>,
    /// By policy `Local`.
    pub local: Vec<SocketAddr>,
    /// Whether any node has a usable one.
    pub any: bool,
}

/// Local ready endpoints of a service, of each family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalReady {
    /// IPv4.
    pub v4: usize,
    /// IPv6.
    pub v6: usize,
}

impl LocalReady {
    /// Of a family.
    #[must_use]
    pub fn of(self, family: Family) -> usize {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

/// Whether a slice is of a headless service, even if that has a cluster IP meanwhile.
pub(crate) fn headless(slice: &EndpointSlice) -> bool {
    slice.metadata.labels.contains_key(HEADLESS_LABEL)
}

/// The endpoints of a port by name, of one family, in the order of their addresses.
pub fn of_port(
    slices: &[Arc<EndpointSlice>],
    port: (&str, &str),
    family: Family,
    node: &NodeConfig,
) -> Vec<Endpoint> {
    let address_type = match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    let mut endpoints: BTreeMap<SocketAddr, Endpoint> = BTreeMap::new();
    for slice in slices
        .iter()
        .filter(|slice| slice.address_type == address_type && !slice.metadata.deleting() && !headless(slice))
    {
        for found in &slice.ports {
            let protocol = found.protocol.as_deref().unwrap_or("TCP");
            if (found.name.as_deref().unwrap_or_default(), protocol) != port {
                continue;
            }
            let Some(number) = found.port.and_then(|port| u16::try_from(port).ok()) else { continue };
            for endpoint in &slice.endpoints {
                let Some(endpoint) = read(endpoint, number, node) else { continue };
                // An endpoint may be in two slices while it moves from one to the other.
                let known = endpoints.get(&endpoint.address);
                if known.is_none_or(|known| !known.ready && endpoint.ready) {
                    endpoints.insert(endpoint.address, endpoint);
                }
            }
        }
    }
    endpoints.into_values().collect()
}

fn read(endpoint: &SliceEndpoint, port: u16, node: &NodeConfig) -> Option<Endpoint> {
    let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
    let hints = |kind: &str| {
        let list = endpoint.hints[kind].as_array();
        list.into_iter().flatten().filter_map(|hint| hint["name"].as_str()).map(str::to_owned).collect()
    };
    Some(Endpoint {
        address: SocketAddr::new(address, port),
        ready: endpoint.conditions.ready.unwrap_or(true),
        serving: endpoint.conditions.serving.unwrap_or(true),
        terminating: endpoint.conditions.terminating.unwrap_or(false),
        local: endpoint.node_name.as_deref() == Some(node.name.as_str()),
        zones: hints("forZones"),
        nodes: hints("forNodes"),
    })
}

/// Which of the hints count.
enum Topology {
    Ignored,
    Node,
    Zone,
}

fn topology(endpoints: &[Endpoint], node: &NodeConfig) -> Topology {
    let mut ready = endpoints.iter().filter(|endpoint| endpoint.ready).peekable();
    if ready.peek().is_none() {
        return Topology::Ignored;
    }
    let ready: Vec<&Endpoint> = ready.collect();
    if ready.iter().all(|e| !e.nodes.is_empty()) && ready.iter().any(|e| e.nodes.contains(&node.name)) {
        return Topology::Node;
    }
    if ready.iter().all(|e| !e.zones.is_empty()) && ready.iter().any(|e| e.zones.contains(&node.zone)) {
        return Topology::Zone;
    }
    Topology::Ignored
}

/// The endpoints that a node uses.
pub fn usable(endpoints: &[Endpoint], policies: Policies, node: &NodeConfig) -> Usable {
    let select = |wanted: &dyn Fn(&Endpoint) -> bool| -> Vec<SocketAddr> {
        endpoints.iter().filter(|endpoint| wanted(endpoint)).map(|endpoint| endpoint.address).collect()
    };
    let leaving = |e: &Endpoint| e.serving && e.terminating;
    let mut found = Usable::default();
    if policies.uses_cluster() {
        let topology = topology(endpoints, node);
        found.cluster = select(&|e| {
            e.ready
                && match topology {
                    Topology::Ignored => true,
                    Topology::Node => e.nodes.contains(&node.name),
                    Topology::Zone => e.zones.contains(&node.zone),
                }
        });
        if found.cluster.is_empty() {
            found.cluster = select(&leaving);
        }
        found.any = !found.cluster.is_empty();
    }
    if policies.uses_local() {
        found.any |= endpoints.iter().any(|e| e.ready || leaving(e));
        found.local = select(&|e| e.local && e.ready);
        if found.local.is_empty() {
            found.local = select(&|e| e.local && leaving(e));
        }
    }
    found
}

//! The service proxy and network policies of a node: Services, EndpointSlices and NetworkPolicies become nftables.
//!
//! Invariants:
//! - What a service becomes is a pure function of it, its slices and the node ([`service::compile`]); a change of the world is a
//!   difference of elements ([`changes::Ruleset`]).
//! - A change is one transaction of the kernel for each family; a failed one is followed by a whole table in one transaction, so
//!   that no moment is without rules.
//! - Everything that touches the kernel runs on a thread of its own, in the node's network namespace.

pub mod changes;
mod conntrack;
mod dataplane;
pub mod endpoints;
pub mod health;
pub mod metrics;
pub mod pages;
mod peers;
pub mod policy;
mod proxy;
pub mod service;
pub mod tables;

pub use dataplane::{Dataplane, ProxyError};
pub use peers::follow_nodes;
pub use proxy::{Events, ServiceProxy, run};

use kaji_network::Cidr;
use std::path::PathBuf;

/// What the rules of a node depend on besides services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// Name of the Node object.
    pub name: String,
    /// Its label `topology.kubernetes.io/zone`; read from the Node object by [`run`].
    pub zone: String,
    /// Name of the nftables tables.
    pub table: String,
    /// The node's network namespace; `None` for that of the process.
    pub namespace: Option<PathBuf>,
    /// Ranges of local pods: traffic from them to cluster IPs keeps its source. Without any of a family, nothing is masqueraded for
    /// being from outside.
    pub local_cidrs: Vec<Cidr>,
    /// Addresses that node ports are served at (`--nodeport-addresses`); without any of a family, all but loopback.
    pub node_port_cidrs: Vec<Cidr>,
    /// Ranges of cluster IPs: traffic to those that no service has is dropped.
    pub service_cidrs: Vec<Cidr>,
    /// The node's addresses, for source ranges that include it.
    pub node_ips: Vec<std::net::IpAddr>,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// Bit of the packets' mark that asks for masquerade.
    pub masquerade_mark: u32,
}

impl NodeConfig {
    /// The defaults for a node.
    #[must_use]
    pub fn new(name: &str) -> NodeConfig {
        NodeConfig {
            name: name.into(),
            zone: String::new(),
            table: "kaji-proxy".into(),
            namespace: None,
            local_cidrs: vec![],
            node_port_cidrs: vec![],
            service_cidrs: vec![],
            node_ips: vec![],
            masquerade_all: false,
            masquerade_mark: 0x4000,
        }
    }
}

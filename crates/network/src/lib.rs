//! The built-in pod network: a bridge, a veth pair for each pod, addresses from the node's pod CIDRs, host ports, masquerade,
//! bandwidth limits, and routes to the other nodes' pods. `cni` is the other one: a CNI configuration on disk.
//!
//! Invariants:
//! - Everything that touches the kernel runs on one thread of its own, in the node's network namespace; a pod's namespace is
//!   entered by short-lived threads only to open a socket there.
//! - A pod's record is on disk before anything of it is in the kernel, and is removed last; so a process that was killed leaves
//!   nothing that `sweep` does not find.
//! - An address is in one record at most.
//! - Every operation may be repeated.

mod addresses;
mod bandwidth;
pub mod cidr;
mod cni;
mod error;
mod host_rules;
mod node;
mod pods;
mod records;
pub mod routes;
mod rtnetlink;
mod sysctl;
mod traffic_control;
mod worker;

pub use cidr::Cidr;
pub use cni::{CniNetwork, CniOptions};
pub use error::NetworkError;
pub use pods::{bring_up_loopback, prepare_node_namespace};
pub use routes::{PeerNode, Route, Via};
pub use worker::{BridgeNetwork, NetworkConfig};

//! A machine as a node: the kubelet over a container runtime and a pod network, with the service proxy, network policies and cluster
//! DNS; joined over the network or in the server's process, with or without root, alone or several on one machine; and its removal.

mod cluster_dns;
mod dns_announcement;
pub mod fleet;
mod guarded_network;
pub mod joined;
mod kubelet_root;
pub mod network;
pub mod node;
pub mod requirements;
pub mod reset;
mod runtime;

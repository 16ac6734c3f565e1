//! The node's side of a cluster: `agent` joins a node to a cluster, `server` is the kubelet's HTTPS API, and `simulated`
//! reports for pods what a kubelet would report, without running containers. `cluster_info` and `token` are what kubeadm sets
//! up for nodes that join.

pub mod agent;
pub mod cluster_info;
pub mod public_key_pins;
pub mod server;
pub mod simulated;
pub mod token;

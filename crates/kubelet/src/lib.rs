//! The node's side of a cluster: `agent` joins a node to a cluster, `server` is the kubelet's HTTPS API, `node` runs the pods of a
//! real node (`pods` decides and carries out, `volumes` holds their files, `local_path` the directories of node-local volumes,
//! `plugins` finds drivers and devices), and `simulated`
//! reports for pods what a kubelet would report, without running containers. `cluster_info` and `token` are what kubeadm sets
//! up for nodes that join.

pub mod agent;
pub mod cluster_info;
mod exposition;
pub mod local_path;
pub mod node;
pub mod plugins;
pub mod pods;
pub mod public_key_pins;
pub mod server;
pub mod simulated;
pub mod token;
pub mod volumes;

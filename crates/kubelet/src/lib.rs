//! The node's side of a cluster: `agent` joins a node to a cluster, `server` is the kubelet's HTTPS API, `node` runs the pods of a
//! real node (`pods` decides and carries out, `volumes` holds their files, `local_path` the directories of node-local volumes,
//! `plugins` finds drivers and devices, `credential_providers` runs programs that give credentials for images,
//! `metrics` counts and times, `node_lease` renews the leases of nodes, `cloud` is for nodes that a cloud provider initializes, `resource_managers` gives containers processors of their own, `configuration` reads KubeletConfiguration files), and `simulated`
//! reports for pods what a kubelet would report, without running containers. `cluster_info` and `token` are what kubeadm sets
//! up for nodes that join.

pub mod agent;
pub mod cloud;
pub mod cluster_info;
pub mod configuration;
pub mod credential_providers;
pub mod hostname;
mod keyring;
pub mod local_path;
pub mod metrics;
pub mod node;
mod node_lease;
pub mod plugins;
pub mod pods;
pub mod public_key_pins;
pub mod resource_managers;
pub mod server;
pub mod simulated;
pub mod token;
pub mod volumes;

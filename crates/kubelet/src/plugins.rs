//! Plug-ins of a node: CSI drivers, device plug-ins, DRA drivers. [`watcher`] finds those that register in the kubelet's directory,
//! [`csi_node`] shows CSI drivers in the API, [`devices`] hands devices of plug-ins to containers, [`dra`] those of claims;
//! [`pod_resources`] tells monitoring agents of both, and [`pods_api`] programs on the node of its pods.

pub mod csi_allocatable;
pub mod csi_node;
pub mod devices;
pub mod dra;
pub mod pod_resources;
pub mod pods_api;
pub mod watcher;

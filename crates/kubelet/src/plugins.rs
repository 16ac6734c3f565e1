//! Plug-ins of a node: CSI drivers and device plug-ins. [`watcher`] finds those that register in the kubelet's directory,
//! [`csi_node`] shows drivers in the API, [`devices`] hands devices of plug-ins to containers.

pub mod csi_node;
pub mod devices;
pub mod watcher;

//! Pod sandboxes: what the containers of a pod share.

use crate::resources::LinuxResources;
use crate::security::SandboxSecurity;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Names a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSandboxMetadata {
    /// Of the pod.
    pub name: String,
    /// Of the pod.
    pub namespace: String,
    /// Of the pod.
    pub uid: String,
    /// How many sandboxes of this pod came before.
    pub attempt: u32,
}

/// How `/etc/resolv.conf` of the containers reads. All empty: that of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DnsConfig {
    /// Addresses.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// `ndots:5` and the like.
    pub options: Vec<String>,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Protocol {
    #[default]
    #[allow(missing_docs)]
    Tcp,
    #[allow(missing_docs)]
    Udp,
    #[allow(missing_docs)]
    Sctp,
}

/// A port of the node that leads to one of the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortMapping {
    /// Transport protocol.
    pub protocol: Protocol,
    /// In the pod.
    pub container_port: u16,
    /// On the node; 0 for none.
    pub host_port: u16,
    /// Address on the node; `None` for all of the pod's families.
    pub host_ip: Option<IpAddr>,
}

/// What a sandbox is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSandboxConfig {
    /// Its name.
    pub metadata: PodSandboxMetadata,
    /// Host name; that of the node for pods in its network.
    pub hostname: String,
    /// Directory of the log files of the pod's containers.
    pub log_directory: String,
    /// Resolver configuration.
    pub dns: DnsConfig,
    /// Host ports.
    pub port_mappings: Vec<PortMapping>,
    /// For lists.
    pub labels: BTreeMap<String, String>,
    /// Kept and shown, not interpreted, but for `kubernetes.io/ingress-bandwidth` and `kubernetes.io/egress-bandwidth`.
    pub annotations: BTreeMap<String, String>,
    /// The pod's cgroup, below the mount point of the hierarchies, `/kubepods/burstable/pod<uid>`. It exists.
    pub cgroup_parent: String,
    /// Namespaces, users, profiles.
    pub security: SandboxSecurity,
    /// Kernel parameters of the sandbox's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Overhead of the RuntimeClass.
    pub overhead: Option<LinuxResources>,
    /// Sum of the containers' resources.
    pub resources: Option<LinuxResources>,
    /// What the RuntimeClass names; empty for the default one.
    pub runtime_handler: String,
}

/// Whether containers can be created in a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodSandboxState {
    /// They can.
    Ready,
    /// It was stopped, or its namespaces are lost.
    #[default]
    NotReady,
}

/// Which sandboxes to list: those for which all that is set holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSandboxFilter {
    /// Exactly this one.
    pub id: Option<String>,
    /// In this state.
    pub state: Option<PodSandboxState>,
    /// With all of these labels.
    pub labels: BTreeMap<String, String>,
}

/// A sandbox in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSandboxInfo {
    /// Made by the backend.
    pub id: String,
    /// Its name.
    pub metadata: PodSandboxMetadata,
    /// Whether containers can be created in it.
    pub state: PodSandboxState,
    /// Nanoseconds since the epoch.
    pub created_at_nanos: i64,
    /// As configured.
    pub labels: BTreeMap<String, String>,
    /// As configured.
    pub annotations: BTreeMap<String, String>,
    /// As configured.
    pub runtime_handler: String,
}

/// All there is to know of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSandboxStatus {
    /// What lists show.
    pub info: PodSandboxInfo,
    /// The pod's addresses, the primary one first; none in the node's network.
    pub addresses: Vec<IpAddr>,
    /// Path of the pinned network namespace; `None` in the node's.
    pub network_namespace: Option<String>,
    /// As configured.
    pub security: SandboxSecurity,
}

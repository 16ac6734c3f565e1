//! Node, projected.

use crate::{Meta, Projection, intern::Text};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`
    pub effect: String,
    /// RFC 3339, for `NoExecute`.
    pub time_added: Option<jiff::Timestamp>,
}

/// A condition as every kind has them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`
    pub status: String,
    /// Why.
    pub reason: Box<str>,
    /// When it was last seen.
    pub last_heartbeat_time: Option<jiff::Timestamp>,
}

/// A node's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Cordoned.
    pub unschedulable: bool,
    /// Taints.
    pub taints: Vec<Taint>,
    /// `10.244.1.0/24`; a second one of the other family.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    /// The machine, as its cloud provider names it; immutable once it is set.
    #[serde(rename = "providerID")]
    pub provider_id: Box<str>,
}

/// Where something about a node is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `Hostname`, …
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// An address or a name.
    pub address: Box<str>,
}

/// A port of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DaemonEndpoint {
    /// The port; 0 for none.
    #[serde(rename = "Port")]
    pub port: u16,
}

/// The daemons of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonEndpoints {
    /// The kubelet.
    pub kubelet_endpoint: DaemonEndpoint,
}

/// An image that a node has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeImage {
    /// Its references.
    pub names: Box<[Text]>,
    /// Bytes.
    pub size_bytes: i64,
}

/// What a node says of its system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSystemInfo {
    /// Another one after each start of the machine.
    #[serde(rename = "bootID")]
    pub boot_id: Box<str>,
}

/// A node's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Quantities by resource name.
    pub allocatable: BTreeMap<String, String>,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Addresses.
    pub addresses: Box<[NodeAddress]>,
    /// Daemons.
    pub daemon_endpoints: DaemonEndpoints,
    /// Images.
    pub images: Box<[NodeImage]>,
    /// Its system.
    pub node_info: NodeSystemInfo,
    /// Volumes that are attached to it, as the attach-detach controller says.
    pub volumes_attached: Vec<AttachedVolume>,
    /// Names of volumes that its kubelet uses, or may use.
    pub volumes_in_use: Vec<String>,
    /// Features that its kubelet has, sorted.
    pub declared_features: Box<[Text]>,
}

/// A volume that is attached to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachedVolume {
    /// `kubernetes.io/csi/DRIVER^HANDLE`
    pub name: String,
    /// Empty for CSI volumes.
    pub device_path: String,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: NodeSpec,
    /// Status.
    pub status: NodeStatus,
}

impl Node {
    /// Whether its `Ready` condition is `True`.
    pub fn ready(&self) -> bool {
        self.status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True")
    }
}

impl Projection for Node {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "nodes";
    const KIND: &'static str = "Node";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

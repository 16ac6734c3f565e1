//! The pod network, as the built-in runtime uses it: a network namespace becomes a pod's.

use crate::error::RuntimeError;
use crate::sandbox::{PodSandboxMetadata, PortMapping};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

/// A pod to set up a network for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSetup {
    /// Of the sandbox; names its interfaces and addresses.
    pub sandbox_id: String,
    /// Of the pod.
    pub metadata: PodSandboxMetadata,
    /// Where the network namespace is pinned. Its loopback interface is down.
    pub namespace: PathBuf,
    /// Host ports.
    pub port_mappings: Vec<PortMapping>,
    /// Of the pod; bandwidth limits are among them.
    pub annotations: BTreeMap<String, String>,
}

/// A pod's addresses, the primary one first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAddresses {
    /// One of each family at most.
    pub addresses: Vec<IpAddr>,
}

/// Connects pods' network namespaces to the cluster's network.
pub trait PodNetwork: Send + Sync + 'static {
    /// Why pods' networks cannot be set up at present; `None` when they can.
    fn unavailable_reason(&self) -> BoxFuture<'_, Option<String>>;

    /// The ranges that pods of this node get their addresses from.
    fn update_pod_cidrs(&self, cidrs: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>>;

    /// Gives a network namespace its loopback, its interface, addresses, routes and host ports. A second call for the same
    /// sandbox answers the same addresses.
    fn set_up(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>>;

    /// Checks that a sandbox's network is as it was set up, after a restart; the addresses stay taken.
    fn adopt(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>>;

    /// Takes all of it back. What is absent already is a success; the namespace may be gone.
    fn tear_down(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<(), RuntimeError>>;

    /// Removes what belongs to no sandbox of the list: left by a process that was killed.
    fn sweep(&self, sandboxes: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>>;
}

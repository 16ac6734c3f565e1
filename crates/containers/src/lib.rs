//! What the kubelet needs of a container runtime: the [`ContainerRuntime`], [`ImageService`], [`ImageRootfs`] and
//! [`PodNetwork`] traits and their messages. Types only.
//!
//! The shape is that of the Container Runtime Interface (`runtime.v1`), so that a CRI socket is one backend; the other one is
//! built in. Where CRI hands out a URL for exec, attach and port-forward, these traits hand out the streams themselves.
//!
//! Invariants of every backend:
//! - Ids are made by the backend and never used twice. A pod's sandbox is named by (pod uid, attempt), a container by (sandbox,
//!   name, attempt); creating a second one of the same name fails with [`RuntimeError::AlreadyExists`].
//! - Stop and remove are idempotent: what is stopped or absent already is a success.
//! - What a list or a status shows is true after a restart of the process that holds the trait: containers outlive it.
//! - A future that is dropped may leave its operation half done. It leaves nothing that the removal of the sandbox does not
//!   remove.

mod container;
mod error;
mod image;
mod network;
mod resources;
mod rootfs;
mod sandbox;
mod security;
mod stats;
mod stream;

pub use container::{
    ContainerConfig, ContainerFilter, ContainerInfo, ContainerMetadata, ContainerState, ContainerStatus,
    ContainerUser, Device, Mount, MountPropagation,
};
pub use error::RuntimeError;
pub use image::{
    FilesystemUsage, Image, ImageFilesystems, ImageService, ImageSpec, PullProgress, PullRequest,
    RegistryAuth,
};
pub use network::{NetworkSetup, PodAddresses, PodNetwork};
pub use resources::{HugepageLimit, LinuxResources, ResourceUpdate};
pub use rootfs::{ImageConfig, ImageLayers, ImageRootfs};
pub use sandbox::{
    DnsConfig, PodSandboxConfig, PodSandboxFilter, PodSandboxInfo, PodSandboxMetadata, PodSandboxState,
    PodSandboxStatus, PortMapping, Protocol,
};
pub use security::{
    Capabilities, ContainerSecurity, IdMapping, NamespaceMode, NamespaceOptions, SandboxSecurity,
    SeLinuxOptions, SecurityProfile, SupplementalGroupsPolicy, UserNamespace,
};
pub use stats::{
    ContainerStats, CpuUsage, DeviceIo, InterfaceUsage, MemoryUsage, NetworkUsage, PacketCounts,
    PodSandboxStats, Pressure, PressureStall, SwapUsage, Throttling,
};
pub use stream::{
    AsyncDuplex, AttachRequest, Duplex, ExecOutput, ExecRequest, Exit, Reader, Session, TerminalSize, Writer,
};

/// What the methods of the traits answer with.
pub use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};
use std::{path::Path, time::Duration};

/// Creates and runs pods' sandboxes and containers. Used as `Arc<dyn ContainerRuntime>`; futures must be polled on a tokio
/// runtime.
pub trait ContainerRuntime: Send + Sync + 'static {
    /// Name and version, as `status.nodeInfo.containerRuntimeVersion` of a Node shows them.
    fn version(&self) -> BoxFuture<'_, Result<RuntimeVersion, RuntimeError>>;

    /// Whether containers can be run, and pods' networks be set up.
    fn status(&self) -> BoxFuture<'_, Result<RuntimeStatus, RuntimeError>>;

    /// Creates a pod's namespaces, cgroup and network. Answers the sandbox's id; the sandbox is ready then.
    fn run_pod_sandbox(&self, config: PodSandboxConfig) -> BoxFuture<'_, Result<String, RuntimeError>>;

    /// Kills the containers in a sandbox and releases its network.
    fn stop_pod_sandbox<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// Removes a sandbox and its containers, stopping what still runs.
    fn remove_pod_sandbox<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// # Errors
    /// [`RuntimeError::NotFound`].
    fn pod_sandbox_status<'a>(&'a self, id: &'a str)
    -> BoxFuture<'a, Result<PodSandboxStatus, RuntimeError>>;

    /// The sandboxes that a filter selects.
    fn list_pod_sandboxes(
        &self,
        filter: PodSandboxFilter,
    ) -> BoxFuture<'_, Result<Vec<PodSandboxInfo>, RuntimeError>>;

    /// Creates a container in a sandbox that is ready. Answers the container's id.
    ///
    /// # Errors
    /// [`RuntimeError::NotFound`] for the sandbox, [`RuntimeError::ImageNotPresent`].
    fn create_container<'a>(
        &'a self,
        sandbox: &'a str,
        config: ContainerConfig,
    ) -> BoxFuture<'a, Result<String, RuntimeError>>;

    /// Starts a created container.
    ///
    /// # Errors
    /// [`RuntimeError::StartFailed`] when its process cannot be executed; the container is then
    /// [`ContainerState::Exited`] with reason `StartError` and exit code 128, as containerd reports it.
    fn start_container<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// Sends a container its stop signal, and SIGKILL after `grace`; at once for zero. Answers once it has exited.
    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// Removes a container and its writable layer, killing it if it runs.
    fn remove_container<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// # Errors
    /// [`RuntimeError::NotFound`].
    fn container_status<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<ContainerStatus, RuntimeError>>;

    /// The containers that a filter selects.
    fn list_containers(
        &self,
        filter: ContainerFilter,
    ) -> BoxFuture<'_, Result<Vec<ContainerInfo>, RuntimeError>>;

    /// Changes the cgroup limits of a container.
    fn update_container_resources<'a>(
        &'a self,
        id: &'a str,
        update: ResourceUpdate,
    ) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// Tells the backend the resources of a pod as a whole, after its cgroup was changed. Backends without use for it
    /// answer [`RuntimeError::Unimplemented`].
    fn update_pod_sandbox_resources<'a>(
        &'a self,
        id: &'a str,
        overhead: Option<LinuxResources>,
        resources: Option<LinuxResources>,
    ) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// Opens a container's log file anew, after it was renamed.
    fn reopen_container_log<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// Runs a command in a container and collects its output, at most 16 MiB of each stream.
    ///
    /// # Errors
    /// [`RuntimeError::DeadlineExceeded`] after `timeout` (zero: none); the command is killed.
    fn exec_sync<'a>(
        &'a self,
        id: &'a str,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput, RuntimeError>>;

    /// Runs a command in a container with its streams connected.
    fn exec(&self, request: ExecRequest) -> BoxFuture<'_, Result<Session, RuntimeError>>;

    /// Connects to the streams of a container's own process.
    fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Session, RuntimeError>>;

    /// One connection to a TCP port on a sandbox's loopback interface.
    fn port_forward<'a>(&'a self, sandbox: &'a str, port: u16)
    -> BoxFuture<'a, Result<Duplex, RuntimeError>>;

    /// What a container uses.
    fn container_stats<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<ContainerStats, RuntimeError>>;

    /// What running sandboxes and their containers use.
    fn list_pod_sandbox_stats(
        &self,
        filter: PodSandboxFilter,
    ) -> BoxFuture<'_, Result<Vec<PodSandboxStats>, RuntimeError>>;

    /// Changes of containers' and sandboxes' states, from now on. When a consumer does not read and misses events, the
    /// stream has an `Err` in their place; the consumer lists then.
    ///
    /// # Errors
    /// [`RuntimeError::Unimplemented`] for backends that have no events; the caller polls.
    fn events(
        &self,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<RuntimeEvent, RuntimeError>>, RuntimeError>>;

    /// Writes what a running container is, its memory with it, to an archive at a path; it runs on. A `timeout` of zero is the
    /// backend's own.
    ///
    /// # Errors
    /// [`RuntimeError::Unimplemented`] for backends that cannot, with the text by which clients know them.
    fn checkpoint_container<'a>(
        &'a self,
        _id: &'a str,
        _location: &'a Path,
        _timeout: Duration,
    ) -> BoxFuture<'a, Result<(), RuntimeError>> {
        let text = "rpc error: code = Unimplemented desc = method CheckpointContainer not implemented";
        Box::pin(std::future::ready(Err(RuntimeError::Unimplemented(text.to_owned()))))
    }

    /// The node's pod CIDRs, for backends that assign pods' addresses.
    fn update_pod_cidrs(&self, cidrs: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>>;
}

/// See [`ContainerRuntime::version`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeVersion {
    /// `kaji`, `containerd`, `cri-o`.
    pub name: String,
    /// A semantic version, without `v`.
    pub version: String,
    /// Version of the API that the backend speaks, `v1`.
    pub api_version: String,
}

/// See [`ContainerRuntime::status`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// `RuntimeReady` and `NetworkReady` at least.
    pub conditions: Vec<RuntimeCondition>,
    /// By name; the default one is named by the empty string.
    pub handlers: Vec<RuntimeHandler>,
    /// Whether `securityContext.supplementalGroupsPolicy` is honoured.
    pub supplemental_groups_policy: bool,
}

/// A condition of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeCondition {
    /// `RuntimeReady`, `NetworkReady`.
    pub kind: String,
    /// Whether it holds.
    pub status: bool,
    /// A word in camel case, if it does not hold.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// What a RuntimeClass names as its handler, and what it can do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// Empty for the default one.
    pub name: String,
    /// Recursive read-only mounts.
    pub recursive_read_only_mounts: bool,
    /// Pods with user namespaces.
    pub user_namespaces: bool,
}

/// A change of a sandbox or a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeEvent {
    /// What happened.
    pub kind: RuntimeEventKind,
    /// Of the container, or of the sandbox.
    pub id: String,
    /// Of the pod.
    pub pod_uid: String,
    /// In nanoseconds since the epoch.
    pub at_nanos: i64,
}

/// What happened to a sandbox or a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeEventKind {
    /// It exists.
    Created,
    /// Its process runs.
    Started,
    /// Its process has exited.
    Stopped,
    /// It is gone.
    Deleted,
}

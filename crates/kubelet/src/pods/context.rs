//! What all pods of a node share: the runtime, the API, the node's own facts.

use super::core::{Node, PodStatus};
use super::network::DnsSettings;
use super::pull_records::PullRecords;
use super::sources::Sources;
use super::user_namespaces::UserNamespaces;
use crate::credential_providers::CredentialProviders;
use crate::metrics::KubeletMetrics;
use crate::node::shutdown::NodeShutdown;
use crate::plugins::devices::DeviceManager;
use crate::plugins::dra::DraManager;
use crate::plugins::pods_api::PodFeed;
use crate::pods::sysctls::AllowedSysctls;
use crate::resource_managers::ResourceManagers;
use crate::volumes::VolumeManager;
use futures_util::future::BoxFuture;
use kaji_containers::{ContainerRuntime, HugepageLimit, ImageService, LinuxResources};
use kaji_meta::{Clock, random::Random};
use kaji_runtime::{EventRecord, objects::Service};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;

/// Why a write to the API failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApiError {
    /// There is no such pod any more, or one of another uid.
    #[error("the pod is gone")]
    Gone,
    /// Anything else; it is tried again.
    #[error("{0}")]
    Failed(String),
}

/// What is written to the API about pods.
pub trait PodApi: Send + Sync + 'static {
    /// Patches a pod's status from what was written before, with the uid as precondition.
    fn patch_status<'a>(
        &'a self,
        pod: &'a PodRef,
        before: &'a PodStatus,
        status: &'a PodStatus,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Deletes a pod of this uid without grace.
    fn delete<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Patches the status of a claim that one of the node's pods uses.
    fn patch_claim_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: &'a serde_json::Value,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Records an event, or drops it.
    fn record(&self, event: EventRecord);
}

/// Names a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodRef {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
}

/// What a cgroup that holds others may use. What is absent is not changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupBounds {
    /// As cgroup v1 has it; 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// Bytes.
    pub memory: Option<i64>,
    /// Bytes that are never reclaimed; with cgroup v2 only.
    pub memory_min: Option<i64>,
    /// Bytes that are reclaimed when nothing else is left; with cgroup v2 only.
    pub memory_low: Option<i64>,
    /// Processes.
    pub pids: Option<i64>,
    /// One limit a page size.
    pub hugepages: Vec<HugepageLimit>,
}

/// Makes, limits and removes pods' cgroups.
pub trait PodCgroups: Send + Sync + 'static {
    /// Creates a pod's cgroup and sets its limits; again for one that exists.
    ///
    /// # Errors
    /// A text for an event.
    fn ensure(&self, path: &str, resources: &LinuxResources) -> Result<(), String>;

    /// Removes a pod's cgroup and kills what is left in it; one that is absent is a success. It blocks for milliseconds.
    ///
    /// # Errors
    /// A text for the log.
    fn remove(&self, path: &str) -> Result<(), String>;

    /// The limits that a pod's cgroup has; `None` where there is none, or where they cannot be read.
    fn limits(&self, _path: &str) -> Option<LinuxResources> {
        None
    }

    /// Bounds a cgroup that exists. The files that it does not have, since the kernel has no such controller there.
    ///
    /// # Errors
    /// A text for an event: the kernel refuses a limit.
    fn bound(&self, _path: &str, _bounds: &CgroupBounds) -> Result<Vec<String>, String> {
        Ok(vec![])
    }

    /// Whether there is such a cgroup.
    fn exists(&self, _path: &str) -> bool {
        false
    }

    /// Bytes of the working set of all pods together, where that can be read.
    fn pods_memory(&self) -> Option<u64> {
        None
    }

    /// The pods that have a cgroup: uid, and the cgroup's path.
    fn pods(&self) -> Vec<(String, String)>;
}

/// Where the kubelet keeps its files, and what it knows of its node from its configuration.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The Node object's name.
    pub node_name: String,
    /// Directory of pods' volumes, `/var/lib/kaji/kubelet` for example. Owned by root, mode 0750.
    pub root_dir: PathBuf,
    /// Directory of the node's logs, `/var/log`.
    pub system_log_dir: PathBuf,
    /// Directory of containers' logs, `/var/log/pods`.
    pub pod_log_dir: PathBuf,
    /// Directory of links to them, `/var/log/containers`.
    pub container_log_dir: PathBuf,
    /// The node's addresses, the primary one first; one of each family at most.
    pub addresses: Vec<IpAddr>,
    /// Resolvers.
    pub dns: DnsSettings,
    /// `/etc/hosts` of the node.
    pub hosts_file: PathBuf,
    /// Bytes of memory of the node.
    pub memory: i64,
    /// Scheme of container ids: the runtime's name.
    pub runtime_name: String,
    /// The sysctls that pods may set.
    pub sysctls: AllowedSysctls,
    /// Whether the kernel enforces AppArmor profiles.
    pub apparmor: bool,
    /// The cloud provider that initializes the node; `None` for a node that needs none.
    pub external_cloud: Option<crate::cloud::ExternalCloud>,
    /// Protection and throttling of pods' memory.
    pub memory_qos: super::memory_qos::MemoryQos,
    /// The delays of restarts.
    pub restart_delays: super::backoff::RestartDelays,
    /// The flags of the process, as `/flagz` shows them.
    pub flag_values: kaji_server::FlagValues,
}

impl NodeConfig {
    /// A pod's own directory.
    #[must_use]
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    /// The directory of a pod's logs.
    #[must_use]
    pub fn log_dir(&self, pod: &PodRef) -> PathBuf {
        self.pod_log_dir.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
    }
}

/// Facts of the node that change while it runs.
pub trait NodeFacts: Send + Sync + 'static {
    /// All services, or `None` before they were read once.
    fn services(&self) -> Option<Vec<Arc<Service>>>;

    /// The Node object, once it is known.
    fn node(&self) -> Option<Arc<Node>>;

    /// What pods may use, thousandths for `cpu`.
    fn allocatable(&self) -> BTreeMap<String, i64>;
}

/// What all pods of a node share.
pub struct NodeContext {
    /// Configuration.
    pub config: NodeConfig,
    /// Sandboxes and containers.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Images.
    pub images: Arc<dyn ImageService>,
    /// Credentials for pulls.
    pub credentials: CredentialProviders,
    /// What images were pulled with.
    pub pull_records: PullRecords,
    /// Processors of containers.
    pub managers: ResourceManagers,
    /// What is counted and timed.
    pub metrics: Arc<KubeletMetrics>,
    /// The same of probes, which have a page of their own.
    pub probe_metrics: KubeletMetrics,
    /// Writes to the API.
    pub api: Arc<dyn PodApi>,
    /// Reads from the API.
    pub sources: Arc<dyn Sources>,
    /// The node.
    pub facts: Arc<dyn NodeFacts>,
    /// Volumes.
    pub volumes: VolumeManager,
    /// Ranges of ids of pods with user namespaces.
    pub user_namespaces: UserNamespaces,
    /// What programs on the node see of its pods.
    pub pod_feed: PodFeed,
    /// Devices of plug-ins.
    pub devices: Arc<DeviceManager>,
    /// Devices of claims.
    pub dra: Arc<DraManager>,
    /// Cgroups of pods; `None` where the kubelet may not make any.
    pub cgroups: Option<Arc<dyn PodCgroups>>,
    /// Whether the machine is about to shut down.
    pub shutdown: NodeShutdown,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
}

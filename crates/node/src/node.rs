//! A node that runs containers: the kubelet over a container runtime and its pod network, the service proxy, network
//! policies, and cluster DNS. In the server's process its clients use the in-process transport; a node that joined has the
//! network's.
//!
//! Invariant: the containers do not depend on this process; the next start finds them again.

use crate::{
    cluster_dns::{self, ClusterDns},
    dns_announcement,
    kubelet_root::{self, RootDirError},
    runtime::{self, NodeRuntime},
};
use kaji_containers::{BoxFuture, ContainerRuntime, RuntimeError};
use kaji_dns::customization::{Customization, CustomizationMap};
use kaji_images::registry::RegistrySource;
use kaji_kubelet::cloud::ExternalCloud;
use kaji_kubelet::configuration::{self, Configuration, ConfigurationError};
use kaji_kubelet::credential_providers::{CredentialProviders, config::ConfigError};
use kaji_kubelet::local_path::{self, LocalPathConfig};
use kaji_kubelet::node::static_pods::Manifests;
use kaji_kubelet::node::{
    self, FullNode, FullPod, KernelCgroups, Machine, NodeParts, NodeServer, allocatable,
};
use kaji_kubelet::pods::context::{NodeConfig, PodCgroups};
use kaji_kubelet::pods::sysctls::AllowedSysctls;
use kaji_kubelet::resource_managers::ResourceManagers;
use kaji_kubelet::volumes::KernelMounter;
use kaji_meta::time::SystemClock;
use kaji_network::BridgeNetwork;
use kaji_oci::rootless::Facts;
use kaji_options::{BindAddress, ContainerRuntimeFlags};
use kaji_proxy::ServiceProxy;
use kaji_proxy::health::{self, Subject};
use kaji_proxy::policy::{LocalPods, PolicyConfig};
use kaji_runtime::{
    Informers, Recorder, Selected, Shared, local_path::NODE as LOCAL_PATH_NODE, objects::PersistentVolume,
};
use kaji_server::FlagValues;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Where cgroup hierarchies are mounted.
pub const CGROUPS: &str = "/sys/fs/cgroup";
/// Containers' logs, in a directory a pod, and links to them: where collectors of logs expect them.
const LOGS: &str = "/var/log";
/// Where the kernel shows processors and NUMA nodes.
const PROCESSORS: &str = "/sys/devices/system";
/// Upstream's port of kube-proxy's `/healthz`.
const PROXY_HEALTH_PORT: u16 = 10256;
/// Upstream's port of kube-proxy's metrics, on the loopback interface.
const PROXY_METRICS_PORT: u16 = 10249;
/// CoreDNS' port of its metrics.
pub(crate) const DNS_METRICS_PORT: u16 = 9153;
/// Ports of a node's own servers.
pub const SERVER_PORTS: &[u16] =
    &[node::KUBELET_PORT, PROXY_HEALTH_PORT, PROXY_METRICS_PORT, kaji_dns::PORT, DNS_METRICS_PORT];
/// Protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Why a node cannot run containers.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The program cannot be found again, which runs a container's shim.
    #[error("the program's own file: {0}")]
    Program(std::io::Error),
    /// Images.
    #[error("images: {0}")]
    Images(#[from] kaji_images::ImageError),
    /// The pod network.
    #[error("pod network: {0}")]
    Network(#[from] kaji_network::NetworkError),
    /// The container runtime.
    #[error("container runtime: {0}")]
    Runtime(#[from] kaji_oci::OpenError),
    /// The runtime at a CRI socket.
    #[error(transparent)]
    Cri(#[from] kaji_cri::ConnectError),
    /// Its sandboxes.
    #[error("the container runtime's sandboxes: {0}")]
    Sandboxes(RuntimeError),
    /// Its network plug-in, or what is kept about it.
    #[error("the network plug-in of the container runtime: {0}")]
    Plugin(std::io::Error),
    /// Pods of another runtime.
    #[error("this node still has pods of {0}: use it again, or remove them with kaji node reset")]
    OtherRuntime(String),
    /// The data directory.
    #[error("data directory: {0}")]
    DataDirectory(std::io::Error),
    /// Its configuration file.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// Processors of containers.
    #[error("the kubelet's resource managers: {0}")]
    Managers(String),
    /// What is kept from pods.
    #[error("Failed to start ContainerManager: {0}")]
    Allocatable(String),
    /// Sysctls that pods cannot be allowed to set.
    #[error("--allowed-unsafe-sysctls: {0}")]
    Sysctls(String),
    /// Plug-ins for credentials.
    #[error("failed to register CRI auth plugins: {0}")]
    Credentials(#[from] ConfigError),
    /// The kubelet's directory.
    #[error("the kubelet's directory (--root-dir): {0}")]
    RootDirectory(#[from] RootDirError),
}

/// Where logs are: in the data directory of a node without root.
pub struct LogDirectories {
    /// Of the node, with the others below.
    pub system: PathBuf,
    /// Of pods.
    pub pods: PathBuf,
    /// Of links to those of containers.
    pub containers: PathBuf,
}

impl LogDirectories {
    /// Of a node with this data directory.
    pub fn of(data_dir: &Path) -> LogDirectories {
        let system = match Facts::entered() {
            Some(_) => data_dir.join("log"),
            None => PathBuf::from(LOGS),
        };
        LogDirectories { pods: system.join("pods"), containers: system.join("containers"), system }
    }
}

/// What a real node is made of.
#[derive(Clone)]
pub struct RealNodeConfig {
    /// The cluster's directory; images, containers, volumes and addresses are in directories of it.
    pub data_dir: PathBuf,
    /// The kubelet's directory; `None` for the usual one.
    pub root_dir: Option<PathBuf>,
    /// Of the Node object.
    pub name: String,
    /// Of this machine, the primary one first; one of each family at most.
    pub addresses: Vec<IpAddr>,
    /// Ranges of cluster IPs.
    pub service_cidrs: Vec<String>,
    /// The kubelet's HTTPS API; without it none is served.
    pub server: Option<NodeServer>,
    /// Which runtime runs containers.
    pub container_runtime: ContainerRuntimeFlags,
    /// The cloud provider that initializes the node, if one does.
    pub external_cloud: Option<ExternalCloud>,
    /// The flags of the process, as `/flagz` shows them.
    pub flag_values: FlagValues,
}

/// Runs the node until `stop` turns true. The kubelet reads what its Node's user may read; the service proxy, policies and DNS read
/// `cluster`: the informers of the control loops, or those of a joined node.
///
/// # Errors
/// What cannot be opened: this machine cannot be a node.
pub async fn run(
    config: RealNodeConfig,
    cluster: Arc<Informers>,
    shared: Shared,
    stop: watch::Receiver<bool>,
) -> Result<(), NodeError> {
    let name = &config.name;
    let (parts, network, service, dns, guard) = open(&config).await?;
    let selected = Selected::default()
        .of::<FullNode>(format!("metadata.name={name}"))
        .of::<FullPod>(format!("spec.nodeName={name}"))
        .labelled::<PersistentVolume>(format!("{}={name}", LOCAL_PATH_NODE))
        .of::<CustomizationMap>(Customization::selector());
    let client = shared.client.named(&format!("kubelet/{name}"));
    let informers = Informers::timed(client.clone(), selected, shared.clock.clone());
    let (served, dns_is_served) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(follow_pod_ranges(informers.clone(), parts.runtime.clone()));
    tasks.spawn(service);
    if let Some(network) = network {
        tasks.spawn(kaji_proxy::follow_nodes(network, cluster.clone(), stop.clone()));
    }
    tasks.spawn(serve_services(config.clone(), cluster.clone(), proxy_events(&shared), stop.clone()));
    tasks.spawn(enforce_policies(config.clone(), cluster.clone(), guard, stop.clone()));
    tasks.spawn(keep_local_volumes(config.clone(), informers.clone(), shared.clone()));
    tasks.spawn(cluster_dns::serve(config.addresses.clone(), dns, cluster, informers.clone(), served));
    tasks.spawn(dns_announcement::follow(informers.clone(), client.clone(), dns_is_served));
    node::run(parts, informers, shared, stop).await;
    tasks.shutdown().await;
    dns_announcement::withdraw(&client, name).await;
    Ok(())
}

/// Records events of the service proxy.
fn proxy_events(shared: &Shared) -> kaji_proxy::Events {
    let (client, clock, random) = (shared.client.clone(), shared.clock.clone(), shared.random.clone());
    let recorder = Recorder::start(client, "kube-proxy", clock, random);
    Arc::new(move |event| recorder.record(event))
}

async fn serve_services(
    config: RealNodeConfig,
    cluster: Arc<Informers>,
    events: kaji_proxy::Events,
    stop: watch::Receiver<bool>,
) {
    let node = kaji_proxy::NodeConfig {
        service_cidrs: config.service_cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect(),
        node_ips: config.addresses.clone(),
        ..kaji_proxy::NodeConfig::new(&config.name)
    };
    let flags = &config.container_runtime;
    let has = |family: fn(&IpAddr) -> bool| config.addresses.iter().any(family);
    // One socket for both families where the node has both.
    let every =
        if has(IpAddr::is_ipv6) { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let loopback = if has(IpAddr::is_ipv4) { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let health = BindAddress::or(flags.healthz_bind_address, every, PROXY_HEALTH_PORT);
    let metrics = BindAddress::or(flags.metrics_bind_address, loopback, PROXY_METRICS_PORT);
    let outcome = match ServiceProxy::start(node, &cluster, events).await {
        Ok(proxy) => {
            let measured = proxy.health();
            let pages = async {
                let Some(address) = metrics else { return std::future::pending().await };
                serve_pages("metrics of the service proxy", address, async |listener| {
                    health::serve(listener, measured, Subject::Metrics).await;
                })
                .await;
            };
            tokio::select! {
                outcome = kaji_proxy::run(proxy, health, stop) => outcome,
                () = pages => Ok(()),
            }
        }
        Err(error) => Err(error),
    };
    if let Err(error) = outcome {
        tracing::error!(%error, "services are not served on this node");
    }
}

async fn enforce_policies(
    config: RealNodeConfig,
    cluster: Arc<Informers>,
    local: LocalPods,
    stop: watch::Receiver<bool>,
) {
    // Policies select DNS by the labels of its pods, of which there are none.
    let exempt = |address: &IpAddr| [UDP, TCP].map(|protocol| (*address, protocol, kaji_dns::PORT));
    let exempt = config.addresses.iter().flat_map(exempt).collect();
    let policies = PolicyConfig { exempt, ..PolicyConfig::new(&config.name) };
    if let Err(error) = kaji_proxy::policy::run(policies, cluster, local, stop).await {
        tracing::error!(%error, "network policies are not enforced on this node");
    }
}

async fn keep_local_volumes(config: RealNodeConfig, informers: Arc<Informers>, shared: Shared) {
    let client = shared.client.named(&format!("kubelet/{}", config.name));
    let root = config.data_dir.join("local-volumes");
    let local_path_config = LocalPathConfig { node: config.name, root };
    if let Err(error) = local_path::run(local_path_config, informers, client, shared).await {
        tracing::error!(%error, "local volumes are not provided on this node");
    }
}

/// Serves pages at an address; without it the node goes on.
pub(crate) async fn serve_pages(what: &str, address: SocketAddr, serve: impl AsyncFnOnce(TcpListener)) {
    match TcpListener::bind(address).await {
        Ok(listener) => serve(listener).await,
        Err(error) => tracing::warn!(%error, %address, "{what} are not served"),
    }
    std::future::pending().await
}

/// A node's parts, its pod network, what runs beside it, its DNS, and its pods as policies have to know them first.
type Opened = (NodeParts, Option<BridgeNetwork>, BoxFuture<'static, ()>, ClusterDns, LocalPods);

/// Whether the files that flags name can be used.
///
/// # Errors
/// The first that cannot.
pub fn check_files(flags: &ContainerRuntimeFlags) -> Result<(), NodeError> {
    RegistrySource::of(flags.registries.as_deref())?;
    flags.kubelet_config.as_deref().map(configuration::read).transpose()?;
    Ok(())
}

async fn open(config: &RealNodeConfig) -> Result<Opened, NodeError> {
    let (data_dir, name) = (&config.data_dir, &config.name);
    let local = LocalPods::default();
    let NodeRuntime { runtime, images, name: runtime_name, network, service } =
        runtime::open(config, &local).await?;
    let configuration = match &config.container_runtime.kubelet_config {
        Some(path) => configuration::read(path)?,
        None => Configuration::default(),
    };
    let sysctls = match config.container_runtime.allowed_unsafe_sysctls.as_slice() {
        [] => configuration.sysctls,
        patterns => AllowedSysctls::with(patterns).map_err(NodeError::Sysctls)?,
    };
    let read = Machine::read(data_dir);
    let pods = configuration.max_pods.unwrap_or(read.pods);
    let machine = Machine { reservations: configuration.reservations, pods, ..read };
    let cgroups = KernelCgroups::detect(Path::new(CGROUPS)).map(|c| Arc::new(c) as Arc<dyn PodCgroups>);
    allocatable::validate(&machine)
        .and_then(|()| allocatable::enforce_reserved(cgroups.as_deref(), &machine.reservations))
        .map_err(NodeError::Allocatable)?;
    let dns = ClusterDns::new(config, &configuration.dns);
    let absolute = std::path::absolute(data_dir).map_err(NodeError::DataDirectory)?;
    let root_dir = kubelet_root::choose(&absolute, config.root_dir.as_deref())?;
    let managers = ResourceManagers::open(&configuration.managers, &root_dir, Path::new(PROCESSORS))
        .map_err(NodeError::Managers)?;
    let server = config.server.clone();
    let credentials = credential_providers(&config.container_runtime)?;
    let logs = LogDirectories::of(&absolute);
    let config = NodeConfig {
        node_name: name.to_owned(),
        root_dir,
        system_log_dir: logs.system,
        pod_log_dir: logs.pods,
        container_log_dir: logs.containers,
        addresses: config.addresses.clone(),
        dns: dns.settings(),
        hosts_file: "/etc/hosts".into(),
        memory: machine.memory,
        runtime_name,
        sysctls,
        apparmor: kaji_files::has_apparmor(Path::new("/sys")),
        external_cloud: config.external_cloud.clone(),
        memory_qos: configuration.memory_qos,
        restart_delays: configuration.restart_delays,
        flag_values: config.flag_values.clone(),
    };
    let mounter = Arc::new(KernelMounter);
    let (housekeeping, shutdown) = (configuration.housekeeping, configuration.shutdown);
    let directory = data_dir.join("kubelet").join("manifests");
    let manifests = Some(Manifests { directory, complete: Arc::new(complete_pod) });
    let parts = NodeParts {
        config,
        machine,
        runtime,
        images,
        credentials,
        managers,
        mounter,
        cgroups,
        server,
        housekeeping,
        manifests,
        shutdown,
    };
    Ok((parts, network, service, dns, local))
}

/// The plug-ins that the flags name.
fn credential_providers(flags: &ContainerRuntimeFlags) -> Result<CredentialProviders, NodeError> {
    let clock = Arc::new(SystemClock);
    let (Some(path), Some(programs)) =
        (&flags.image_credential_provider_config, &flags.image_credential_provider_bin_dir)
    else {
        return Ok(CredentialProviders::none(clock));
    };
    Ok(CredentialProviders::open(path, programs, clock)?)
}

/// Sets the defaults of a static pod and validates it, as the API server does with pods that are created.
fn complete_pod(pod: &mut serde_json::Value) -> Result<(), String> {
    kaji_builtins::core::pods::defaults::pod(pod);
    let mut violations = vec![];
    kaji_builtins::core::pods::validate::pod(&mut violations, pod);
    match violations.first() {
        None => Ok(()),
        Some(first) => Err(first.to_string()),
    }
}

/// Hands the ranges of the Node object to the runtime, whenever they change.
async fn follow_pod_ranges(informers: Arc<Informers>, runtime: Arc<dyn ContainerRuntime>) {
    let (sender, mut changes) = mpsc::channel(1);
    let nodes = informers.get::<FullNode>();
    nodes.handle(move |_| {
        // A queue that is full leads to the same look at the newest state.
        let _ = sender.try_send(());
    });
    let mut known = vec![];
    while changes.recv().await.is_some() {
        let ranges = nodes.snapshot().iter().next().and_then(|n| n.node.spec.as_ref()?.pod_cidrs.clone());
        let Some(ranges) = ranges.filter(|ranges| !ranges.is_empty() && *ranges != known) else { continue };
        match runtime.update_pod_cidrs(ranges.clone()).await {
            Ok(()) => known = ranges,
            Err(error) => tracing::error!(%error, ?ranges, "the pod network cannot be set up"),
        }
    }
}

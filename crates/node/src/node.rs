//! A node that runs containers: the kubelet over a container runtime and its pod network, the service proxy, network
//! policies, and cluster DNS. In the server's process its clients use the in-process transport; a node that joined has the
//! network's.
//!
//! Invariant: the containers do not depend on this process; the next start finds them again.

use crate::{
    dns_announcement,
    kubelet_root::{self, RootDirError},
    runtime::{self, NodeRuntime},
};
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use kaji_containers::{BoxFuture, ContainerRuntime, DnsConfig, RuntimeError};
use kaji_dns::feed::Feed;
use kaji_dns::forward::{Forwarder, Resolvers};
use kaji_dns::metrics::Metrics;
use kaji_dns::resolv_conf::{self, ResolvConf};
use kaji_dns::server::{Listeners, Service};
use kaji_dns::zone::Zone;
use kaji_exposition::CONTENT_TYPE;
use kaji_kubelet::cloud::ExternalCloud;
use kaji_kubelet::configuration::{self, Configuration, ConfigurationError};
use kaji_kubelet::credential_providers::{CredentialProviders, config::ConfigError};
use kaji_kubelet::local_path::{self, LocalPathConfig};
use kaji_kubelet::node::static_pods::Manifests;
use kaji_kubelet::node::{self, FullNode, FullPod, KernelCgroups, Machine, NodeParts, NodeServer};
use kaji_kubelet::pods::context::{NodeConfig, PodCgroups};
use kaji_kubelet::pods::network::DnsSettings;
use kaji_kubelet::pods::sysctls::AllowedSysctls;
use kaji_kubelet::resource_managers::ResourceManagers;
use kaji_kubelet::volumes::KernelMounter;
use kaji_meta::time::SystemClock;
use kaji_network::BridgeNetwork;
use kaji_oci::rootless::Facts;
use kaji_options::{ContainerRuntimeFlags, addresses::dns_service_ip};
use kaji_proxy::ServiceProxy;
use kaji_proxy::health::{self, Subject};
use kaji_proxy::pages;
use kaji_proxy::policy::PolicyConfig;
use kaji_runtime::{
    Informers, Selected, Shared, local_path::NODE as LOCAL_PATH_NODE, objects::PersistentVolume,
};
use kaji_server::FlagValues;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
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
/// The node's own resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The domain of services' names.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// Upstream's port of kube-proxy's `/healthz`.
const PROXY_HEALTH_PORT: u16 = 10256;
/// Upstream's port of kube-proxy's metrics, on the loopback interface.
const PROXY_METRICS_PORT: u16 = 10249;
/// CoreDNS' port of its metrics.
const DNS_METRICS_PORT: u16 = 9153;
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

/// Where the logs of pods are, and links to those of containers: in the data directory of a node without root.
pub fn log_directories(data_dir: &Path) -> (PathBuf, PathBuf) {
    let logs = match Facts::entered() {
        Some(_) => data_dir.join("log"),
        None => LOGS.into(),
    };
    (logs.join("pods"), logs.join("containers"))
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
    /// Of this machine.
    pub address: IpAddr,
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
    let (parts, network, service) = open(&config).await?;
    let selected = Selected::default()
        .of::<FullNode>(format!("metadata.name={name}"))
        .of::<FullPod>(format!("spec.nodeName={name}"))
        .labelled::<PersistentVolume>(format!("{}={name}", LOCAL_PATH_NODE));
    let client = shared.client.named(&format!("kubelet/{name}"));
    let informers = Informers::timed(client.clone(), selected, shared.clock.clone());
    let (served, dns_is_served) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(follow_pod_ranges(informers.clone(), parts.runtime.clone()));
    tasks.spawn(service);
    if let Some(network) = network {
        tasks.spawn(kaji_proxy::follow_nodes(network, cluster.clone(), stop.clone()));
    }
    tasks.spawn(serve_services(config.clone(), cluster.clone(), stop.clone()));
    tasks.spawn(enforce_policies(config.clone(), cluster.clone(), stop.clone()));
    tasks.spawn(keep_local_volumes(config.clone(), informers.clone(), shared.clone()));
    tasks.spawn(serve_dns(config.clone(), cluster, served));
    tasks.spawn(dns_announcement::follow(informers.clone(), client.clone(), dns_is_served));
    node::run(parts, informers, shared, stop).await;
    tasks.shutdown().await;
    dns_announcement::withdraw(&client, name).await;
    Ok(())
}

async fn serve_services(config: RealNodeConfig, cluster: Arc<Informers>, stop: watch::Receiver<bool>) {
    let node = kaji_proxy::NodeConfig {
        service_cidrs: config.service_cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect(),
        node_ips: vec![config.address],
        ..kaji_proxy::NodeConfig::new(&config.name)
    };
    let health = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PROXY_HEALTH_PORT);
    let outcome = match ServiceProxy::start(node, &cluster).await {
        Ok(proxy) => {
            let metrics = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PROXY_METRICS_PORT);
            let measured = proxy.health();
            tokio::select! {
                outcome = kaji_proxy::run(proxy, Some(health), stop) => outcome,
                () = serve_pages("metrics of the service proxy", metrics, async |listener| {
                    health::serve(listener, measured, Subject::Metrics).await;
                }) => Ok(()),
            }
        }
        Err(error) => Err(error),
    };
    if let Err(error) = outcome {
        tracing::error!(%error, "services are not served on this node");
    }
}

async fn enforce_policies(config: RealNodeConfig, cluster: Arc<Informers>, stop: watch::Receiver<bool>) {
    // Policies select DNS by the labels of its pods, of which there are none.
    let exempt = [UDP, TCP].map(|protocol| (config.address, protocol, kaji_dns::PORT)).to_vec();
    let policies = PolicyConfig { exempt, ..PolicyConfig::new(&config.name) };
    if let Err(error) = kaji_proxy::policy::run(policies, cluster, stop).await {
        tracing::error!(%error, "network policies are not enforced on this node");
    }
}

async fn keep_local_volumes(config: RealNodeConfig, informers: Arc<Informers>, shared: Shared) {
    let client = shared.client.named(&format!("kubelet/{}", config.name));
    let root = config.data_dir.join("local-volumes");
    let local_path_config = LocalPathConfig { node: config.name, root };
    if let Err(error) = local_path::run(local_path_config, informers, client, shared).await {
        tracing::error!(%error, "this node has no local volumes");
    }
}

/// Serves pages at an address; without it the node goes on.
async fn serve_pages(what: &str, address: SocketAddr, serve: impl AsyncFnOnce(TcpListener)) {
    match TcpListener::bind(address).await {
        Ok(listener) => serve(listener).await,
        Err(error) => tracing::warn!(%error, %address, "{what} are not served"),
    }
    std::future::pending().await
}

/// The pages of cluster DNS: CoreDNS has them at several ports.
fn dns_pages(metrics: &Metrics, ready: bool, path: &str) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    match path {
        "/metrics" => pages::page(StatusCode::OK, CONTENT_TYPE, metrics.page()),
        "/health" => pages::page(StatusCode::OK, TEXT, "OK".to_owned()),
        "/ready" if ready => pages::page(StatusCode::OK, TEXT, "OK".to_owned()),
        "/ready" => pages::page(StatusCode::SERVICE_UNAVAILABLE, TEXT, "kubernetes".to_owned()),
        _ => pages::not_found(),
    }
}

/// Answers for the cluster's names. `served` turns true with the first answer that could be given.
async fn serve_dns(config: RealNodeConfig, cluster: Arc<Informers>, served: watch::Sender<bool>) {
    let address = SocketAddr::new(config.address, kaji_dns::PORT);
    let listeners = match Listeners::bind(address).await {
        Ok(listeners) => listeners,
        Err(error) => {
            tracing::error!(%error, %address, "cluster DNS is not served");
            return;
        }
    };
    let resolvers = resolv_conf::read(Path::new(RESOLV_CONF)).unwrap_or_else(|error| {
        tracing::warn!(%error, "names outside of the cluster are not resolved");
        ResolvConf::default()
    });
    let servers = dns_service_ip(&config.service_cidrs).into_iter().collect();
    let forwarder = Forwarder::new(Resolvers::new(vec![], resolvers.name_servers));
    let metrics = Metrics::default();
    let zone = Zone::new(CLUSTER_DOMAIN, servers);
    let service = Arc::new(Service::new(zone, forwarder, metrics.clone()));
    let (ready, mut is_ready) = watch::channel(false);
    let shown = is_ready.clone();
    let address = SocketAddr::new(config.address, DNS_METRICS_PORT);
    let measured = serve_pages("metrics of cluster DNS", address, async |listener| {
        let pages = Arc::new(move |path: &str| dns_pages(&metrics, *shown.borrow(), path));
        pages::serve(listener, pages).await;
    });
    let serve = async {
        // Before the first list, names that exist would be denied.
        if is_ready.wait_for(|ready| *ready).await.is_ok() {
            served.send_replace(true);
            listeners.serve(service.clone()).await;
        }
    };
    tokio::join!(Feed::new(&cluster).run(service.clone(), ready), serve, measured);
}

async fn open(
    config: &RealNodeConfig,
) -> Result<(NodeParts, Option<BridgeNetwork>, BoxFuture<'static, ()>), NodeError> {
    let (data_dir, name) = (&config.data_dir, &config.name);
    let NodeRuntime { runtime, images, name: runtime_name, network, service } = runtime::open(config).await?;
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
    let machine = Machine { reserved: configuration.reserved, pods, ..read };
    let cgroups = KernelCgroups::detect(Path::new(CGROUPS)).map(|c| Arc::new(c) as Arc<dyn PodCgroups>);
    let resolvers = resolv_conf::read(Path::new(RESOLV_CONF)).unwrap_or_default();
    let dns = DnsSettings {
        servers: dns_service_ip(&config.service_cidrs).into_iter().collect(),
        domain: CLUSTER_DOMAIN.to_owned(),
        node: DnsConfig {
            servers: resolvers.name_servers.iter().map(|server| server.ip().to_string()).collect(),
            searches: resolvers.searches,
            options: resolvers.options,
        },
    };
    let absolute = std::path::absolute(data_dir).map_err(NodeError::DataDirectory)?;
    let root_dir = kubelet_root::choose(&absolute, config.root_dir.as_deref())?;
    let managers = ResourceManagers::open(&configuration.managers, &root_dir, Path::new(PROCESSORS))
        .map_err(NodeError::Managers)?;
    let server = config.server.clone();
    let credentials = credential_providers(&config.container_runtime)?;
    let (pod_log_dir, container_log_dir) = log_directories(&absolute);
    let config = NodeConfig {
        node_name: name.to_owned(),
        root_dir,
        pod_log_dir,
        container_log_dir,
        addresses: vec![config.address],
        dns,
        hosts_file: "/etc/hosts".into(),
        memory: machine.memory,
        runtime_name,
        sysctls,
        external_cloud: config.external_cloud.clone(),
        restart_delays: configuration.restart_delays,
        flag_values: config.flag_values.clone(),
    };
    let mounter = Arc::new(KernelMounter);
    let housekeeping = configuration.housekeeping;
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
    };
    Ok((parts, network, service))
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

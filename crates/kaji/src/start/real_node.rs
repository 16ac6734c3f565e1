//! A node that runs containers, in the server's process: the kubelet over the built-in runtime, images and pod network.
//!
//! Invariant: the containers do not depend on this process; the next start finds them again.

use kaji_containers::ContainerRuntime;
use kaji_images::{Images, registry::RegistryConfig};
use kaji_kubelet::node::{self, FullNode, FullPod, KernelCgroups, Machine, NodeParts};
use kaji_kubelet::pods::context::{NodeConfig, PodCgroups};
use kaji_kubelet::pods::network::{DnsSettings, parse_resolv_conf};
use kaji_kubelet::volumes::KernelMounter;
use kaji_meta::{random::SystemRandom, time::SystemClock};
use kaji_network::{BridgeNetwork, NetworkConfig};
use kaji_oci::{Manager, ManagerOptions};
use kaji_runtime::{Informers, Selected, Shared};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Where cgroup hierarchies are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Why a node cannot run containers.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeError {
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
}

/// The name of this machine's Node object: the host's name, in lower case as objects' names are.
pub(super) fn node_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_ascii_lowercase(),
    }
}

/// Runs the node until `stop` turns true. What cannot be opened is logged; the cluster goes on without the node.
pub(super) async fn run(
    data_dir: PathBuf,
    name: String,
    address: IpAddr,
    shared: Shared,
    stop: watch::Receiver<bool>,
) {
    let parts = match open(&data_dir, &name, address).await {
        Ok(parts) => parts,
        Err(error) => {
            tracing::error!(%error, "this machine cannot be a node");
            return;
        }
    };
    let selected = Selected::default()
        .of::<FullPod>(format!("spec.nodeName={name}"))
        .of::<FullNode>(format!("metadata.name={name}"));
    let informers =
        Informers::timed(shared.client.named(&format!("kubelet/{name}")), selected, shared.clock.clone());
    let ranges = follow_pod_ranges(&informers, parts.runtime.clone());
    tokio::select! {
        () = node::run(parts, informers.clone(), shared, stop) => {}
        () = ranges => {}
    }
}

async fn open(data_dir: &Path, name: &str, address: IpAddr) -> Result<NodeParts, NodeError> {
    let program = std::env::current_exe().map_err(NodeError::Program)?;
    let containers = data_dir.join("containers");
    let images = Images::open(
        &data_dir.join("images"),
        RegistryConfig::default(),
        Arc::new(SystemClock),
        Arc::new(SystemRandom),
    )?;
    let images = Arc::new(images.with_containers_in(containers.clone()));
    let network = BridgeNetwork::start(NetworkConfig::new(name, data_dir.join("network"))).await?;
    let options = ManagerOptions {
        state_directory: containers,
        shim: vec![program.into(), "shim".into()],
        images: images.clone(),
        network: Some(Arc::new(network)),
    };
    let runtime = Arc::new(Manager::open(options).await?);
    let machine = Machine::read(data_dir);
    let cgroups = KernelCgroups::detect(Path::new(CGROUPS)).map(|c| Arc::new(c) as Arc<dyn PodCgroups>);
    let resolvers = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let config = NodeConfig {
        node_name: name.to_owned(),
        root_dir: data_dir.join("kubelet"),
        pod_log_dir: "/var/log/pods".into(),
        container_log_dir: "/var/log/containers".into(),
        addresses: vec![address],
        dns: DnsSettings {
            servers: vec![],
            domain: "cluster.local".to_owned(),
            node: parse_resolv_conf(&resolvers),
        },
        hosts_file: "/etc/hosts".into(),
        memory: machine.memory,
        runtime_name: "kaji".to_owned(),
    };
    Ok(NodeParts { config, machine, runtime, images, mounter: Arc::new(KernelMounter), cgroups })
}

/// Hands the ranges of the Node object to the runtime, whenever they change.
async fn follow_pod_ranges(informers: &Arc<Informers>, runtime: Arc<dyn ContainerRuntime>) {
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

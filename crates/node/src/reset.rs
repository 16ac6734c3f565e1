//! Takes from a machine what its node has left there: pods, interfaces, routes, rules, mounts, cgroups, logs, and the node's files.
//!
//! Invariants: nothing is touched while a server or an agent uses the directory; what belongs to the cluster (objects, its
//! authorities) and images stay; it can be repeated after a failure.

use crate::{
    kubelet_root,
    node::{CGROUPS, LogDirectories},
    runtime::{self, BUILT_IN, CRI, SANDBOXES, UsedRuntime, attachments, plugin_socket},
};
use kaji_containers::{ContainerFilter, ContainerRuntime, PodNetwork, PodSandboxFilter, RuntimeError};
use kaji_cri::{Connected, Endpoints, cni::server};
use kaji_images::{Images, registry::RegistrySource};
use kaji_kubelet::{
    hostname::node_name,
    node::KernelCgroups,
    pods::context::PodCgroups,
    volumes::{KernelMounter, Mounter},
};
use kaji_meta::{random::SystemRandom, time::SystemClock};
use kaji_network::{BridgeNetwork, CniNetwork, CniOptions, NetworkConfig};
use kaji_oci::{Manager, ManagerOptions};
use kaji_proxy::{Dataplane, policy};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Directories of the data directory that are the node's alone.
const OWN: [&str; 4] = [BUILT_IN, CRI, "kubelet", "network"];
/// Of the directory `pki`, what a joined node keeps there.
const CREDENTIALS: [&str; 3] =
    ["kubelet-client-current.pem", "kubelet-client.key.tmp", "kubelet-server-current.pem"];

/// Why something is left.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    /// A server or an agent runs, or what it left cannot be read.
    #[error("container runtime: {0}; stop the server or agent first")]
    Runtime(#[from] kaji_oci::OpenError),
    /// Images.
    #[error("images: {0}")]
    Images(#[from] kaji_images::ImageError),
    /// Pods.
    #[error("pods: {0}")]
    Pods(#[from] RuntimeError),
    /// The pod network.
    #[error("pod network: {0}")]
    Network(#[from] kaji_network::NetworkError),
    /// Rules of services and policies.
    #[error("service proxy and network policies: {0}")]
    Rules(#[from] kaji_proxy::ProxyError),
    /// The runtime at a CRI socket.
    #[error(transparent)]
    Cri(#[from] kaji_cri::ConnectError),
    /// A cgroup.
    #[error("cgroups: {0}")]
    Cgroup(String),
    /// A file or mount.
    #[error("{}: {error}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Pods that had a sandbox or files.
    pub pods: usize,
}

/// Removes what a node with this data directory has left in the network namespace of this process and on its file systems;
/// `keep_credentials` leaves the key and certificates with which it comes back.
///
/// # Errors
/// The first thing that cannot be removed.
pub async fn reset(data_dir: &Path, keep_credentials: bool) -> Result<Removed, ResetError> {
    let network = BridgeNetwork::start(NetworkConfig::new(&node_name(), data_dir.join("network"))).await?;
    let mut pods = remove_sandboxes(data_dir, &network).await?;
    pods.extend(remove_from_runtime(data_dir, &network).await?);
    network.remove_all().await?;
    // The names of tables do not depend on the node's.
    Dataplane::start(kaji_proxy::NodeConfig::new("")).await?.remove().await?;
    policy::remove(&policy::PolicyConfig::new(""))?;
    let root = kubelet_root::chosen(data_dir);
    pods.extend(names(&root.join("pods")));
    if !root.starts_with(data_dir) {
        remove_directory(&root)?;
    }
    remove_files(data_dir, &pods)?;
    if !keep_credentials {
        remove_credentials(data_dir)?;
    }
    Ok(Removed { pods: pods.len() })
}

/// Stops and removes all sandboxes; their pods' uids.
async fn remove_sandboxes(data_dir: &Path, network: &BridgeNetwork) -> Result<BTreeSet<String>, ResetError> {
    let containers = data_dir.join(BUILT_IN);
    let program = std::env::current_exe().map_err(failure(data_dir))?;
    let (clock, random) = (Arc::new(SystemClock), Arc::new(SystemRandom));
    let images = Images::open(&data_dir.join("images"), RegistrySource::default(), clock, random)?;
    let recorded = attachments(data_dir);
    // Records name the plug-ins and the configuration of each attachment.
    let network: Arc<dyn PodNetwork> = if CniNetwork::has_attachments(&recorded) {
        let (configurations, programs) = (recorded.join("no-configuration"), vec![]);
        Arc::new(CniNetwork::open(CniOptions { configurations, programs, state_dir: recorded })?)
    } else {
        Arc::new(network.clone())
    };
    let manager = Manager::open(ManagerOptions {
        state_directory: containers.clone(),
        // No container is started, but a manager holds its program.
        shim: vec![program.into(), "shim".into()],
        images: Arc::new(images.with_containers_in(containers)),
        network: Some(network),
        cdi_directories: vec![],
    });
    let manager = manager.await?;
    let mut pods = BTreeSet::new();
    for sandbox in manager.list_pod_sandboxes(PodSandboxFilter::default()).await? {
        manager.stop_pod_sandbox(&sandbox.id).await?;
        manager.remove_pod_sandbox(&sandbox.id).await?;
        pods.insert(sandbox.metadata.uid);
    }
    Ok(pods)
}

/// The same for the CRI runtime that the node has used. Its plug-in is served meanwhile and taken away then. Their pods' uids.
async fn remove_from_runtime(
    data_dir: &Path,
    network: &BridgeNetwork,
) -> Result<BTreeSet<String>, ResetError> {
    let state = data_dir.join(CRI);
    let used = UsedRuntime::read(data_dir).map_err(failure(&state))?;
    let Some(used) = used else { return Ok(BTreeSet::new()) };
    let _lock = runtime::lock(data_dir).map_err(failure(&state))?;
    let mut pods = BTreeSet::new();
    let kept = names(&state.join(SANDBOXES));
    let socket = std::path::absolute(plugin_socket(data_dir)).map_err(failure(data_dir))?;
    if !kept.is_empty() {
        let listener = server::bind(&socket).map_err(failure(&socket))?;
        let serving = tokio::spawn(server::serve(listener, Arc::new(network.clone())));
        let connected = Connected::to(&Endpoints { runtime: used.endpoint.clone(), images: None }).await?;
        let runtime = connected.into_runtime(state.join(SANDBOXES), None).await?;
        for sandbox in runtime.list_pod_sandboxes(PodSandboxFilter::default()).await? {
            let metadata = &sandbox.metadata;
            // The runtime may have pods of others.
            if kept.contains(&format!("{}.{}.json", metadata.uid, metadata.attempt)) {
                remove_at_once(&runtime, &sandbox.id).await?;
                pods.insert(sandbox.metadata.uid);
            }
        }
        serving.abort();
    }
    if let Some(directories) = used.directories() {
        let program = std::env::current_exe().map_err(failure(data_dir))?;
        directories.remove(&program, &socket).map_err(failure(&directories.configurations))?;
    }
    Ok(pods)
}

/// Kills the containers of a sandbox and removes it. CRI-O would leave them minutes to end by themselves.
async fn remove_at_once(runtime: &impl ContainerRuntime, sandbox: &str) -> Result<(), RuntimeError> {
    let filter = ContainerFilter { sandbox_id: Some(sandbox.to_owned()), ..ContainerFilter::default() };
    for container in runtime.list_containers(filter).await? {
        runtime.stop_container(&container.id, Duration::ZERO).await?;
    }
    runtime.remove_pod_sandbox(sandbox).await
}

/// The entries of a directory, which may be absent.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn remove_files(data_dir: &Path, pods: &BTreeSet<String>) -> Result<(), ResetError> {
    if let Some(cgroups) = KernelCgroups::detect(Path::new(CGROUPS)) {
        for (_, path) in cgroups.pods().into_iter().filter(|(uid, _)| pods.contains(uid)) {
            cgroups.remove(&path).map_err(ResetError::Cgroup)?;
        }
    }
    for part in OWN {
        remove_directory(&data_dir.join(part))?;
    }
    let choice = data_dir.join(kubelet_root::CHOICE);
    absent(fs::remove_file(&choice)).map_err(failure(&choice))?;
    remove_logs(data_dir, pods)
}

fn remove_directory(directory: &Path) -> Result<(), ResetError> {
    // What was mounted last is in front of what was mounted before.
    for point in KernelMounter.below(directory).iter().rev() {
        KernelMounter.unmount(point).map_err(failure(point))?;
    }
    remove_tree(directory)
}

fn remove_credentials(data_dir: &Path) -> Result<(), ResetError> {
    for file in CREDENTIALS {
        let path = data_dir.join("pki").join(file);
        absent(fs::remove_file(&path)).map_err(failure(&path))?;
    }
    Ok(())
}

fn remove_logs(data_dir: &Path, pods: &BTreeSet<String>) -> Result<(), ResetError> {
    let directories = LogDirectories::of(data_dir);
    // namespace_name_uid
    let of_pods = |name: &str| name.rsplit('_').next().is_some_and(|uid| pods.contains(uid));
    let logs: Vec<PathBuf> = names(&directories.pods)
        .iter()
        .filter(|name| of_pods(name))
        .map(|n| directories.pods.join(n))
        .collect();
    for name in names(&directories.containers) {
        let link = directories.containers.join(name);
        if fs::read_link(&link).is_ok_and(|target| logs.iter().any(|log| target.starts_with(log))) {
            absent(fs::remove_file(&link)).map_err(failure(&link))?;
        }
    }
    logs.iter().try_for_each(|log| remove_tree(log))
}

fn remove_tree(path: &Path) -> Result<(), ResetError> {
    absent(fs::remove_dir_all(path)).map_err(failure(path))
}

/// What is not there is removed.
fn absent(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn failure(path: &Path) -> impl FnOnce(io::Error) -> ResetError {
    let path = path.to_owned();
    move |error| ResetError::File { path, error }
}

//! The container runtime of a real node: the built-in one, or one at a CRI socket; and the pod network that goes with it.
//!
//! Invariants: the pods of a node are in one runtime at a time; pods of a CRI runtime are in the built-in pod network unless an
//! administrator has configured another one.

use crate::guarded_network::GuardedNetwork;
use crate::node::{NodeError, RealNodeConfig};
use kaji_containers::{BoxFuture, ContainerRuntime, ImageService, PodNetwork};
use kaji_cri::cni::{install::Directories, server};
use kaji_cri::{Connected, CriImages, Endpoints};
use kaji_images::{Images, registry::RegistrySource};
use kaji_meta::{random::SystemRandom, time::SystemClock};
use kaji_network::{BridgeNetwork, CniNetwork, CniOptions, NetworkConfig};
use kaji_oci::{Manager, ManagerOptions};
use kaji_options::ContainerRuntimeFlags;
use kaji_proxy::policy::LocalPods;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Sandboxes and containers of the built-in runtime, below the data directory.
pub const BUILT_IN: &str = "containers";
/// What is kept about those of a CRI runtime.
pub const CRI: &str = "cri";
/// Of either: what is below is there as long as the sandbox is.
pub const SANDBOXES: &str = "sandboxes";
const NETWORK: &str = "network";

/// What runs the pods of a node.
pub struct NodeRuntime {
    pub runtime: Arc<dyn ContainerRuntime>,
    pub images: Arc<dyn ImageService>,
    /// Scheme of containers' ids.
    pub name: String,
    /// The built-in pod network, if it is used.
    pub network: Option<BridgeNetwork>,
    /// Runs as long as the node.
    pub service: BoxFuture<'static, ()>,
}

/// A CRI runtime that a node has used, in a file for the removal of the node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsedRuntime {
    pub endpoint: String,
    /// Where the network plug-in was installed, if it was.
    pub configurations: Option<PathBuf>,
    pub programs: Option<PathBuf>,
}

impl UsedRuntime {
    fn file(data_dir: &Path) -> PathBuf {
        data_dir.join(CRI).join("runtime.json")
    }

    /// The one that a data directory's node has used last.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(data_dir: &Path) -> io::Result<Option<UsedRuntime>> {
        match fs::read(UsedRuntime::file(data_dir)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&self, data_dir: &Path) -> io::Result<()> {
        let path = UsedRuntime::file(data_dir);
        let unfinished = path.with_extension("new");
        fs::write(&unfinished, serde_json::to_vec(self)?)?;
        fs::rename(&unfinished, &path)
    }

    /// Where the network plug-in was installed.
    pub fn directories(&self) -> Option<Directories> {
        let (configurations, programs) = (self.configurations.clone()?, self.programs.clone()?);
        Some(Directories { configurations, programs })
    }
}

/// Where attachments to networks of CNI plug-ins are recorded.
pub fn attachments(data_dir: &Path) -> PathBuf {
    data_dir.join(NETWORK).join("attachments")
}

/// The socket at which the network plug-in asks the node.
pub fn plugin_socket(data_dir: &Path) -> PathBuf {
    data_dir.join(NETWORK).join("cni.sock")
}

/// Holds what is kept about a CRI runtime for one process.
///
/// # Errors
/// Another process has it, or those of the file system.
pub fn lock(data_dir: &Path) -> io::Result<fs::File> {
    let directory = data_dir.join(CRI);
    fs::create_dir_all(directory.join(SANDBOXES))?;
    let lock = fs::File::options().write(true).create(true).truncate(false).open(directory.join("lock"))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| io::Error::other(format!("{} is used by another process", directory.display())))?;
    Ok(lock)
}

/// Opens the runtime that the flags name; `local` gets its pods' addresses, and pods start when their policies are in force.
///
/// # Errors
/// What cannot be opened.
pub async fn open(config: &RealNodeConfig, local: &LocalPods) -> Result<NodeRuntime, NodeError> {
    let program = std::env::current_exe().map_err(NodeError::Program)?;
    let ContainerRuntimeFlags { container_runtime_endpoint, image_service_endpoint, .. } =
        config.container_runtime.clone();
    match container_runtime_endpoint {
        None => built_in(config, program, local).await,
        Some(runtime) => {
            over_cri(config, program, Endpoints { runtime, images: image_service_endpoint }, local).await
        }
    }
}

/// Pods of another runtime would go on beside those of this one, and nothing would end them.
fn is_alone(sandboxes: &Path, other: &str) -> Result<(), NodeError> {
    let found = fs::read_dir(sandboxes).is_ok_and(|mut entries| entries.next().is_some());
    if found { Err(NodeError::OtherRuntime(other.to_owned())) } else { Ok(()) }
}

async fn built_in(
    config: &RealNodeConfig,
    program: PathBuf,
    local: &LocalPods,
) -> Result<NodeRuntime, NodeError> {
    let data_dir = &config.data_dir;
    is_alone(&data_dir.join(CRI).join(SANDBOXES), "the runtime that --container-runtime-endpoint named")?;
    let containers = data_dir.join(BUILT_IN);
    let images = Images::open(
        &data_dir.join("images"),
        RegistrySource::of(config.container_runtime.registries.as_deref())?,
        Arc::new(SystemClock),
        Arc::new(SystemRandom),
    )?;
    let images = Arc::new(images.with_containers_in(containers.clone()));
    let flags = &config.container_runtime;
    let mut network = None;
    let pods: Arc<dyn PodNetwork> = if flags.cni {
        Arc::new(CniNetwork::open(CniOptions {
            configurations: flags.cni_conf_dir.clone(),
            programs: flags.cni_bin_dir.clone(),
            state_dir: attachments(data_dir),
        })?)
    } else {
        let own = BridgeNetwork::start(NetworkConfig::new(&config.name, data_dir.join(NETWORK))).await?;
        network = Some(own.clone());
        Arc::new(own)
    };
    let options = ManagerOptions {
        state_directory: containers,
        shim: vec![program.into(), "shim".into()],
        images: images.clone(),
        network: Some(Arc::new(GuardedNetwork::new(pods, local.clone()))),
        cdi_directories: kaji_oci::cdi_directories(),
    };
    let runtime = Arc::new(Manager::open(options).await?);
    let service = Box::pin(std::future::pending());
    Ok(NodeRuntime { runtime, images, name: "kaji".to_owned(), network, service })
}

async fn over_cri(
    config: &RealNodeConfig,
    program: PathBuf,
    endpoints: Endpoints,
    local: &LocalPods,
) -> Result<NodeRuntime, NodeError> {
    let data_dir = &config.data_dir;
    is_alone(&data_dir.join(BUILT_IN).join(SANDBOXES), "the built-in runtime")?;
    let lock = lock(data_dir).map_err(NodeError::Plugin)?;
    let connected = Connected::to(&endpoints).await?;
    let directories = Directories::of(&connected.configuration().await);
    let state = data_dir.join(CRI);
    let mut used = UsedRuntime { endpoint: endpoints.runtime.clone(), configurations: None, programs: None };
    let mut plugins: BoxFuture<'static, ()> = Box::pin(std::future::pending());
    let mut network = None;
    match directories.other_network().map_err(NodeError::Plugin)? {
        Some(other) => {
            tracing::warn!(configuration = %other.display(), "pods get the network that CNI is configured for here");
        }
        None => {
            let own = BridgeNetwork::start(NetworkConfig::new(&config.name, data_dir.join(NETWORK))).await?;
            // No plug-in is served yet: what the runtime does not list belongs to no sandbox.
            let sandboxes = connected.sandboxes().await.map_err(NodeError::Sandboxes)?;
            let known = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
            own.sweep(known).await.map_err(NodeError::Sandboxes)?;
            let socket = std::path::absolute(plugin_socket(data_dir)).map_err(NodeError::Plugin)?;
            let listener = server::bind(&socket).map_err(NodeError::Plugin)?;
            directories.install(&program, &socket).map_err(NodeError::Plugin)?;
            used.configurations = Some(directories.configurations);
            used.programs = Some(directories.programs);
            let guarded = GuardedNetwork::new(Arc::new(own.clone()), local.clone());
            plugins = Box::pin(server::serve(listener, Arc::new(guarded)));
            network = Some(own);
        }
    }
    used.write(data_dir).map_err(NodeError::Plugin)?;
    let service = Box::pin(async move {
        plugins.await;
        drop(lock);
    });
    let name = connected.name().to_owned();
    let pods = network.clone().map(|network| Arc::new(network) as Arc<dyn PodNetwork>);
    let runtime = Arc::new(connected.into_runtime(state.join(SANDBOXES), pods).await?);
    let images = Arc::new(CriImages::at(&endpoints)?);
    Ok(NodeRuntime { runtime, images, name, network, service })
}

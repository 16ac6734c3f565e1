//! The runtime as the kubelet sees it: [`Manager`] implements `ContainerRuntime`.
//!
//! Invariants: locks are not held across awaits; a container's exit is noticed without polling, by a connection to its shim.

mod containers;
mod copied_root;
pub(crate) mod namespaces;
mod overlay;
mod recovery;
mod sandboxes;
mod sessions;
mod shims;
mod state;
mod stats;

use crate::apparmor::AppArmor;
use crate::protocol::Request;
use crate::records::{ExitRecord, RunRecord, now_nanos};
use futures_util::stream::{self, BoxStream, StreamExt};
use kaji_containers::{
    AttachRequest, BoxFuture, ContainerConfig, ContainerFilter, ContainerInfo, ContainerRuntime,
    ContainerState, ContainerStats, ContainerStatus, CpuUsage, Duplex, ExecOutput, ExecRequest, ImageRootfs,
    LinuxResources, PodNetwork, PodSandboxConfig, PodSandboxFilter, PodSandboxInfo, PodSandboxStats,
    PodSandboxStatus, ResourceUpdate, RuntimeCondition, RuntimeError, RuntimeEvent, RuntimeEventKind,
    RuntimeHandler, RuntimeStatus, RuntimeVersion, Session,
};
use state::{Container, Layout, SandboxRecord};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::broadcast;

pub use namespaces::create_network_namespace;
pub(crate) use namespaces::{mounts_below, unmount};

/// Events that a consumer may be behind.
const EVENTS: usize = 1024;

/// What a manager is made of.
pub struct ManagerOptions {
    /// Where it keeps what it knows, bundles and writable layers; a directory of its own, on a file system that overlays can
    /// be made on.
    pub state_directory: PathBuf,
    /// Program and first arguments that run [`crate::shim::main`] with the arguments that follow.
    pub shim: Vec<OsString>,
    /// Finds images.
    pub images: Arc<dyn ImageRootfs>,
    /// Connects pods; without it they have a network of their own that leads nowhere.
    pub network: Option<Arc<dyn PodNetwork>>,
    /// Where specifications of CDI devices are, the most important ones last: usually [`crate::cdi_directories`].
    pub cdi_directories: Vec<PathBuf>,
}

/// Why a manager cannot work.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The state directory, or the program of shims, cannot be used.
    #[error("{path}: {error}")]
    Directory {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Another manager uses it.
    #[error("{0} is used by another process")]
    InUse(PathBuf),
    /// What a former manager left cannot be taken over.
    #[error("restoring running containers: {0}")]
    Restore(#[source] RuntimeError),
}

/// The built-in container runtime. Containers go on when it is dropped.
#[derive(Clone)]
pub struct Manager(Arc<Inner>);

struct Inner {
    options: ManagerOptions,
    layout: Layout,
    capabilities: Vec<String>,
    apparmor: AppArmor,
    shim: shims::ShimCommand,
    state: Mutex<State>,
    events: broadcast::Sender<RuntimeEvent>,
    _lock: File,
}

#[derive(Default)]
struct State {
    sandboxes: BTreeMap<String, SandboxRecord>,
    /// Locks of those that something is done with.
    sandbox_operations: BTreeMap<String, Arc<tokio::sync::Mutex<()>>>,
    containers: BTreeMap<String, Container>,
    /// Of processor time, by container or sandbox.
    readings: BTreeMap<String, CpuUsage>,
    /// Of writable layers, by container.
    layers: BTreeMap<String, stats::LayerReading>,
}

impl Manager {
    /// Takes over what a former manager left, removes what belongs to nothing, and is ready then.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(options: ManagerOptions) -> Result<Manager, OpenError> {
        let layout = Layout::new(&options.state_directory);
        let directories = [options.state_directory.clone(), layout.sandboxes(), layout.containers()];
        for path in directories {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(|error| OpenError::Directory { path, error })?;
        }
        let path = options.state_directory.join("lock");
        let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock = lock.map_err(|error| OpenError::Directory { path, error })?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| OpenError::InUse(options.state_directory.clone()))?;
        let capabilities = crate::spec::capabilities::available().map_err(OpenError::Restore)?;
        let no_shim = |error| OpenError::Directory {
            path: options.shim.first().map(PathBuf::from).unwrap_or_default(),
            error,
        };
        let shim = shims::ShimCommand::new(&options.shim, &options.state_directory).map_err(no_shim)?;
        shim.prepare().await.map_err(no_shim)?;
        let inner = Arc::new(Inner {
            options,
            layout,
            capabilities,
            apparmor: AppArmor::of_machine(),
            shim,
            state: Mutex::default(),
            events: broadcast::Sender::new(EVENTS),
            _lock: lock,
        });
        inner.restore().await.map_err(OpenError::Restore)?;
        Ok(Manager(inner))
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; if it did, the maps would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sandbox(&self, id: &str) -> Option<SandboxRecord> {
        self.state().sandboxes.get(id).cloned()
    }

    fn with_container<T>(&self, id: &str, work: impl FnOnce(&mut Container) -> T) -> Result<T, RuntimeError> {
        self.state().containers.get_mut(id).map(work).ok_or_else(|| {
            RuntimeError::NotFound(format!("an error occurred when try to find container {id:?}: not found"))
        })
    }

    /// The bundle of a container that runs.
    fn running(&self, id: &str) -> Result<PathBuf, RuntimeError> {
        let state = self.with_container(id, |container| container.state())?;
        if state != ContainerState::Running {
            return Err(RuntimeError::FailedPrecondition(format!("container {id:?} is in {state:?} state")));
        }
        Ok(self.layout.bundle(id))
    }

    fn forget_container(&self, id: &str) {
        let mut state = self.state();
        state.containers.remove(id);
        state.readings.remove(id);
        state.layers.remove(id);
    }

    /// Records an exit in memory, once.
    fn has_exited(&self, id: &str, exit: ExitRecord) {
        let bundle = self.layout.bundle(id);
        let first = self.with_container(id, |container| {
            if container.run.is_none() {
                container.run =
                    crate::records::read::<RunRecord>(&bundle.join(crate::records::RUN)).ok().flatten();
            }
            container.exit.send_if_modified(|known| {
                let first = known.is_none();
                known.get_or_insert(exit);
                first
            })
        });
        if first == Ok(true) {
            self.emit(RuntimeEventKind::Stopped, id);
        }
    }

    /// Nothing may listen.
    fn emit(&self, kind: RuntimeEventKind, id: &str) {
        let Ok((sandbox, hidden)) = self.with_container(id, |c| (c.record.sandbox.clone(), c.record.hidden))
        else {
            return;
        };
        if !hidden {
            let pod_uid = self.sandbox(&sandbox).map_or_else(String::new, |s| s.config.metadata.uid);
            let _ =
                self.events.send(RuntimeEvent { kind, id: id.to_owned(), pod_uid, at_nanos: now_nanos() });
        }
    }

    fn emit_sandbox(&self, kind: RuntimeEventKind, id: &str) {
        let pod_uid = self.sandbox(id).map_or_else(String::new, |sandbox| sandbox.config.metadata.uid);
        let _ = self.events.send(RuntimeEvent { kind, id: id.to_owned(), pod_uid, at_nanos: now_nanos() });
    }
}

/// 64 hexadecimal digits, as other runtimes' ids have.
fn new_id() -> String {
    (0..4).map(|_| format!("{:016x}", rand::random::<u64>())).collect()
}

fn no_sandbox(id: &str) -> RuntimeError {
    RuntimeError::NotFound(format!("an error occurred when try to find sandbox: {id:?}: not found"))
}

fn has_labels(known: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(name, value)| known.get(name) == Some(value))
}

fn selects(filter: &PodSandboxFilter, info: &PodSandboxInfo) -> bool {
    filter.id.as_ref().is_none_or(|id| *id == info.id)
        && filter.state.is_none_or(|state| state == info.state)
        && has_labels(&info.labels, &filter.labels)
}

fn selects_container(filter: &ContainerFilter, info: &ContainerInfo) -> bool {
    filter.id.as_ref().is_none_or(|id| *id == info.id)
        && filter.state.is_none_or(|state| state == info.state)
        && filter.sandbox_id.as_ref().is_none_or(|id| *id == info.sandbox_id)
        && has_labels(&info.labels, &filter.labels)
}

/// Sets what an update sets.
fn merge_resources(known: &mut LinuxResources, update: &LinuxResources) {
    let unset = LinuxResources::default();
    macro_rules! take {
        ($($field:ident),*) => { $(if update.$field != unset.$field { known.$field = update.$field.clone(); })* };
    }
    take!(cpu_period, cpu_quota, cpu_shares, memory_limit_bytes, memory_swap_limit_bytes, oom_score_adj);
    take!(cpuset_cpus, cpuset_mems, hugepage_limits, pids_limit);
    known.unified.extend(update.unified.clone());
}

impl ContainerRuntime for Manager {
    fn version(&self) -> BoxFuture<'_, Result<RuntimeVersion, RuntimeError>> {
        let (name, version) = ("kaji".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Box::pin(async { Ok(RuntimeVersion { name, version, api_version: "v1".to_owned() }) })
    }

    fn status(&self) -> BoxFuture<'_, Result<RuntimeStatus, RuntimeError>> {
        Box::pin(async move {
            let unavailable = match &self.0.options.network {
                Some(network) => network.unavailable_reason().await,
                None => Some("no pod network is configured".to_owned()),
            };
            let condition = |kind: &str, status, reason: &str, message| RuntimeCondition {
                kind: kind.to_owned(),
                status,
                reason: reason.to_owned(),
                message,
            };
            let network = match unavailable {
                None => condition("NetworkReady", true, "", String::new()),
                Some(message) => condition("NetworkReady", false, "NetworkPluginNotReady", message),
            };
            Ok(RuntimeStatus {
                conditions: vec![condition("RuntimeReady", true, "", String::new()), network],
                handlers: vec![RuntimeHandler {
                    recursive_read_only_mounts: true,
                    user_namespaces: crate::user_namespaces::supported(),
                    ..Default::default()
                }],
                supplemental_groups_policy: true,
            })
        })
    }

    fn run_pod_sandbox(&self, config: PodSandboxConfig) -> BoxFuture<'_, Result<String, RuntimeError>> {
        Box::pin(self.0.run_sandbox(config))
    }

    fn stop_pod_sandbox<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.0.stop_sandbox(id))
    }

    fn remove_pod_sandbox<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.0.remove_sandbox(id))
    }

    fn pod_sandbox_status<'a>(
        &'a self,
        id: &'a str,
    ) -> BoxFuture<'a, Result<PodSandboxStatus, RuntimeError>> {
        Box::pin(async move {
            let record = self.0.sandbox(id).ok_or_else(|| no_sandbox(id))?;
            let namespace = self.0.network_setup(&record).map(|setup| setup.namespace.display().to_string());
            Ok(record.status(namespace))
        })
    }

    fn list_pod_sandboxes(
        &self,
        filter: PodSandboxFilter,
    ) -> BoxFuture<'_, Result<Vec<PodSandboxInfo>, RuntimeError>> {
        let all = self.0.state().sandboxes.values().map(SandboxRecord::info).collect::<Vec<_>>();
        Box::pin(async move { Ok(all.into_iter().filter(|info| selects(&filter, info)).collect()) })
    }

    fn create_container<'a>(
        &'a self,
        sandbox: &'a str,
        config: ContainerConfig,
    ) -> BoxFuture<'a, Result<String, RuntimeError>> {
        Box::pin(self.0.create_container(sandbox, config))
    }

    fn start_container<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.0.start_container(id))
    }

    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.0.stop_container(id, grace))
    }

    fn remove_container<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.0.remove_container(id))
    }

    fn container_status<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<ContainerStatus, RuntimeError>> {
        Box::pin(async move { self.0.with_container(id, |container| container.status()) })
    }

    fn list_containers(
        &self,
        filter: ContainerFilter,
    ) -> BoxFuture<'_, Result<Vec<ContainerInfo>, RuntimeError>> {
        let state = self.0.state();
        let shown = state.containers.values().filter(|container| !container.record.hidden);
        let all = shown.map(Container::info).filter(|info| selects_container(&filter, info)).collect();
        Box::pin(async move { Ok(all) })
    }

    fn update_container_resources<'a>(
        &'a self,
        id: &'a str,
        update: ResourceUpdate,
    ) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move { self.0.update_resources(id, update) })
    }

    fn update_pod_sandbox_resources<'a>(
        &'a self,
        _id: &'a str,
        _overhead: Option<LinuxResources>,
        _resources: Option<LinuxResources>,
    ) -> BoxFuture<'a, Result<(), RuntimeError>> {
        let message = "the built-in runtime has no use for the resources of pods";
        Box::pin(async { Err(RuntimeError::Unimplemented(message.to_owned())) })
    }

    fn reopen_container_log<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move { shims::call(&self.0.running(id)?, &Request::ReopenLog).await })
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a str,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput, RuntimeError>> {
        Box::pin(self.0.exec_sync(id, command, timeout))
    }

    fn exec(&self, request: ExecRequest) -> BoxFuture<'_, Result<Session, RuntimeError>> {
        Box::pin(self.0.exec(request))
    }

    fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Session, RuntimeError>> {
        Box::pin(self.0.attach(request))
    }

    fn port_forward<'a>(
        &'a self,
        sandbox: &'a str,
        port: u16,
    ) -> BoxFuture<'a, Result<Duplex, RuntimeError>> {
        Box::pin(self.0.port_forward(sandbox, port))
    }

    fn container_stats<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<ContainerStats, RuntimeError>> {
        Box::pin(self.0.container_stats(id))
    }

    fn list_pod_sandbox_stats(
        &self,
        filter: PodSandboxFilter,
    ) -> BoxFuture<'_, Result<Vec<PodSandboxStats>, RuntimeError>> {
        Box::pin(async move { self.0.sandbox_stats(&filter).await })
    }

    fn events(
        &self,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<RuntimeEvent, RuntimeError>>, RuntimeError>> {
        let receiver = self.0.events.subscribe();
        let events = stream::unfold(receiver, |mut receiver| async move {
            match receiver.recv().await {
                Ok(event) => Some((Ok(event), receiver)),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    Some((Err(RuntimeError::Unavailable(format!("{missed} events were missed"))), receiver))
                }
                Err(broadcast::error::RecvError::Closed) => None,
            }
        });
        Box::pin(async move { Ok(events.boxed()) })
    }

    fn update_pod_cidrs(&self, cidrs: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async move {
            match &self.0.options.network {
                Some(network) => network.update_pod_cidrs(cidrs).await,
                None => Ok(()),
            }
        })
    }
}

//! Sandboxes and containers of a CRI runtime.
//!
//! Invariants: stop and remove succeed for what is absent; a sandbox is stopped before it is removed, since older runtimes demand
//! it; what is remembered of containers beside the runtime is a cache.

mod calls;
mod events;
mod figures;

use crate::configurations::Configurations;
use crate::connection::{ConnectError, Connection, Endpoints};
use crate::convert::{container, sandbox};
use crate::messages as cri;
use crate::rates::Rates;
use kaji_containers::{
    ContainerConfig, ContainerFilter, ContainerInfo, ContainerState, ContainerStatus, PodNetwork,
    PodSandboxConfig, PodSandboxFilter, PodSandboxInfo, PodSandboxMetadata, PodSandboxStatus, RuntimeError,
    RuntimeVersion,
};
use kaji_grpc::Client;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The longest that a command without a timeout runs.
const NO_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Creating a sandbox includes its network, and may include a pull of its image.
const SANDBOX: Duration = Duration::from_secs(240);

/// What the messages about a container lack.
#[derive(Debug, Clone, Default)]
struct Remembered {
    sandbox: String,
    started_at_nanos: i64,
}

/// A runtime that is reached by its CRI socket. Containers go on when it is dropped.
#[derive(Clone)]
pub struct CriRuntime(Arc<Inner>);

struct Inner {
    connection: Connection,
    /// When the runtime said that it has no events.
    without_events: Mutex<Option<Instant>>,
    /// Events have a connection of their own: a runtime answers the call with the first event.
    events: Client,
    version: RuntimeVersion,
    configurations: Configurations,
    /// The node's pod network, if the runtime's plug-in is this program.
    network: Option<Arc<dyn PodNetwork>>,
    containers: Mutex<HashMap<String, Remembered>>,
    rates: Rates,
}

/// A runtime that has answered.
pub struct Connected {
    connection: Connection,
    endpoint: String,
    version: RuntimeVersion,
}

impl Connected {
    /// Waits until the runtime answers, and checks that it can be used.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn to(endpoints: &Endpoints) -> Result<Connected, ConnectError> {
        let endpoint = endpoints.runtime.clone();
        let connection = Connection::new(&endpoint)?;
        let version = connection.version(&endpoint).await?;
        if connection.systemd_cgroups().await {
            return Err(ConnectError::SystemdCgroups(endpoint));
        }
        let version = RuntimeVersion {
            name: version.runtime_name,
            version: version.runtime_version,
            api_version: version.runtime_api_version,
        };
        Ok(Connected { connection, endpoint, version })
    }

    /// What the runtime shows of its configuration; null if that is nothing.
    pub async fn configuration(&self) -> Value {
        self.connection.configuration().await
    }

    /// `containerd`, `cri-o`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.version.name
    }

    /// The ids of all sandboxes of the runtime.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn sandboxes(&self) -> Result<Vec<PodSandboxInfo>, RuntimeError> {
        calls::list_sandboxes(&self.connection, &PodSandboxFilter::default()).await
    }

    /// The runtime as a backend. `directory` keeps the configurations of sandboxes; `network` is that of pods, if this program is the
    /// runtime's network plug-in.
    ///
    /// # Errors
    /// The directory's, and the runtime's when it cannot list its sandboxes.
    pub async fn into_runtime(
        self,
        directory: PathBuf,
        network: Option<Arc<dyn PodNetwork>>,
    ) -> Result<CriRuntime, ConnectError> {
        let configurations = Configurations::open(directory).map_err(ConnectError::Directory)?;
        match self.sandboxes().await {
            Ok(sandboxes) => {
                let known: Vec<PodSandboxMetadata> = sandboxes.into_iter().map(|s| s.metadata).collect();
                configurations.keep(&known).map_err(ConnectError::Directory)?;
            }
            Err(error) => tracing::warn!(%error, "the container runtime cannot list its sandboxes yet"),
        }
        let Some(events) = Client::of_endpoint(&self.endpoint) else {
            return Err(ConnectError::Endpoint(self.endpoint));
        };
        let Connected { connection, version, .. } = self;
        Ok(CriRuntime(Arc::new(Inner {
            connection,
            without_events: Mutex::default(),
            events,
            version,
            configurations,
            network,
            containers: Mutex::default(),
            rates: Rates::default(),
        })))
    }
}

impl Inner {
    fn remembered(&self) -> MutexGuard<'_, HashMap<String, Remembered>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the sandboxes of listed containers; a list of all of them shows which are gone.
    fn remember(&self, listed: &[ContainerInfo], all: bool) {
        let mut known = self.remembered();
        for info in listed {
            known.entry(info.id.clone()).or_default().sandbox.clone_from(&info.sandbox_id);
        }
        if all {
            let listed: HashSet<&str> = listed.iter().map(|info| info.id.as_str()).collect();
            known.retain(|id, _| listed.contains(id.as_str()));
        }
    }

    async fn run_sandbox(&self, config: PodSandboxConfig) -> Result<String, RuntimeError> {
        self.configurations.write(&config)?;
        let request = cri::RunPodSandboxRequest {
            config: Some(sandbox::config(&config)),
            runtime_handler: config.runtime_handler.clone(),
        };
        let method = "/runtime.v1.RuntimeService/RunPodSandbox";
        let answer: Result<cri::RunPodSandboxResponse, _> =
            self.connection.call_within(method, request, SANDBOX).await;
        Ok(answer?.pod_sandbox_id)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<(), RuntimeError> {
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let method = "/runtime.v1.RuntimeService/StopPodSandbox";
        let answer: Result<cri::StopPodSandboxResponse, _> =
            self.connection.call_within(method, request, SANDBOX).await;
        absent_is_done(answer.map(drop))
    }

    async fn remove_sandbox(&self, id: &str) -> Result<(), RuntimeError> {
        let status = match self.sandbox_status(id).await {
            Ok(status) => status,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        self.stop_sandbox(id).await?;
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let method = "/runtime.v1.RuntimeService/RemovePodSandbox";
        let answer: Result<cri::RemovePodSandboxResponse, _> =
            self.connection.call_within(method, request, SANDBOX).await;
        absent_is_done(answer.map(drop))?;
        self.configurations.remove(&status.info.metadata)?;
        Ok(())
    }

    async fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus, RuntimeError> {
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        let method = "/runtime.v1.RuntimeService/PodSandboxStatus";
        let answer: cri::PodSandboxStatusResponse = self.connection.call(method, request).await?;
        let status = answer.status.ok_or_else(|| calls::empty("PodSandboxStatus"))?;
        Ok(sandbox::status(status))
    }

    async fn create_container(&self, id: &str, config: ContainerConfig) -> Result<String, RuntimeError> {
        let metadata = self.sandbox_status(id).await?.info.metadata;
        let Some(of_sandbox) = self.configurations.read(&metadata)? else {
            return Err(RuntimeError::FailedPrecondition(format!(
                "sandbox {id:?} was not made by this node, or its configuration is lost: the pod has to be replaced"
            )));
        };
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: id.to_owned(),
            config: Some(container::config(&config)?),
            sandbox_config: Some(sandbox::config(&of_sandbox)),
        };
        let method = "/runtime.v1.RuntimeService/CreateContainer";
        let answer: cri::CreateContainerResponse = self.connection.call(method, request).await?;
        let remembered = Remembered { sandbox: id.to_owned(), started_at_nanos: 0 };
        self.remembered().insert(answer.container_id.clone(), remembered);
        Ok(answer.container_id)
    }

    async fn start_container(&self, id: &str) -> Result<(), RuntimeError> {
        let request = cri::StartContainerRequest { container_id: id.to_owned() };
        let method = "/runtime.v1.RuntimeService/StartContainer";
        let started: Result<cri::StartContainerResponse, _> = self.connection.call(method, request).await;
        started.map(drop).map_err(|error| match error {
            RuntimeError::Internal(text) => RuntimeError::StartFailed(text),
            other => other,
        })
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), RuntimeError> {
        let request =
            cri::StopContainerRequest { container_id: id.to_owned(), timeout: calls::seconds(grace) };
        let method = "/runtime.v1.RuntimeService/StopContainer";
        let deadline = grace.saturating_add(crate::connection::CALL);
        let answer: Result<cri::StopContainerResponse, _> =
            self.connection.call_within(method, request, deadline).await;
        absent_is_done(answer.map(drop))?;
        // One that was never started has nothing to stop, and runtimes leave it as it is: it has to go, or it could still start.
        let created = ContainerFilter {
            id: Some(id.to_owned()),
            state: Some(ContainerState::Created),
            ..Default::default()
        };
        if self.list_containers(&created).await?.iter().any(|info| info.state == ContainerState::Created) {
            self.remove_container(id).await?;
        }
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<(), RuntimeError> {
        let request = cri::RemoveContainerRequest { container_id: id.to_owned() };
        let method = "/runtime.v1.RuntimeService/RemoveContainer";
        let answer: Result<cri::RemoveContainerResponse, _> = self.connection.call(method, request).await;
        absent_is_done(answer.map(drop))?;
        self.remembered().remove(id);
        Ok(())
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus, RuntimeError> {
        let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let method = "/runtime.v1.RuntimeService/ContainerStatus";
        let answer: cri::ContainerStatusResponse = self.connection.call(method, request).await?;
        let status = answer.status.ok_or_else(|| calls::empty("ContainerStatus"))?;
        let known = self.remembered().get(id).map(|remembered| remembered.sandbox.clone());
        let sandbox = match known.filter(|sandbox| !sandbox.is_empty()) {
            Some(sandbox) => sandbox,
            None => {
                let filter = ContainerFilter { id: Some(id.to_owned()), ..Default::default() };
                let listed = self.list_containers(&filter).await?;
                listed.into_iter().next().map(|info| info.sandbox_id).unwrap_or_default()
            }
        };
        let status = container::status(status, sandbox, 0);
        if let Some(remembered) = self.remembered().get_mut(id) {
            remembered.started_at_nanos = status.started_at_nanos;
        }
        Ok(status)
    }

    async fn list_containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerInfo>, RuntimeError> {
        let request = cri::ListContainersRequest { filter: Some(container::filter(filter)) };
        let method = "/runtime.v1.RuntimeService/ListContainers";
        let answer: cri::ListContainersResponse = self.connection.call(method, request).await?;
        let listed: Vec<ContainerInfo> = answer.containers.into_iter().map(container::info).collect();
        self.remember(&listed, *filter == ContainerFilter::default());
        Ok(listed)
    }
}

fn absent_is_done(outcome: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    match outcome {
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome,
    }
}

//! The trait's methods, each a call or a few.

use super::{CriRuntime, Inner, NO_TIMEOUT};
use crate::connection::{CALL, Connection};
use crate::convert::{sandbox, security, status};
use crate::messages as cri;
use crate::streams::session::{self, Wanted};
use futures_util::stream::BoxStream;
use kaji_containers::{
    AttachRequest, BoxFuture, ContainerConfig, ContainerFilter, ContainerInfo, ContainerRuntime,
    ContainerStats, ContainerStatus, Duplex, ExecOutput, ExecRequest, LinuxResources, PodSandboxConfig,
    PodSandboxFilter, PodSandboxInfo, PodSandboxStats, PodSandboxStatus, ResourceUpdate, RuntimeError,
    RuntimeEvent, RuntimeStatus, RuntimeVersion, Session,
};
use std::path::Path;
use std::time::Duration;

/// An answer without its content.
pub(super) fn empty(method: &str) -> RuntimeError {
    RuntimeError::Internal(format!("the container runtime answered {method} with nothing"))
}

/// Whole seconds, rounded up: a grace of less than one is not none.
pub(super) fn seconds(duration: Duration) -> i64 {
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(whole).unwrap_or(i64::MAX)
}

pub(super) async fn list_sandboxes(
    connection: &Connection,
    filter: &PodSandboxFilter,
) -> Result<Vec<PodSandboxInfo>, RuntimeError> {
    let request = cri::ListPodSandboxRequest { filter: Some(sandbox::filter(filter)) };
    let method = "/runtime.v1.RuntimeService/ListPodSandbox";
    let answer: cri::ListPodSandboxResponse = connection.call(method, request).await?;
    Ok(answer.items.into_iter().map(sandbox::info).collect())
}

impl Inner {
    async fn status(&self) -> Result<RuntimeStatus, RuntimeError> {
        let method = "/runtime.v1.RuntimeService/Status";
        let answer: cri::StatusResponse =
            self.connection.call(method, cri::StatusRequest { verbose: false }).await?;
        let mut status = status::status(answer);
        let Some(network) = &self.network else { return Ok(status) };
        // The runtime knows that there is a plug-in; the plug-in's other end knows whether it has addresses.
        if let Some(message) = network.unavailable_reason().await {
            for condition in status.conditions.iter_mut().filter(|c| c.kind == "NetworkReady" && c.status) {
                condition.status = false;
                condition.reason = "NetworkPluginNotReady".to_owned();
                condition.message.clone_from(&message);
            }
        }
        Ok(status)
    }

    async fn update_resources(&self, id: &str, update: ResourceUpdate) -> Result<(), RuntimeError> {
        let request = cri::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(security::resources(&update.resources)),
            annotations: update.annotations,
        };
        let method = "/runtime.v1.RuntimeService/UpdateContainerResources";
        let answer: cri::UpdateContainerResourcesResponse = self.connection.call(method, request).await?;
        let cri::UpdateContainerResourcesResponse {} = answer;
        Ok(())
    }

    async fn update_pod_resources(
        &self,
        id: &str,
        overhead: Option<LinuxResources>,
        resources: Option<LinuxResources>,
    ) -> Result<(), RuntimeError> {
        let request = cri::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: id.to_owned(),
            overhead: overhead.as_ref().map(security::resources),
            resources: resources.as_ref().map(security::resources),
        };
        let method = "/runtime.v1.RuntimeService/UpdatePodSandboxResources";
        let answer: cri::UpdatePodSandboxResourcesResponse = self.connection.call(method, request).await?;
        let cri::UpdatePodSandboxResourcesResponse {} = answer;
        Ok(())
    }

    async fn reopen_log(&self, id: &str) -> Result<(), RuntimeError> {
        let request = cri::ReopenContainerLogRequest { container_id: id.to_owned() };
        let method = "/runtime.v1.RuntimeService/ReopenContainerLog";
        let answer: cri::ReopenContainerLogResponse = self.connection.call(method, request).await?;
        let cri::ReopenContainerLogResponse {} = answer;
        Ok(())
    }

    async fn checkpoint(&self, id: &str, location: &Path, timeout: Duration) -> Result<(), RuntimeError> {
        let request = cri::CheckpointContainerRequest {
            container_id: id.to_owned(),
            location: location.display().to_string(),
            timeout: seconds(timeout),
        };
        let deadline = if timeout.is_zero() { CALL } else { timeout };
        let method = "/runtime.v1.RuntimeService/CheckpointContainer";
        let answer: cri::CheckpointContainerResponse =
            self.connection.call_within(method, request, deadline).await?;
        let cri::CheckpointContainerResponse {} = answer;
        Ok(())
    }

    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<ExecOutput, RuntimeError> {
        let request =
            cri::ExecSyncRequest { container_id: id.to_owned(), cmd: command, timeout: seconds(timeout) };
        let deadline = if timeout.is_zero() { NO_TIMEOUT } else { timeout.saturating_add(CALL) };
        let method = "/runtime.v1.RuntimeService/ExecSync";
        let answer: cri::ExecSyncResponse = self.connection.call_within(method, request, deadline).await?;
        Ok(ExecOutput { stdout: answer.stdout, stderr: answer.stderr, exit_code: answer.exit_code })
    }

    async fn exec(&self, request: ExecRequest) -> Result<Session, RuntimeError> {
        let ExecRequest { container_id, command, tty, stdin, stdout, stderr } = request;
        let stderr = stderr && !tty;
        let message = cri::ExecRequest { container_id, cmd: command, tty, stdin, stdout, stderr };
        let method = "/runtime.v1.RuntimeService/Exec";
        let answer: cri::ExecResponse = self.connection.call(method, message).await?;
        session::remote_command(&answer.url, Wanted { stdin, stdout, stderr, tty }).await
    }

    async fn attach(&self, request: AttachRequest) -> Result<Session, RuntimeError> {
        let AttachRequest { container_id, tty, stdin, stdout, stderr } = request;
        let stderr = stderr && !tty;
        let message = cri::AttachRequest { container_id, stdin, tty, stdout, stderr };
        let method = "/runtime.v1.RuntimeService/Attach";
        let answer: cri::AttachResponse = self.connection.call(method, message).await?;
        session::remote_command(&answer.url, Wanted { stdin, stdout, stderr, tty }).await
    }

    async fn port_forward(&self, sandbox: &str, port: u16) -> Result<Duplex, RuntimeError> {
        let message = cri::PortForwardRequest { pod_sandbox_id: sandbox.to_owned(), port: vec![port.into()] };
        let method = "/runtime.v1.RuntimeService/PortForward";
        let answer: cri::PortForwardResponse = self.connection.call(method, message).await?;
        session::port_forward(&answer.url, port).await
    }

    async fn update_pod_cidrs(&self, cidrs: Vec<String>) -> Result<(), RuntimeError> {
        if let Some(network) = &self.network {
            network.update_pod_cidrs(cidrs.clone()).await?;
        }
        let pod_cidr = cidrs.join(",");
        let network_config = Some(cri::NetworkConfig { pod_cidr });
        let request =
            cri::UpdateRuntimeConfigRequest { runtime_config: Some(cri::RuntimeConfig { network_config }) };
        let method = "/runtime.v1.RuntimeService/UpdateRuntimeConfig";
        let answer: Result<cri::UpdateRuntimeConfigResponse, _> = self.connection.call(method, request).await;
        match answer {
            Err(RuntimeError::Unimplemented(_)) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl ContainerRuntime for CriRuntime {
    fn version(&self) -> BoxFuture<'_, Result<RuntimeVersion, RuntimeError>> {
        // A runtime that was upgraded says so once it is back.
        Box::pin(async {
            let request = cri::VersionRequest { version: "v1".to_owned() };
            let method = "/runtime.v1.RuntimeService/Version";
            let answer: Result<cri::VersionResponse, _> = self.0.connection.call(method, request).await;
            Ok(answer.map_or_else(
                |_| self.0.version.clone(),
                |version| RuntimeVersion {
                    name: version.runtime_name,
                    version: version.runtime_version,
                    api_version: version.runtime_api_version,
                },
            ))
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<RuntimeStatus, RuntimeError>> {
        Box::pin(self.0.status())
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
        Box::pin(self.0.sandbox_status(id))
    }

    fn list_pod_sandboxes(
        &self,
        filter: PodSandboxFilter,
    ) -> BoxFuture<'_, Result<Vec<PodSandboxInfo>, RuntimeError>> {
        Box::pin(async move { list_sandboxes(&self.0.connection, &filter).await })
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
        Box::pin(self.0.container_status(id))
    }

    fn list_containers(
        &self,
        filter: ContainerFilter,
    ) -> BoxFuture<'_, Result<Vec<ContainerInfo>, RuntimeError>> {
        Box::pin(async move { self.0.list_containers(&filter).await })
    }

    fn update_container_resources<'a>(
        &'a self,
        id: &'a str,
        update: ResourceUpdate,
    ) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.0.update_resources(id, update))
    }

    fn update_pod_sandbox_resources<'a>(
        &'a self,
        id: &'a str,
        overhead: Option<LinuxResources>,
        resources: Option<LinuxResources>,
    ) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.0.update_pod_resources(id, overhead, resources))
    }

    fn reopen_container_log<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.0.reopen_log(id))
    }

    fn checkpoint_container<'a>(
        &'a self,
        id: &'a str,
        location: &'a Path,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(self.0.checkpoint(id, location, timeout))
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
        Box::pin(self.0.sandbox_stats(filter))
    }

    fn events(
        &self,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<RuntimeEvent, RuntimeError>>, RuntimeError>> {
        Box::pin(self.0.clone().events())
    }

    fn update_pod_cidrs(&self, cidrs: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(self.0.update_pod_cidrs(cidrs))
    }
}

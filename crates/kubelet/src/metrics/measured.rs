//! Operations of a container runtime and of an image service, counted and timed.
//!
//! Invariant: an operation is counted once, whether it succeeds or not; one that is given up is not.

use super::KubeletMetrics;
use super::families::{RUNTIME_ERRORS, RUNTIME_OPERATIONS, RUNTIME_TIMES};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use kaji_containers::{
    AttachRequest, ContainerConfig, ContainerFilter, ContainerInfo, ContainerRuntime, ContainerStats,
    ContainerStatus, Duplex, ExecOutput, ExecRequest, Image, ImageFilesystems, ImageService, ImageSpec,
    LinuxResources, PodSandboxConfig, PodSandboxFilter, PodSandboxInfo, PodSandboxStats, PodSandboxStatus,
    PullRequest, ResourceUpdate, RuntimeError, RuntimeEvent, RuntimeStatus, RuntimeVersion, Session,
};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

type Answer<'a, T> = BoxFuture<'a, Result<T, RuntimeError>>;

/// What is measured, and where it is counted.
pub(crate) struct Measured<T: ?Sized> {
    pub inner: Arc<T>,
    pub metrics: Arc<KubeletMetrics>,
}

impl<T: ?Sized + Send + Sync> Measured<T> {
    fn timed<'a, R: 'a>(
        &'a self,
        operation: &'static str,
        work: impl Future<Output = Result<R, RuntimeError>> + Send + 'a,
    ) -> Answer<'a, R> {
        Box::pin(async move {
            let began = Instant::now();
            let outcome = work.await;
            let labels = [("operation_type", operation)];
            self.metrics.count(&RUNTIME_OPERATIONS, &labels);
            self.metrics.observe(&RUNTIME_TIMES, &labels, began.elapsed());
            if outcome.is_err() {
                self.metrics.count(&RUNTIME_ERRORS, &labels);
            }
            outcome
        })
    }
}

impl ContainerRuntime for Measured<dyn ContainerRuntime> {
    fn version(&self) -> Answer<'_, RuntimeVersion> {
        self.timed("version", self.inner.version())
    }

    fn status(&self) -> Answer<'_, RuntimeStatus> {
        self.timed("status", self.inner.status())
    }

    fn run_pod_sandbox(&self, config: PodSandboxConfig) -> Answer<'_, String> {
        self.timed("run_podsandbox", self.inner.run_pod_sandbox(config))
    }

    fn stop_pod_sandbox<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        self.timed("stop_podsandbox", self.inner.stop_pod_sandbox(id))
    }

    fn remove_pod_sandbox<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        self.timed("remove_podsandbox", self.inner.remove_pod_sandbox(id))
    }

    fn pod_sandbox_status<'a>(&'a self, id: &'a str) -> Answer<'a, PodSandboxStatus> {
        self.timed("podsandbox_status", self.inner.pod_sandbox_status(id))
    }

    fn list_pod_sandboxes(&self, filter: PodSandboxFilter) -> Answer<'_, Vec<PodSandboxInfo>> {
        self.timed("list_podsandbox", self.inner.list_pod_sandboxes(filter))
    }

    fn create_container<'a>(&'a self, sandbox: &'a str, config: ContainerConfig) -> Answer<'a, String> {
        self.timed("create_container", self.inner.create_container(sandbox, config))
    }

    fn start_container<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        self.timed("start_container", self.inner.start_container(id))
    }

    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> Answer<'a, ()> {
        self.timed("stop_container", self.inner.stop_container(id, grace))
    }

    fn remove_container<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        self.timed("remove_container", self.inner.remove_container(id))
    }

    fn container_status<'a>(&'a self, id: &'a str) -> Answer<'a, ContainerStatus> {
        self.timed("container_status", self.inner.container_status(id))
    }

    fn list_containers(&self, filter: ContainerFilter) -> Answer<'_, Vec<ContainerInfo>> {
        self.timed("list_containers", self.inner.list_containers(filter))
    }

    fn update_container_resources<'a>(&'a self, id: &'a str, update: ResourceUpdate) -> Answer<'a, ()> {
        self.timed("update_container", self.inner.update_container_resources(id, update))
    }

    fn update_pod_sandbox_resources<'a>(
        &'a self,
        id: &'a str,
        overhead: Option<LinuxResources>,
        resources: Option<LinuxResources>,
    ) -> Answer<'a, ()> {
        let work = self.inner.update_pod_sandbox_resources(id, overhead, resources);
        self.timed("update_podsandbox_resources", work)
    }

    fn reopen_container_log<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        self.timed("reopen_container_log", self.inner.reopen_container_log(id))
    }

    fn checkpoint_container<'a>(
        &'a self,
        id: &'a str,
        location: &'a Path,
        timeout: Duration,
    ) -> Answer<'a, ()> {
        self.timed("checkpoint_container", self.inner.checkpoint_container(id, location, timeout))
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Answer<'a, ExecOutput> {
        self.timed("exec_sync", self.inner.exec_sync(id, command, timeout))
    }

    fn exec(&self, request: ExecRequest) -> Answer<'_, Session> {
        self.timed("exec", self.inner.exec(request))
    }

    fn attach(&self, request: AttachRequest) -> Answer<'_, Session> {
        self.timed("attach", self.inner.attach(request))
    }

    fn port_forward<'a>(&'a self, sandbox: &'a str, port: u16) -> Answer<'a, Duplex> {
        self.timed("port_forward", self.inner.port_forward(sandbox, port))
    }

    fn container_stats<'a>(&'a self, id: &'a str) -> Answer<'a, ContainerStats> {
        self.timed("container_stats", self.inner.container_stats(id))
    }

    fn list_pod_sandbox_stats(&self, filter: PodSandboxFilter) -> Answer<'_, Vec<PodSandboxStats>> {
        self.timed("list_podsandbox_stats", self.inner.list_pod_sandbox_stats(filter))
    }

    fn events(&self) -> Answer<'_, BoxStream<'static, Result<RuntimeEvent, RuntimeError>>> {
        // It is asked for every second where there are none; upstream counts the connections.
        self.inner.events()
    }

    fn update_pod_cidrs(&self, cidrs: Vec<String>) -> Answer<'_, ()> {
        self.timed("update_runtime_config", self.inner.update_pod_cidrs(cidrs))
    }
}

impl ImageService for Measured<dyn ImageService> {
    fn list_images(&self) -> Answer<'_, Vec<Image>> {
        self.timed("list_images", self.inner.list_images())
    }

    fn image_status<'a>(&'a self, image: &'a ImageSpec) -> Answer<'a, Option<Image>> {
        self.timed("image_status", self.inner.image_status(image))
    }

    fn pull_image(&self, request: PullRequest) -> Answer<'_, String> {
        self.timed("pull_image", self.inner.pull_image(request))
    }

    fn remove_image<'a>(&'a self, image: &'a ImageSpec) -> Answer<'a, ()> {
        self.timed("remove_image", self.inner.remove_image(image))
    }

    fn filesystems(&self) -> Answer<'_, ImageFilesystems> {
        self.timed("image_fs_info", self.inner.filesystems())
    }
}

//! What containers and pods use.
//!
//! Invariant: a runtime without figures of pods shows those of their containers; what belongs to the pod alone is zero then.

use super::{Inner, calls};
use crate::convert::{sandbox, stats};
use crate::messages as cri;
use kaji_containers::{
    ContainerFilter, ContainerInfo, ContainerStats, PodSandboxFilter, PodSandboxInfo, PodSandboxState,
    PodSandboxStats, RuntimeError,
};
use std::collections::HashMap;

impl Inner {
    pub(super) async fn container_stats(&self, id: &str) -> Result<ContainerStats, RuntimeError> {
        let method = "/runtime.v1.RuntimeService/ContainerStats";
        let request = cri::ContainerStatsRequest { container_id: id.to_owned() };
        let answer: cri::ContainerStatsResponse = self.connection.call(method, request).await?;
        let mut found = stats::container(answer.stats.ok_or_else(|| calls::empty("ContainerStats"))?);
        self.complete(&mut found);
        Ok(found)
    }

    /// The rate, and when it was started.
    fn complete(&self, found: &mut ContainerStats) {
        self.rates.complete(&found.id, &mut found.cpu);
        if let Some(remembered) = self.remembered().get(&found.id) {
            found.started_at_nanos = remembered.started_at_nanos;
        }
    }

    pub(super) async fn sandbox_stats(
        &self,
        mut filter: PodSandboxFilter,
    ) -> Result<Vec<PodSandboxStats>, RuntimeError> {
        filter.state = Some(PodSandboxState::Ready);
        let wanted = sandbox::filter(&filter);
        let selector = cri::PodSandboxStatsFilter { id: wanted.id, label_selector: wanted.label_selector };
        let method = "/runtime.v1.RuntimeService/ListPodSandboxStats";
        let request = cri::ListPodSandboxStatsRequest { filter: Some(selector) };
        let answer: Result<cri::ListPodSandboxStatsResponse, _> = self.connection.call(method, request).await;
        let mut found: Vec<PodSandboxStats> = match answer {
            Ok(answer) => answer.stats.into_iter().map(stats::pod).collect(),
            Err(RuntimeError::Unimplemented(_)) => self.by_containers(&filter).await?,
            Err(error) => return Err(error),
        };
        for pod in &mut found {
            self.rates.complete(&pod.id, &mut pod.cpu);
            for container in &mut pod.containers {
                self.complete(container);
            }
        }
        Ok(found)
    }

    async fn by_containers(&self, filter: &PodSandboxFilter) -> Result<Vec<PodSandboxStats>, RuntimeError> {
        let sandboxes = calls::list_sandboxes(&self.connection, filter).await?;
        let listed = self.list_containers(&ContainerFilter::default()).await?;
        let method = "/runtime.v1.RuntimeService/ListContainerStats";
        let request = cri::ListContainerStatsRequest { filter: None };
        let answer: cri::ListContainerStatsResponse = self.connection.call(method, request).await?;
        let all = answer.stats.into_iter().map(stats::container).collect();
        Ok(group(sandboxes, &listed, all))
    }
}

/// The figures of containers by their sandboxes.
fn group(
    sandboxes: Vec<PodSandboxInfo>,
    listed: &[ContainerInfo],
    all: Vec<ContainerStats>,
) -> Vec<PodSandboxStats> {
    let owners: HashMap<&str, &str> =
        listed.iter().map(|info| (info.id.as_str(), info.sandbox_id.as_str())).collect();
    let mut by_sandbox: HashMap<String, Vec<ContainerStats>> = HashMap::new();
    for container in all {
        if let Some(sandbox) = owners.get(container.id.as_str()) {
            by_sandbox.entry((*sandbox).to_owned()).or_default().push(container);
        }
    }
    let of = |sandbox: PodSandboxInfo| {
        let containers = by_sandbox.remove(&sandbox.id).unwrap_or_default();
        let mut pod = PodSandboxStats { id: sandbox.id, pod_uid: sandbox.metadata.uid, ..Default::default() };
        for container in &containers {
            pod.cpu.at_nanos = pod.cpu.at_nanos.max(container.cpu.at_nanos);
            pod.cpu.core_nanos += container.cpu.core_nanos;
            pod.memory.at_nanos = pod.memory.at_nanos.max(container.memory.at_nanos);
            pod.memory.working_set += container.memory.working_set;
            pod.memory.usage += container.memory.usage;
            pod.memory.rss += container.memory.rss;
        }
        pod.containers = containers;
        pod
    };
    sandboxes.into_iter().map(of).collect()
}

//! What the runtime shows of one pod: its sandboxes and containers, newest first.

use super::labels::{self, Kept};
use kaji_containers::{
    ContainerFilter, ContainerRuntime, ContainerState, ContainerStatus, PodSandboxFilter, PodSandboxState,
    PodSandboxStatus, RuntimeError,
};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A container of the pod.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedContainer {
    /// As in the pod's spec.
    pub name: String,
    /// What the runtime shows.
    pub status: ContainerStatus,
    /// What its annotations keep.
    pub kept: Kept,
    /// The termination message, or the runtime's text.
    pub message: String,
}

impl ObservedContainer {
    /// The container's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.status.info.id
    }

    /// What it does.
    #[must_use]
    pub fn state(&self) -> ContainerState {
        self.status.info.state
    }

    /// Whether its process has ended with an error.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.state() == ContainerState::Unknown
            || self.state() == ContainerState::Exited && self.status.exit_code != 0
    }
}

/// A pod as the runtime shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// Newest first.
    pub sandboxes: Vec<PodSandboxStatus>,
    /// Newest first.
    pub containers: Vec<ObservedContainer>,
}

impl Observed {
    /// Reads a pod's sandboxes and containers. Containers that are gone by the time they are asked for are left out.
    ///
    /// # Errors
    /// When the runtime cannot be asked.
    pub async fn read(runtime: &dyn ContainerRuntime, uid: &str) -> Result<Observed, RuntimeError> {
        let labels = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_owned())]);
        let filter = PodSandboxFilter { labels: labels.clone(), ..Default::default() };
        let mut observed = Observed::default();
        for sandbox in runtime.list_pod_sandboxes(filter).await? {
            match runtime.pod_sandbox_status(&sandbox.id).await {
                Ok(status) => observed.sandboxes.push(status),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        for info in runtime.list_containers(ContainerFilter { labels, ..Default::default() }).await? {
            match runtime.container_status(&info.id).await {
                Ok(status) => observed.containers.push(ObservedContainer {
                    name: labels::container_name(&status.info).to_owned(),
                    kept: labels::kept(&status.info.annotations),
                    message: status.message.clone(),
                    status,
                }),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        observed.sort();
        Ok(observed)
    }

    /// Newest first.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by_key(|s| std::cmp::Reverse((s.info.created_at_nanos, s.info.metadata.attempt)));
        self.containers.sort_by_key(|c| {
            std::cmp::Reverse((c.status.info.created_at_nanos, c.status.info.metadata.attempt))
        });
    }

    /// The newest container of a name.
    #[must_use]
    pub fn newest(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The newest run of a name that has ended.
    #[must_use]
    pub fn last_ended(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().find(|c| c.name == name && c.state() == ContainerState::Exited)
    }

    /// The containers that run, or of which nothing is known.
    pub fn alive(&self) -> impl Iterator<Item = &ObservedContainer> {
        self.containers.iter().filter(|c| {
            matches!(c.state(), ContainerState::Running | ContainerState::Unknown | ContainerState::Created)
        })
    }

    /// The newest sandbox, if containers can be created in it.
    #[must_use]
    pub fn ready_sandbox(&self) -> Option<&PodSandboxStatus> {
        self.sandboxes.first().filter(|s| s.info.state == PodSandboxState::Ready)
    }

    /// The pod's addresses, of the newest sandbox.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.ready_sandbox().map(|s| s.addresses.clone()).unwrap_or_default()
    }
}

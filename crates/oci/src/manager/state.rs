//! What the manager knows of sandboxes and containers: in files first, in memory for reading.
//!
//! Invariant: a record is written before the effect that it describes, and removed after everything that it names.

use crate::records::{self, ExitRecord, RunRecord};
use kaji_containers::{
    ContainerConfig, ContainerInfo, ContainerState, ContainerStatus, ContainerUser, ImageConfig,
    PodSandboxConfig, PodSandboxInfo, PodSandboxState, PodSandboxStatus,
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;

/// A sandbox, as its file has it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxRecord {
    /// Of the sandbox.
    pub id: String,
    /// As it was asked for.
    pub config: PodSandboxConfig,
    /// Nanoseconds since the epoch.
    pub created_at_nanos: i64,
    /// Whether containers can be created in it.
    pub state: PodSandboxState,
    /// Of the pod.
    pub addresses: Vec<IpAddr>,
    /// The bundle that holds the first process of a shared pid namespace.
    pub reaper: Option<String>,
}

/// A container, as its file has it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerRecord {
    /// Of the container.
    pub id: String,
    /// Of its sandbox.
    pub sandbox: String,
    /// As it was asked for; its resources as last set.
    pub config: ContainerConfig,
    /// Nanoseconds since the epoch.
    pub created_at_nanos: i64,
    /// Digest of its image's configuration.
    pub image_id: String,
    /// Of its image.
    pub image: ImageConfig,
    /// Owners of the leases on layers that it holds.
    pub leases: Vec<String>,
    /// Of the first process.
    pub user: ContainerUser,
    /// Absolute, or empty.
    pub log_path: String,
    /// It was asked to start: it is never started again.
    pub started: bool,
    /// It is the first process of a pid namespace, not one of the pod's containers.
    pub hidden: bool,
}

/// A container in memory.
#[derive(Debug)]
pub struct Container {
    /// As in the file.
    pub record: ContainerRecord,
    /// Once it runs.
    pub run: Option<RunRecord>,
    /// Once it has exited.
    pub exit: watch::Sender<Option<ExitRecord>>,
    /// Held by starting and removing.
    pub operation: Arc<tokio::sync::Mutex<()>>,
}

impl Container {
    /// A container that has just been created or found.
    pub fn new(record: ContainerRecord, run: Option<RunRecord>, exit: Option<ExitRecord>) -> Container {
        Container { record, run, exit: watch::Sender::new(exit), operation: Arc::default() }
    }

    /// What it does.
    pub fn state(&self) -> ContainerState {
        if self.exit.borrow().is_some() {
            ContainerState::Exited
        } else if self.run.is_some() {
            ContainerState::Running
        } else {
            ContainerState::Created
        }
    }

    /// For lists.
    pub fn info(&self) -> ContainerInfo {
        let record = &self.record;
        ContainerInfo {
            id: record.id.clone(),
            sandbox_id: record.sandbox.clone(),
            metadata: record.config.metadata.clone(),
            image: record.config.image.clone(),
            image_id: record.image_id.clone(),
            state: self.state(),
            created_at_nanos: record.created_at_nanos,
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
        }
    }

    /// All there is to know.
    pub fn status(&self) -> ContainerStatus {
        let exit = self.exit.borrow().clone();
        let record = &self.record;
        let started =
            self.run.as_ref().map(|run| run.started_at_nanos).or(exit.as_ref().map(|e| e.started_at_nanos));
        let ended = exit.unwrap_or_default();
        ContainerStatus {
            info: self.info(),
            started_at_nanos: started.unwrap_or_default(),
            finished_at_nanos: ended.finished_at_nanos,
            exit_code: ended.exit_code,
            image_ref: image_reference(record),
            reason: ended.reason,
            message: ended.message,
            mounts: record.config.mounts.clone(),
            log_path: record.log_path.clone(),
            resources: record.config.resources.clone(),
            user: Some(record.user.clone()),
            stop_signal: stop_signal_name(record).to_owned(),
            pid: match self.state() {
                ContainerState::Running => {
                    self.run.as_ref().and_then(|run| u32::try_from(run.pid).ok()).unwrap_or(0)
                }
                _ => 0,
            },
        }
    }
}

/// The configuration's, the image's, or SIGTERM.
pub fn stop_signal_name(record: &ContainerRecord) -> &str {
    let image = record.image.stop_signal.as_str();
    match record.config.stop_signal.as_deref() {
        Some(name) if !name.is_empty() => name,
        _ if !image.is_empty() => image,
        _ => "SIGTERM",
    }
}

/// What the kubelet named the image by, if that is a digest; otherwise the image's id.
fn image_reference(record: &ContainerRecord) -> String {
    let named = &record.config.image.image;
    if named.contains('@') { named.clone() } else { record.image_id.clone() }
}

/// The number of a signal: `SIGTERM`, `TERM`, `15`, `SIGRTMIN+3`.
pub fn signal_number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse() {
        return (1..=64).contains(&number).then_some(number);
    }
    let short = name.trim_start_matches("SIG");
    if let Some(offset) = short.strip_prefix("RTMIN") {
        let offset: i32 = if offset.is_empty() { 0 } else { offset.strip_prefix('+')?.parse().ok()? };
        return (0..=30).contains(&offset).then_some(34 + offset);
    }
    if let Some(offset) = short.strip_prefix("RTMAX") {
        let offset: i32 = if offset.is_empty() { 0 } else { offset.strip_prefix('-')?.parse().ok()? };
        return (0..=30).contains(&offset).then_some(64 - offset);
    }
    format!("SIG{short}").parse::<nix::sys::signal::Signal>().ok().map(|signal| signal as i32)
}

impl SandboxRecord {
    /// For lists.
    pub fn info(&self) -> PodSandboxInfo {
        PodSandboxInfo {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state,
            created_at_nanos: self.created_at_nanos,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.config.runtime_handler.clone(),
        }
    }

    /// All there is to know.
    pub fn status(&self, network_namespace: Option<String>) -> PodSandboxStatus {
        PodSandboxStatus {
            info: self.info(),
            addresses: self.addresses.clone(),
            network_namespace,
            security: self.config.security.clone(),
        }
    }
}

/// Where things are.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Below a state directory.
    pub fn new(root: &Path) -> Layout {
        Layout { root: root.to_owned() }
    }

    /// Of all sandboxes.
    pub fn sandboxes(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    /// Of all containers.
    pub fn containers(&self) -> PathBuf {
        self.root.join("containers")
    }

    /// Of a sandbox.
    pub fn sandbox(&self, id: &str) -> PathBuf {
        self.sandboxes().join(id)
    }

    /// The bundle of a container.
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.containers().join(id)
    }

    /// Where a namespace of a sandbox is pinned.
    pub fn namespace(&self, id: &str, name: &str) -> PathBuf {
        self.sandbox(id).join("ns").join(name)
    }

    /// Writes a sandbox's record.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save_sandbox(&self, record: &SandboxRecord) -> std::io::Result<()> {
        records::write(&self.sandbox(&record.id).join("sandbox.json"), record)
    }

    /// Writes a container's record.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save_container(&self, record: &ContainerRecord) -> std::io::Result<()> {
        records::write(&self.bundle(&record.id).join("container.json"), record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_signals() {
        let numbers = ["SIGTERM", "QUIT", "9", "SIGRTMIN+3", "RTMAX-1", "SIGNONE", "0", "SIGRTMIN+99"]
            .map(signal_number);
        assert_eq!(numbers, [Some(15), Some(3), Some(9), Some(37), Some(63), None, None, None]);
    }
}

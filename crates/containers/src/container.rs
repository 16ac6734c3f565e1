//! Containers: configuration, state and status.

use crate::image::ImageSpec;
use crate::resources::LinuxResources;
use crate::security::{ContainerSecurity, IdMapping};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Names a container within its sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerMetadata {
    /// As in the pod's spec.
    pub name: String,
    /// How many containers of this name came before.
    pub attempt: u32,
}

/// Which mounts that are made later are seen on the other side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountPropagation {
    /// None (`rprivate`).
    #[default]
    Private,
    /// The node's in the container (`rslave`).
    HostToContainer,
    /// Both ways (`rshared`).
    Bidirectional,
}

/// A volume in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Mount {
    /// Absolute.
    pub container_path: String,
    /// Absolute. The caller has resolved it and vouches for it; symbolic links in it are not followed by the backend.
    pub host_path: String,
    /// Mounted read-only.
    pub readonly: bool,
    /// The mounts below it too; fails where the kernel cannot. Only with `readonly`.
    pub recursive_read_only: bool,
    /// Which later mounts are seen.
    pub propagation: MountPropagation,
    /// Files are relabelled for SELinux.
    pub selinux_relabel: bool,
    /// For pods with a user namespace: an id-mapped mount.
    pub uid_mappings: Vec<IdMapping>,
    /// For pods with a user namespace: an id-mapped mount.
    pub gid_mappings: Vec<IdMapping>,
    /// Instead of `host_path`: the root of an image, read-only.
    pub image: Option<ImageSpec>,
    /// A directory within that image.
    pub image_sub_path: String,
}

/// A device node in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Device {
    /// Where it is seen.
    pub container_path: String,
    /// What it is.
    pub host_path: String,
    /// `rwm` or some of them.
    pub permissions: String,
}

/// What a container is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerConfig {
    /// Its name.
    pub metadata: ContainerMetadata,
    /// What its root file system is made of.
    pub image: ImageSpec,
    /// Replaces the image's entry point, and its arguments, unless empty.
    pub command: Vec<String>,
    /// Replaces the image's arguments unless empty.
    pub args: Vec<String>,
    /// The image's without it.
    pub working_dir: String,
    /// Added to the image's, in order.
    pub envs: Vec<(String, String)>,
    /// Volumes, in order.
    pub mounts: Vec<Mount>,
    /// Device nodes.
    pub devices: Vec<Device>,
    /// CDI devices by their qualified names.
    pub cdi_devices: Vec<String>,
    /// For lists.
    pub labels: BTreeMap<String, String>,
    /// Kept and shown, not interpreted.
    pub annotations: BTreeMap<String, String>,
    /// Log file, relative to the sandbox's log directory. In CRI's format: time, stream, `P` or `F`, text.
    pub log_path: String,
    /// Standard input is kept open for those that attach.
    pub stdin: bool,
    /// It is closed after the first one that attached has gone.
    pub stdin_once: bool,
    /// The container has a terminal.
    pub tty: bool,
    /// Cgroup limits.
    pub resources: LinuxResources,
    /// Users, capabilities, profiles.
    pub security: ContainerSecurity,
    /// `SIGTERM` and the like; the image's, or SIGTERM, without it.
    pub stop_signal: Option<String>,
}

/// What a container does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    /// Not started yet.
    Created,
    /// Its process runs.
    Running,
    /// Its process has exited, or could not be executed.
    Exited,
    /// The backend cannot tell.
    #[default]
    Unknown,
}

/// Which containers to list: those for which all that is set holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerFilter {
    /// Exactly this one.
    pub id: Option<String>,
    /// In this state.
    pub state: Option<ContainerState>,
    /// In this sandbox.
    pub sandbox_id: Option<String>,
    /// With all of these labels.
    pub labels: BTreeMap<String, String>,
}

/// A container in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerInfo {
    /// Made by the backend.
    pub id: String,
    /// Of the sandbox.
    pub sandbox_id: String,
    /// Its name.
    pub metadata: ContainerMetadata,
    /// As configured.
    pub image: ImageSpec,
    /// The image's id, a digest of its configuration.
    pub image_id: String,
    /// What it does.
    pub state: ContainerState,
    /// Nanoseconds since the epoch.
    pub created_at_nanos: i64,
    /// As configured.
    pub labels: BTreeMap<String, String>,
    /// As configured.
    pub annotations: BTreeMap<String, String>,
}

/// The user that a container's first process was started as.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerUser {
    /// User id.
    pub uid: i64,
    /// Group id.
    pub gid: i64,
    /// Further groups.
    pub supplemental_groups: Vec<i64>,
}

/// All there is to know of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerStatus {
    /// What lists show.
    pub info: ContainerInfo,
    /// Nanoseconds since the epoch; 0 if it was not started.
    pub started_at_nanos: i64,
    /// Nanoseconds since the epoch; 0 while it runs.
    pub finished_at_nanos: i64,
    /// 128 plus the number of the signal that ended it.
    pub exit_code: i32,
    /// Repository and digest, as a pod's `imageID` shows it.
    pub image_ref: String,
    /// `Completed`, `Error`, `OOMKilled`, `ContainerCannotRun`, `StartError`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// As configured.
    pub mounts: Vec<Mount>,
    /// Absolute.
    pub log_path: String,
    /// As last set.
    pub resources: LinuxResources,
    /// The user of the first process, once it was created.
    pub user: Option<ContainerUser>,
    /// The signal by which it is stopped.
    pub stop_signal: String,
    /// Process id of its first process on the node, while it runs; 0 for backends that do not tell.
    pub pid: u32,
}

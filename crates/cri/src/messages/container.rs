//! Containers.

use super::image::ImageSpec;
use super::sandbox::PodSandboxConfig;
use super::security::IdMapping;
use super::security::LinuxContainerResources;
use super::security::LinuxContainerSecurityContext;
use prost::Message;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Message)]
pub struct ContainerMetadata {
    #[prost(string, tag = 1)]
    pub name: String,
    #[prost(uint32, tag = 2)]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(string, tag = 1)]
    pub key: String,
    #[prost(bytes = "vec", tag = 2)]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Mount {
    #[prost(string, tag = 1)]
    pub container_path: String,
    #[prost(string, tag = 2)]
    pub host_path: String,
    #[prost(bool, tag = 3)]
    pub readonly: bool,
    #[prost(bool, tag = 4)]
    pub selinux_relabel: bool,
    #[prost(int32, tag = 5)]
    pub propagation: i32,
    #[prost(message, repeated, tag = 6)]
    pub uid_mappings: Vec<IdMapping>,
    #[prost(message, repeated, tag = 7)]
    pub gid_mappings: Vec<IdMapping>,
    #[prost(bool, tag = 8)]
    pub recursive_read_only: bool,
    #[prost(message, optional, tag = 9)]
    pub image: Option<ImageSpec>,
    #[prost(string, tag = 10)]
    pub image_sub_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Device {
    #[prost(string, tag = 1)]
    pub container_path: String,
    #[prost(string, tag = 2)]
    pub host_path: String,
    #[prost(string, tag = 3)]
    pub permissions: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct CdiDevice {
    #[prost(string, tag = 1)]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainerConfig {
    #[prost(message, optional, tag = 1)]
    pub resources: Option<LinuxContainerResources>,
    #[prost(message, optional, tag = 2)]
    pub security_context: Option<LinuxContainerSecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerConfig {
    #[prost(message, optional, tag = 1)]
    pub metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = 2)]
    pub image: Option<ImageSpec>,
    #[prost(string, repeated, tag = 3)]
    pub command: Vec<String>,
    #[prost(string, repeated, tag = 4)]
    pub args: Vec<String>,
    #[prost(string, tag = 5)]
    pub working_dir: String,
    #[prost(message, repeated, tag = 6)]
    pub envs: Vec<KeyValue>,
    #[prost(message, repeated, tag = 7)]
    pub mounts: Vec<Mount>,
    #[prost(message, repeated, tag = 8)]
    pub devices: Vec<Device>,
    #[prost(btree_map = "string, string", tag = 9)]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = 10)]
    pub annotations: BTreeMap<String, String>,
    #[prost(string, tag = 11)]
    pub log_path: String,
    #[prost(bool, tag = 12)]
    pub stdin: bool,
    #[prost(bool, tag = 13)]
    pub stdin_once: bool,
    #[prost(bool, tag = 14)]
    pub tty: bool,
    #[prost(message, optional, tag = 15)]
    pub linux: Option<LinuxContainerConfig>,
    #[prost(message, repeated, tag = 17)]
    pub cdi_devices: Vec<CdiDevice>,
    #[prost(int32, tag = 18)]
    pub stop_signal: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct CreateContainerRequest {
    #[prost(string, tag = 1)]
    pub pod_sandbox_id: String,
    #[prost(message, optional, tag = 2)]
    pub config: Option<ContainerConfig>,
    #[prost(message, optional, tag = 3)]
    pub sandbox_config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CreateContainerResponse {
    #[prost(string, tag = 1)]
    pub container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StartContainerRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StartContainerResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct StopContainerRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
    #[prost(int64, tag = 2)]
    pub timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct StopContainerResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct RemoveContainerRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RemoveContainerResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStateValue {
    #[prost(int32, tag = 1)]
    pub state: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerFilter {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(message, optional, tag = 2)]
    pub state: Option<ContainerStateValue>,
    #[prost(string, tag = 3)]
    pub pod_sandbox_id: String,
    #[prost(btree_map = "string, string", tag = 4)]
    pub label_selector: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListContainersRequest {
    #[prost(message, optional, tag = 1)]
    pub filter: Option<ContainerFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(string, tag = 2)]
    pub pod_sandbox_id: String,
    #[prost(message, optional, tag = 3)]
    pub metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = 4)]
    pub image: Option<ImageSpec>,
    #[prost(string, tag = 5)]
    pub image_ref: String,
    #[prost(int32, tag = 6)]
    pub state: i32,
    #[prost(int64, tag = 7)]
    pub created_at: i64,
    #[prost(btree_map = "string, string", tag = 8)]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = 9)]
    pub annotations: BTreeMap<String, String>,
    #[prost(string, tag = 10)]
    pub image_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListContainersResponse {
    #[prost(message, repeated, tag = 1)]
    pub containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatusRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
    #[prost(bool, tag = 2)]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatusResponse {
    #[prost(message, optional, tag = 1)]
    pub status: Option<ContainerStatus>,
    #[prost(btree_map = "string, string", tag = 2)]
    pub info: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatus {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(message, optional, tag = 2)]
    pub metadata: Option<ContainerMetadata>,
    #[prost(int32, tag = 3)]
    pub state: i32,
    #[prost(int64, tag = 4)]
    pub created_at: i64,
    #[prost(int64, tag = 5)]
    pub started_at: i64,
    #[prost(int64, tag = 6)]
    pub finished_at: i64,
    #[prost(int32, tag = 7)]
    pub exit_code: i32,
    #[prost(message, optional, tag = 8)]
    pub image: Option<ImageSpec>,
    #[prost(string, tag = 9)]
    pub image_ref: String,
    #[prost(string, tag = 10)]
    pub reason: String,
    #[prost(string, tag = 11)]
    pub message: String,
    #[prost(btree_map = "string, string", tag = 12)]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = 13)]
    pub annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = 14)]
    pub mounts: Vec<Mount>,
    #[prost(string, tag = 15)]
    pub log_path: String,
    #[prost(message, optional, tag = 16)]
    pub resources: Option<ContainerResources>,
    #[prost(string, tag = 17)]
    pub image_id: String,
    #[prost(message, optional, tag = 18)]
    pub user: Option<ContainerUser>,
    #[prost(int32, tag = 19)]
    pub stop_signal: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerResources {
    #[prost(message, optional, tag = 1)]
    pub linux: Option<LinuxContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerUser {
    #[prost(message, optional, tag = 1)]
    pub linux: Option<LinuxContainerUser>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainerUser {
    #[prost(int64, tag = 1)]
    pub uid: i64,
    #[prost(int64, tag = 2)]
    pub gid: i64,
    #[prost(int64, repeated, tag = 3)]
    pub supplemental_groups: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UpdateContainerResourcesRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
    #[prost(message, optional, tag = 2)]
    pub linux: Option<LinuxContainerResources>,
    #[prost(btree_map = "string, string", tag = 4)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UpdateContainerResourcesResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct CheckpointContainerRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
    #[prost(string, tag = 2)]
    pub location: String,
    #[prost(int64, tag = 3)]
    pub timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct CheckpointContainerResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct ReopenContainerLogRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReopenContainerLogResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct ExecSyncRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
    #[prost(string, repeated, tag = 2)]
    pub cmd: Vec<String>,
    #[prost(int64, tag = 3)]
    pub timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecSyncResponse {
    #[prost(bytes = "vec", tag = 1)]
    pub stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = 2)]
    pub stderr: Vec<u8>,
    #[prost(int32, tag = 3)]
    pub exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
    #[prost(string, repeated, tag = 2)]
    pub cmd: Vec<String>,
    #[prost(bool, tag = 3)]
    pub tty: bool,
    #[prost(bool, tag = 4)]
    pub stdin: bool,
    #[prost(bool, tag = 5)]
    pub stdout: bool,
    #[prost(bool, tag = 6)]
    pub stderr: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecResponse {
    #[prost(string, tag = 1)]
    pub url: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AttachRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
    #[prost(bool, tag = 2)]
    pub stdin: bool,
    #[prost(bool, tag = 3)]
    pub tty: bool,
    #[prost(bool, tag = 4)]
    pub stdout: bool,
    #[prost(bool, tag = 5)]
    pub stderr: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct AttachResponse {
    #[prost(string, tag = 1)]
    pub url: String,
}

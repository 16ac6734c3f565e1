//! The runtime itself: its version, condition and configuration, and its events.

use super::container::ContainerStatus;
use super::sandbox::PodSandboxStatus;
use prost::Message;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Message)]
pub struct VersionRequest {
    #[prost(string, tag = 1)]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct VersionResponse {
    #[prost(string, tag = 1)]
    pub version: String,
    #[prost(string, tag = 2)]
    pub runtime_name: String,
    #[prost(string, tag = 3)]
    pub runtime_version: String,
    #[prost(string, tag = 4)]
    pub runtime_api_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {
    #[prost(bool, tag = 1)]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    #[prost(message, optional, tag = 1)]
    pub status: Option<RuntimeStatus>,
    #[prost(btree_map = "string, string", tag = 2)]
    pub info: BTreeMap<String, String>,
    #[prost(message, repeated, tag = 3)]
    pub runtime_handlers: Vec<RuntimeHandler>,
    #[prost(message, optional, tag = 4)]
    pub features: Option<RuntimeFeatures>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeStatus {
    #[prost(message, repeated, tag = 1)]
    pub conditions: Vec<RuntimeCondition>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeCondition {
    #[prost(string, tag = 1)]
    pub kind: String,
    #[prost(bool, tag = 2)]
    pub status: bool,
    #[prost(string, tag = 3)]
    pub reason: String,
    #[prost(string, tag = 4)]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeHandler {
    #[prost(string, tag = 1)]
    pub name: String,
    #[prost(message, optional, tag = 2)]
    pub features: Option<RuntimeHandlerFeatures>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeHandlerFeatures {
    #[prost(bool, tag = 1)]
    pub recursive_read_only_mounts: bool,
    #[prost(bool, tag = 2)]
    pub user_namespaces: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeFeatures {
    #[prost(bool, tag = 1)]
    pub supplemental_groups_policy: bool,
    #[prost(bool, tag = 2)]
    pub user_namespaces_host_network: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeConfigRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeConfigResponse {
    #[prost(message, optional, tag = 1)]
    pub linux: Option<LinuxRuntimeConfiguration>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxRuntimeConfiguration {
    #[prost(int32, tag = 1)]
    pub cgroup_driver: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct UpdateRuntimeConfigRequest {
    #[prost(message, optional, tag = 1)]
    pub runtime_config: Option<RuntimeConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UpdateRuntimeConfigResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeConfig {
    #[prost(message, optional, tag = 1)]
    pub network_config: Option<NetworkConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NetworkConfig {
    #[prost(string, tag = 1)]
    pub pod_cidr: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetEventsRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerEventResponse {
    #[prost(string, tag = 1)]
    pub container_id: String,
    #[prost(int32, tag = 2)]
    pub container_event_type: i32,
    #[prost(int64, tag = 3)]
    pub created_at: i64,
    #[prost(message, optional, tag = 4)]
    pub pod_sandbox_status: Option<PodSandboxStatus>,
    #[prost(message, repeated, tag = 5)]
    pub containers_statuses: Vec<ContainerStatus>,
}

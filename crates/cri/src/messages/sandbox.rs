//! Sandboxes.

use super::container::ContainerStatus;
use super::security::LinuxContainerResources;
use super::security::LinuxSandboxSecurityContext;
use super::security::NamespaceOption;
use prost::Message;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Message)]
pub struct DnsConfig {
    #[prost(string, repeated, tag = 1)]
    pub servers: Vec<String>,
    #[prost(string, repeated, tag = 2)]
    pub searches: Vec<String>,
    #[prost(string, repeated, tag = 3)]
    pub options: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PortMapping {
    #[prost(int32, tag = 1)]
    pub protocol: i32,
    #[prost(int32, tag = 2)]
    pub container_port: i32,
    #[prost(int32, tag = 3)]
    pub host_port: i32,
    #[prost(string, tag = 4)]
    pub host_ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandboxConfig {
    #[prost(string, tag = 1)]
    pub cgroup_parent: String,
    #[prost(message, optional, tag = 2)]
    pub security_context: Option<LinuxSandboxSecurityContext>,
    #[prost(btree_map = "string, string", tag = 3)]
    pub sysctls: BTreeMap<String, String>,
    #[prost(message, optional, tag = 4)]
    pub overhead: Option<LinuxContainerResources>,
    #[prost(message, optional, tag = 5)]
    pub resources: Option<LinuxContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxMetadata {
    #[prost(string, tag = 1)]
    pub name: String,
    #[prost(string, tag = 2)]
    pub uid: String,
    #[prost(string, tag = 3)]
    pub namespace: String,
    #[prost(uint32, tag = 4)]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxConfig {
    #[prost(message, optional, tag = 1)]
    pub metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = 2)]
    pub hostname: String,
    #[prost(string, tag = 3)]
    pub log_directory: String,
    #[prost(message, optional, tag = 4)]
    pub dns_config: Option<DnsConfig>,
    #[prost(message, repeated, tag = 5)]
    pub port_mappings: Vec<PortMapping>,
    #[prost(btree_map = "string, string", tag = 6)]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = 7)]
    pub annotations: BTreeMap<String, String>,
    #[prost(message, optional, tag = 8)]
    pub linux: Option<LinuxPodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RunPodSandboxRequest {
    #[prost(message, optional, tag = 1)]
    pub config: Option<PodSandboxConfig>,
    #[prost(string, tag = 2)]
    pub runtime_handler: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RunPodSandboxResponse {
    #[prost(string, tag = 1)]
    pub pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StopPodSandboxRequest {
    #[prost(string, tag = 1)]
    pub pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StopPodSandboxResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct RemovePodSandboxRequest {
    #[prost(string, tag = 1)]
    pub pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RemovePodSandboxResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatusRequest {
    #[prost(string, tag = 1)]
    pub pod_sandbox_id: String,
    #[prost(bool, tag = 2)]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = 1)]
    pub status: Option<PodSandboxStatus>,
    #[prost(btree_map = "string, string", tag = 2)]
    pub info: BTreeMap<String, String>,
    #[prost(message, repeated, tag = 3)]
    pub containers_statuses: Vec<ContainerStatus>,
    #[prost(int64, tag = 4)]
    pub timestamp: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatus {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(message, optional, tag = 2)]
    pub metadata: Option<PodSandboxMetadata>,
    #[prost(int32, tag = 3)]
    pub state: i32,
    #[prost(int64, tag = 4)]
    pub created_at: i64,
    #[prost(message, optional, tag = 5)]
    pub network: Option<PodSandboxNetworkStatus>,
    #[prost(message, optional, tag = 6)]
    pub linux: Option<LinuxPodSandboxStatus>,
    #[prost(btree_map = "string, string", tag = 7)]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = 8)]
    pub annotations: BTreeMap<String, String>,
    #[prost(string, tag = 9)]
    pub runtime_handler: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxNetworkStatus {
    #[prost(string, tag = 1)]
    pub ip: String,
    #[prost(message, repeated, tag = 2)]
    pub additional_ips: Vec<PodIp>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodIp {
    #[prost(string, tag = 1)]
    pub ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandboxStatus {
    #[prost(message, optional, tag = 1)]
    pub namespaces: Option<Namespace>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Namespace {
    #[prost(message, optional, tag = 2)]
    pub options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStateValue {
    #[prost(int32, tag = 1)]
    pub state: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxFilter {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(message, optional, tag = 2)]
    pub state: Option<PodSandboxStateValue>,
    #[prost(btree_map = "string, string", tag = 3)]
    pub label_selector: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListPodSandboxRequest {
    #[prost(message, optional, tag = 1)]
    pub filter: Option<PodSandboxFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandbox {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(message, optional, tag = 2)]
    pub metadata: Option<PodSandboxMetadata>,
    #[prost(int32, tag = 3)]
    pub state: i32,
    #[prost(int64, tag = 4)]
    pub created_at: i64,
    #[prost(btree_map = "string, string", tag = 5)]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = 6)]
    pub annotations: BTreeMap<String, String>,
    #[prost(string, tag = 7)]
    pub runtime_handler: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = 1)]
    pub items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UpdatePodSandboxResourcesRequest {
    #[prost(string, tag = 1)]
    pub pod_sandbox_id: String,
    #[prost(message, optional, tag = 2)]
    pub overhead: Option<LinuxContainerResources>,
    #[prost(message, optional, tag = 3)]
    pub resources: Option<LinuxContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UpdatePodSandboxResourcesResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct PortForwardRequest {
    #[prost(string, tag = 1)]
    pub pod_sandbox_id: String,
    #[prost(int32, repeated, tag = 2)]
    pub port: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PortForwardResponse {
    #[prost(string, tag = 1)]
    pub url: String,
}

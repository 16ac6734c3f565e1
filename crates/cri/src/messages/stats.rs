//! What sandboxes and containers use.

use super::container::ContainerMetadata;
use super::sandbox::PodSandboxMetadata;
use prost::Message;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Message)]
pub struct Uint64Value {
    #[prost(uint64, tag = 1)]
    pub value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatsRequest {
    #[prost(string, tag = 1)]
    pub container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatsResponse {
    #[prost(message, optional, tag = 1)]
    pub stats: Option<ContainerStats>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStats {
    #[prost(message, optional, tag = 1)]
    pub attributes: Option<ContainerAttributes>,
    #[prost(message, optional, tag = 2)]
    pub cpu: Option<CpuUsage>,
    #[prost(message, optional, tag = 3)]
    pub memory: Option<MemoryUsage>,
    #[prost(message, optional, tag = 4)]
    pub writable_layer: Option<FilesystemUsage>,
    #[prost(message, optional, tag = 5)]
    pub swap: Option<SwapUsage>,
    #[prost(message, optional, tag = 6)]
    pub io: Option<IoUsage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerAttributes {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(message, optional, tag = 2)]
    pub metadata: Option<ContainerMetadata>,
    #[prost(btree_map = "string, string", tag = 3)]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = 4)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CpuUsage {
    #[prost(int64, tag = 1)]
    pub timestamp: i64,
    #[prost(message, optional, tag = 2)]
    pub usage_core_nano_seconds: Option<Uint64Value>,
    #[prost(message, optional, tag = 3)]
    pub usage_nano_cores: Option<Uint64Value>,
    #[prost(message, optional, tag = 4)]
    pub psi: Option<PsiStats>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MemoryUsage {
    #[prost(int64, tag = 1)]
    pub timestamp: i64,
    #[prost(message, optional, tag = 2)]
    pub working_set_bytes: Option<Uint64Value>,
    #[prost(message, optional, tag = 3)]
    pub available_bytes: Option<Uint64Value>,
    #[prost(message, optional, tag = 4)]
    pub usage_bytes: Option<Uint64Value>,
    #[prost(message, optional, tag = 5)]
    pub rss_bytes: Option<Uint64Value>,
    #[prost(message, optional, tag = 6)]
    pub page_faults: Option<Uint64Value>,
    #[prost(message, optional, tag = 7)]
    pub major_page_faults: Option<Uint64Value>,
    #[prost(message, optional, tag = 8)]
    pub psi: Option<PsiStats>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SwapUsage {
    #[prost(int64, tag = 1)]
    pub timestamp: i64,
    #[prost(message, optional, tag = 2)]
    pub swap_available_bytes: Option<Uint64Value>,
    #[prost(message, optional, tag = 3)]
    pub swap_usage_bytes: Option<Uint64Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct IoUsage {
    #[prost(int64, tag = 1)]
    pub timestamp: i64,
    #[prost(message, optional, tag = 2)]
    pub psi: Option<PsiStats>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PsiStats {
    #[prost(message, optional, tag = 1)]
    pub full: Option<PsiData>,
    #[prost(message, optional, tag = 2)]
    pub some: Option<PsiData>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PsiData {
    #[prost(uint64, tag = 1)]
    pub total: u64,
    #[prost(double, tag = 2)]
    pub avg10: f64,
    #[prost(double, tag = 3)]
    pub avg60: f64,
    #[prost(double, tag = 4)]
    pub avg300: f64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListContainerStatsRequest {
    #[prost(message, optional, tag = 1)]
    pub filter: Option<ContainerStatsFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatsFilter {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(string, tag = 2)]
    pub pod_sandbox_id: String,
    #[prost(btree_map = "string, string", tag = 3)]
    pub label_selector: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListContainerStatsResponse {
    #[prost(message, repeated, tag = 1)]
    pub stats: Vec<ContainerStats>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListPodSandboxStatsRequest {
    #[prost(message, optional, tag = 1)]
    pub filter: Option<PodSandboxStatsFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatsFilter {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(btree_map = "string, string", tag = 2)]
    pub label_selector: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListPodSandboxStatsResponse {
    #[prost(message, repeated, tag = 1)]
    pub stats: Vec<PodSandboxStats>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStats {
    #[prost(message, optional, tag = 1)]
    pub attributes: Option<PodSandboxAttributes>,
    #[prost(message, optional, tag = 2)]
    pub linux: Option<LinuxPodSandboxStats>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxAttributes {
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(message, optional, tag = 2)]
    pub metadata: Option<PodSandboxMetadata>,
    #[prost(btree_map = "string, string", tag = 3)]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = 4)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandboxStats {
    #[prost(message, optional, tag = 1)]
    pub cpu: Option<CpuUsage>,
    #[prost(message, optional, tag = 2)]
    pub memory: Option<MemoryUsage>,
    #[prost(message, optional, tag = 3)]
    pub network: Option<NetworkUsage>,
    #[prost(message, optional, tag = 4)]
    pub process: Option<ProcessUsage>,
    #[prost(message, repeated, tag = 5)]
    pub containers: Vec<ContainerStats>,
    #[prost(message, optional, tag = 6)]
    pub io: Option<IoUsage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NetworkUsage {
    #[prost(int64, tag = 1)]
    pub timestamp: i64,
    #[prost(message, optional, tag = 2)]
    pub default_interface: Option<NetworkInterfaceUsage>,
    #[prost(message, repeated, tag = 3)]
    pub interfaces: Vec<NetworkInterfaceUsage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NetworkInterfaceUsage {
    #[prost(string, tag = 1)]
    pub name: String,
    #[prost(message, optional, tag = 2)]
    pub rx_bytes: Option<Uint64Value>,
    #[prost(message, optional, tag = 3)]
    pub rx_errors: Option<Uint64Value>,
    #[prost(message, optional, tag = 4)]
    pub tx_bytes: Option<Uint64Value>,
    #[prost(message, optional, tag = 5)]
    pub tx_errors: Option<Uint64Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ProcessUsage {
    #[prost(int64, tag = 1)]
    pub timestamp: i64,
    #[prost(message, optional, tag = 2)]
    pub process_count: Option<Uint64Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FilesystemUsage {
    #[prost(int64, tag = 1)]
    pub timestamp: i64,
    #[prost(message, optional, tag = 2)]
    pub fs_id: Option<FilesystemIdentifier>,
    #[prost(message, optional, tag = 3)]
    pub used_bytes: Option<Uint64Value>,
    #[prost(message, optional, tag = 4)]
    pub inodes_used: Option<Uint64Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FilesystemIdentifier {
    #[prost(string, tag = 1)]
    pub mountpoint: String,
}

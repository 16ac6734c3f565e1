//! Namespaces, users, capabilities, profiles and limits.

use prost::Message;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Message)]
pub struct IdMapping {
    #[prost(uint32, tag = 1)]
    pub host_id: u32,
    #[prost(uint32, tag = 2)]
    pub container_id: u32,
    #[prost(uint32, tag = 3)]
    pub length: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct UserNamespace {
    #[prost(int32, tag = 1)]
    pub mode: i32,
    #[prost(message, repeated, tag = 2)]
    pub uids: Vec<IdMapping>,
    #[prost(message, repeated, tag = 3)]
    pub gids: Vec<IdMapping>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NamespaceOption {
    #[prost(int32, tag = 1)]
    pub network: i32,
    #[prost(int32, tag = 2)]
    pub pid: i32,
    #[prost(int32, tag = 3)]
    pub ipc: i32,
    #[prost(string, tag = 4)]
    pub target_id: String,
    #[prost(message, optional, tag = 5)]
    pub userns_options: Option<UserNamespace>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Int64Value {
    #[prost(int64, tag = 1)]
    pub value: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct SecurityProfile {
    #[prost(int32, tag = 1)]
    pub profile_type: i32,
    #[prost(string, tag = 2)]
    pub localhost_ref: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxSandboxSecurityContext {
    #[prost(message, optional, tag = 1)]
    pub namespace_options: Option<NamespaceOption>,
    #[prost(message, optional, tag = 2)]
    pub selinux_options: Option<SeLinuxOption>,
    #[prost(message, optional, tag = 3)]
    pub run_as_user: Option<Int64Value>,
    #[prost(message, optional, tag = 8)]
    pub run_as_group: Option<Int64Value>,
    #[prost(bool, tag = 4)]
    pub readonly_rootfs: bool,
    #[prost(int64, repeated, tag = 5)]
    pub supplemental_groups: Vec<i64>,
    #[prost(int32, tag = 11)]
    pub supplemental_groups_policy: i32,
    #[prost(bool, tag = 6)]
    pub privileged: bool,
    #[prost(message, optional, tag = 9)]
    pub seccomp: Option<SecurityProfile>,
    #[prost(message, optional, tag = 10)]
    pub apparmor: Option<SecurityProfile>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainerSecurityContext {
    #[prost(message, optional, tag = 1)]
    pub capabilities: Option<Capability>,
    #[prost(bool, tag = 2)]
    pub privileged: bool,
    #[prost(message, optional, tag = 3)]
    pub namespace_options: Option<NamespaceOption>,
    #[prost(message, optional, tag = 4)]
    pub selinux_options: Option<SeLinuxOption>,
    #[prost(message, optional, tag = 5)]
    pub run_as_user: Option<Int64Value>,
    #[prost(message, optional, tag = 12)]
    pub run_as_group: Option<Int64Value>,
    #[prost(string, tag = 6)]
    pub run_as_username: String,
    #[prost(bool, tag = 7)]
    pub readonly_rootfs: bool,
    #[prost(int64, repeated, tag = 8)]
    pub supplemental_groups: Vec<i64>,
    #[prost(int32, tag = 17)]
    pub supplemental_groups_policy: i32,
    #[prost(bool, tag = 11)]
    pub no_new_privs: bool,
    #[prost(string, repeated, tag = 13)]
    pub masked_paths: Vec<String>,
    #[prost(string, repeated, tag = 14)]
    pub readonly_paths: Vec<String>,
    #[prost(message, optional, tag = 15)]
    pub seccomp: Option<SecurityProfile>,
    #[prost(message, optional, tag = 16)]
    pub apparmor: Option<SecurityProfile>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SeLinuxOption {
    #[prost(string, tag = 1)]
    pub user: String,
    #[prost(string, tag = 2)]
    pub role: String,
    #[prost(string, tag = 3)]
    pub kind: String,
    #[prost(string, tag = 4)]
    pub level: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Capability {
    #[prost(string, repeated, tag = 1)]
    pub add_capabilities: Vec<String>,
    #[prost(string, repeated, tag = 2)]
    pub drop_capabilities: Vec<String>,
    #[prost(string, repeated, tag = 3)]
    pub add_ambient_capabilities: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainerResources {
    #[prost(int64, tag = 1)]
    pub cpu_period: i64,
    #[prost(int64, tag = 2)]
    pub cpu_quota: i64,
    #[prost(int64, tag = 3)]
    pub cpu_shares: i64,
    #[prost(int64, tag = 4)]
    pub memory_limit_in_bytes: i64,
    #[prost(int64, tag = 5)]
    pub oom_score_adj: i64,
    #[prost(string, tag = 6)]
    pub cpuset_cpus: String,
    #[prost(string, tag = 7)]
    pub cpuset_mems: String,
    #[prost(message, repeated, tag = 8)]
    pub hugepage_limits: Vec<HugepageLimit>,
    #[prost(btree_map = "string, string", tag = 9)]
    pub unified: BTreeMap<String, String>,
    #[prost(int64, tag = 10)]
    pub memory_swap_limit_in_bytes: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct HugepageLimit {
    #[prost(string, tag = 1)]
    pub page_size: String,
    #[prost(uint64, tag = 2)]
    pub limit: u64,
}

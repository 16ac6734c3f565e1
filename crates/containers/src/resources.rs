//! Limits of cgroups.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Limits of a container or of a pod. `None` or 0 leaves the kernel's default, or in an update what is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LinuxResources {
    /// Microseconds.
    pub cpu_period: u64,
    /// Microseconds in each period; -1 for no limit.
    pub cpu_quota: i64,
    /// Relative weight, 2 to 262144, as cgroup v1 has it; backends convert it for v2.
    pub cpu_shares: u64,
    /// Bytes; -1 for no limit.
    pub memory_limit_bytes: i64,
    /// Bytes of memory and swap; -1 for no limit.
    pub memory_swap_limit_bytes: i64,
    /// -1000 to 1000.
    pub oom_score_adj: Option<i64>,
    /// List of processors, `0-3,7`.
    pub cpuset_cpus: String,
    /// List of memory nodes.
    pub cpuset_mems: String,
    /// One limit a page size.
    pub hugepage_limits: Vec<HugepageLimit>,
    /// Files of cgroup v2 and their contents, `memory.high` for example.
    pub unified: BTreeMap<String, String>,
    /// Processes; `None` for no limit.
    pub pids_limit: Option<i64>,
}

/// A limit of huge pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HugepageLimit {
    /// `2MB`, `1GB`.
    pub page_size: String,
    /// Bytes.
    pub limit: u64,
}

/// A change of a container's limits while it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceUpdate {
    /// What to set.
    pub resources: LinuxResources,
    /// Annotations that go with it.
    pub annotations: BTreeMap<String, String>,
}

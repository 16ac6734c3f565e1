//! Namespaces, users, profiles and limits.

use crate::messages as cri;
use kaji_containers::{
    Capabilities, ContainerSecurity, HugepageLimit, IdMapping, LinuxResources, NamespaceMode,
    NamespaceOptions, SandboxSecurity, SeLinuxOptions, SecurityProfile, SupplementalGroupsPolicy,
    UserNamespace,
};

numbers!(
    namespace_mode, namespace_mode_of, NamespaceMode,
    [0 => NamespaceMode::Pod, 1 => NamespaceMode::Container, 2 => NamespaceMode::Node, 3 => NamespaceMode::Target],
    else NamespaceMode::Pod
);
numbers!(
    groups_policy, groups_policy_of, SupplementalGroupsPolicy,
    [0 => SupplementalGroupsPolicy::Merge, 1 => SupplementalGroupsPolicy::Strict],
    else SupplementalGroupsPolicy::Merge
);

fn int(value: Option<i64>) -> Option<cri::Int64Value> {
    value.map(|value| cri::Int64Value { value })
}

pub(crate) fn id_mappings(mappings: &[IdMapping]) -> Vec<cri::IdMapping> {
    let of =
        |m: &IdMapping| cri::IdMapping { host_id: m.host_id, container_id: m.container_id, length: m.length };
    mappings.iter().map(of).collect()
}

pub(crate) fn id_mappings_of(mappings: &[cri::IdMapping]) -> Vec<IdMapping> {
    let of =
        |m: &cri::IdMapping| IdMapping { host_id: m.host_id, container_id: m.container_id, length: m.length };
    mappings.iter().map(of).collect()
}

/// A pod without a user namespace of its own is in the node's, which has to be said.
pub(crate) fn namespaces(options: &NamespaceOptions) -> cri::NamespaceOption {
    let user = match &options.user {
        None => cri::UserNamespace { mode: namespace_mode(NamespaceMode::Node), ..Default::default() },
        Some(user) => cri::UserNamespace {
            mode: namespace_mode(NamespaceMode::Pod),
            uids: id_mappings(&user.uids),
            gids: id_mappings(&user.gids),
        },
    };
    cri::NamespaceOption {
        network: namespace_mode(options.network),
        pid: namespace_mode(options.pid),
        ipc: namespace_mode(options.ipc),
        target_id: options.target.clone(),
        userns_options: Some(user),
    }
}

pub(crate) fn namespaces_of(options: &cri::NamespaceOption) -> NamespaceOptions {
    let pod = namespace_mode(NamespaceMode::Pod);
    // A runtime that does not know user namespaces shows one without ids.
    let user = options.userns_options.as_ref().filter(|user| user.mode == pod && !user.uids.is_empty());
    NamespaceOptions {
        network: namespace_mode_of(options.network),
        pid: namespace_mode_of(options.pid),
        ipc: namespace_mode_of(options.ipc),
        target: options.target_id.clone(),
        user: user
            .map(|user| UserNamespace { uids: id_mappings_of(&user.uids), gids: id_mappings_of(&user.gids) }),
    }
}

fn selinux(options: Option<&SeLinuxOptions>) -> Option<cri::SeLinuxOption> {
    options.map(|o| cri::SeLinuxOption {
        user: o.user.clone(),
        role: o.role.clone(),
        kind: o.kind.clone(),
        level: o.level.clone(),
    })
}

fn profile(profile: &SecurityProfile) -> cri::SecurityProfile {
    let (profile_type, localhost_ref) = match profile {
        SecurityProfile::RuntimeDefault => (0, String::new()),
        SecurityProfile::Unconfined => (1, String::new()),
        SecurityProfile::Localhost(name) => (2, name.clone()),
    };
    cri::SecurityProfile { profile_type, localhost_ref }
}

/// Of a sandbox.
pub(crate) fn of_sandbox(security: &SandboxSecurity) -> cri::LinuxSandboxSecurityContext {
    cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(&security.namespaces)),
        selinux_options: selinux(security.selinux.as_ref()),
        run_as_user: int(security.run_as_user),
        run_as_group: int(security.run_as_group),
        readonly_rootfs: false,
        supplemental_groups: security.supplemental_groups.clone(),
        supplemental_groups_policy: groups_policy(security.supplemental_groups_policy),
        privileged: security.privileged,
        // Whatever the pod has: its profile may be too tight for the sandbox's own process, as upstream says.
        seccomp: Some(profile(&SecurityProfile::RuntimeDefault)),
        apparmor: security.apparmor.as_ref().map(profile),
    }
}

/// Of a container.
pub(crate) fn of_container(security: &ContainerSecurity) -> cri::LinuxContainerSecurityContext {
    let Capabilities { add, drop, add_ambient } = security.capabilities.clone();
    cri::LinuxContainerSecurityContext {
        capabilities: Some(cri::Capability {
            add_capabilities: add,
            drop_capabilities: drop,
            add_ambient_capabilities: add_ambient,
        }),
        privileged: security.privileged,
        namespace_options: Some(namespaces(&security.namespaces)),
        selinux_options: selinux(security.selinux.as_ref()),
        run_as_user: int(security.run_as_user),
        run_as_group: int(security.run_as_group),
        run_as_username: security.run_as_username.clone(),
        readonly_rootfs: security.readonly_rootfs,
        supplemental_groups: security.supplemental_groups.clone(),
        supplemental_groups_policy: groups_policy(security.supplemental_groups_policy),
        no_new_privs: security.no_new_privs,
        masked_paths: security.masked_paths.clone(),
        readonly_paths: security.readonly_paths.clone(),
        seccomp: Some(profile(&security.seccomp)),
        apparmor: security.apparmor.as_ref().map(profile),
    }
}

/// A number that a runtime takes as signed.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Limits. CRI has no field for processes: the file of cgroup v2 says it.
pub(crate) fn resources(limits: &LinuxResources) -> cri::LinuxContainerResources {
    let mut unified = limits.unified.clone();
    if let Some(pids) = limits.pids_limit {
        unified.entry("pids.max".to_owned()).or_insert_with(|| pids.to_string());
    }
    let page =
        |limit: &HugepageLimit| cri::HugepageLimit { page_size: limit.page_size.clone(), limit: limit.limit };
    cri::LinuxContainerResources {
        cpu_period: signed(limits.cpu_period),
        cpu_quota: limits.cpu_quota,
        cpu_shares: signed(limits.cpu_shares),
        memory_limit_in_bytes: limits.memory_limit_bytes,
        oom_score_adj: limits.oom_score_adj.unwrap_or_default(),
        cpuset_cpus: limits.cpuset_cpus.clone(),
        cpuset_mems: limits.cpuset_mems.clone(),
        hugepage_limits: limits.hugepage_limits.iter().map(page).collect(),
        unified,
        memory_swap_limit_in_bytes: limits.memory_swap_limit_bytes,
    }
}

/// Limits as a runtime shows them.
pub(crate) fn resources_of(limits: &cri::LinuxContainerResources) -> LinuxResources {
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    let mut unified = limits.unified.clone();
    let pids_limit = unified.remove("pids.max").and_then(|text| text.parse().ok());
    let page =
        |limit: &cri::HugepageLimit| HugepageLimit { page_size: limit.page_size.clone(), limit: limit.limit };
    LinuxResources {
        cpu_period: unsigned(limits.cpu_period),
        cpu_quota: limits.cpu_quota,
        cpu_shares: unsigned(limits.cpu_shares),
        memory_limit_bytes: limits.memory_limit_in_bytes,
        memory_swap_limit_bytes: limits.memory_swap_limit_in_bytes,
        oom_score_adj: Some(limits.oom_score_adj),
        cpuset_cpus: limits.cpuset_cpus.clone(),
        cpuset_mems: limits.cpuset_mems.clone(),
        hugepage_limits: limits.hugepage_limits.iter().map(page).collect(),
        unified,
        pids_limit,
    }
}

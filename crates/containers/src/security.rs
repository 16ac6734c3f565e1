//! Namespaces, users, capabilities and profiles of sandboxes and containers, as CRI has them.

use serde::{Deserialize, Serialize};

/// Which namespace a container or sandbox runs in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceMode {
    /// The pod's.
    #[default]
    Pod,
    /// The container's own.
    Container,
    /// The node's.
    Node,
    /// That of the container that [`NamespaceOptions::target`] names.
    Target,
}

/// Which namespaces a sandbox or container shares.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceOptions {
    /// Pod or Node.
    pub network: NamespaceMode,
    /// Any; `Container` unless the pod shares one.
    pub pid: NamespaceMode,
    /// Pod or Node.
    pub ipc: NamespaceMode,
    /// Container id, for a pid namespace of mode `Target`.
    pub target: String,
    /// `None`: that of the node.
    pub user: Option<UserNamespace>,
}

/// A user namespace of the pod's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserNamespace {
    /// User ids.
    pub uids: Vec<IdMapping>,
    /// Group ids.
    pub gids: Vec<IdMapping>,
}

/// A range of ids in a user namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IdMapping {
    /// The first id on the node.
    pub host_id: u32,
    /// The first id in the namespace.
    pub container_id: u32,
    /// How many.
    pub length: u32,
}

/// How the groups of a container's image count beside those of the pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupplementalGroupsPolicy {
    /// Those of `/etc/group` in the image are added.
    #[default]
    Merge,
    /// Only those of the pod.
    Strict,
}

/// A seccomp or AppArmor profile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecurityProfile {
    /// The backend's default one.
    RuntimeDefault,
    /// None.
    #[default]
    Unconfined,
    /// A file on the node (seccomp: an absolute path), or the name of a loaded profile (AppArmor).
    Localhost(String),
}

/// SELinux labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SeLinuxOptions {
    #[allow(missing_docs)]
    pub user: String,
    #[allow(missing_docs)]
    pub role: String,
    #[allow(missing_docs)]
    pub kind: String,
    #[allow(missing_docs)]
    pub level: String,
}

/// Changes of the default capabilities, by names without `CAP_`; `ALL` is all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Capabilities {
    /// Added to the bounding, effective and permitted sets.
    pub add: Vec<String>,
    /// Removed from them; applied after `add` of `ALL`, before the other ones.
    pub drop: Vec<String>,
    /// Added to the ambient and inheritable sets too.
    pub add_ambient: Vec<String>,
}

/// Of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxSecurity {
    /// Which namespaces are shared.
    pub namespaces: NamespaceOptions,
    /// SELinux labels.
    pub selinux: Option<SeLinuxOptions>,
    /// User id of the sandbox's processes.
    pub run_as_user: Option<i64>,
    /// Group id of the sandbox's processes.
    pub run_as_group: Option<i64>,
    /// Further groups.
    pub supplemental_groups: Vec<i64>,
    /// See the type.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// A container of the pod is privileged.
    pub privileged: bool,
    /// Filter of system calls.
    pub seccomp: SecurityProfile,
    /// AppArmor profile; the backend's default one, if it has any, without it.
    pub apparmor: Option<SecurityProfile>,
}

/// Of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerSecurity {
    /// Changes of the default capabilities.
    pub capabilities: Capabilities,
    /// All capabilities, all devices, no masked paths, no profile.
    pub privileged: bool,
    /// Which namespaces are shared.
    pub namespaces: NamespaceOptions,
    /// SELinux labels.
    pub selinux: Option<SeLinuxOptions>,
    /// User id; the image's user without it.
    pub run_as_user: Option<i64>,
    /// A user's name, looked up in the image.
    pub run_as_username: String,
    /// Group id; only with a user.
    pub run_as_group: Option<i64>,
    /// The root file system is mounted read-only.
    pub readonly_rootfs: bool,
    /// Further groups.
    pub supplemental_groups: Vec<i64>,
    /// See the type.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// `no_new_privs` is set.
    pub no_new_privs: bool,
    /// Paths that the container cannot see.
    pub masked_paths: Vec<String>,
    /// Paths that the container cannot write.
    pub readonly_paths: Vec<String>,
    /// Filter of system calls.
    pub seccomp: SecurityProfile,
    /// AppArmor profile; the backend's default one, if it has any, without it.
    pub apparmor: Option<SecurityProfile>,
}

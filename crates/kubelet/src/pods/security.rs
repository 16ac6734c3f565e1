//! Security contexts of pods and containers as the runtime has them. Upstream's `kuberuntime/security_context.go`.
//!
//! Invariant: what a container sets wins over what its pod sets.

use super::core::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};
use super::model;
use kaji_containers::{
    Capabilities, ContainerSecurity, NamespaceMode, NamespaceOptions, SandboxSecurity, SeLinuxOptions,
    SecurityProfile, SupplementalGroupsPolicy,
};
use std::path::Path;
use std::sync::LazyLock;
use thiserror::Error;

/// Paths that a container cannot see, unless `procMount` is `Unmasked`.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// The same of each processor, where it is there: `/sys/devices/system/cpu/cpu<number>/thermal_throttle`.
static MASKED_PROCESSORS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let processors = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let found = processors.filter(|entry| {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    });
    let found = found.map(|entry| entry.path().join("thermal_throttle")).filter(|path| path.exists());
    found.map(|path| path.display().to_string()).collect()
});
/// Paths that a container cannot write, unless `procMount` is `Unmasked`.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Why a security context cannot be carried out; shown as the message of `CreateContainerConfigError`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum SecurityError {
    /// Source: `verifyRunAsNonRoot`.
    #[error("container's runAsUser breaks non-root policy (pod: \"{pod}\", container: {container})")]
    RootUser { pod: String, container: String },
    /// The same.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: \"{pod}\", container: {container})"
    )]
    NamedUser { user: String, pod: String, container: String },
    /// The same.
    #[error("container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {container})")]
    RootImage { pod: String, container: String },
    /// A profile on the node without a name.
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    NoProfile,
}

fn pod_context(pod: &Pod) -> PodSecurityContext {
    model::spec(pod).security_context.clone().unwrap_or_default()
}

fn container_context(container: &Container) -> SecurityContext {
    container.security_context.clone().unwrap_or_default()
}

/// Whether a container is privileged.
#[must_use]
pub fn privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|s| s.privileged).unwrap_or(false)
}

/// Namespaces that a pod shares.
fn namespaces(pod: &Pod) -> NamespaceOptions {
    let spec = model::spec(pod);
    let mode = |node: Option<bool>| if node == Some(true) { NamespaceMode::Node } else { NamespaceMode::Pod };
    let pid = match (spec.host_pid, spec.share_process_namespace) {
        (Some(true), _) => NamespaceMode::Node,
        (_, Some(true)) => NamespaceMode::Pod,
        _ => NamespaceMode::Container,
    };
    NamespaceOptions {
        network: mode(spec.host_network),
        pid,
        ipc: mode(spec.host_ipc),
        target: String::new(),
        user: None,
    }
}

fn selinux(options: Option<&SELinuxOptions>) -> Option<SeLinuxOptions> {
    options.map(|o| SeLinuxOptions {
        user: o.user.clone().unwrap_or_default(),
        role: o.role.clone().unwrap_or_default(),
        kind: o.type_.clone().unwrap_or_default(),
        level: o.level.clone().unwrap_or_default(),
    })
}

fn seccomp(profile: Option<&SeccompProfile>, root: &Path) -> Result<SecurityProfile, SecurityError> {
    match profile.map(|p| (p.type_.as_str(), p.localhost_profile.as_deref())) {
        Some(("RuntimeDefault", _)) => Ok(SecurityProfile::RuntimeDefault),
        Some(("Localhost", Some(name))) if !name.is_empty() => {
            Ok(SecurityProfile::Localhost(root.join(name).display().to_string()))
        }
        Some(("Localhost", _)) => Err(SecurityError::NoProfile),
        _ => Ok(SecurityProfile::Unconfined),
    }
}

/// Without a profile the runtime decides, as upstream has it.
fn apparmor(profile: Option<&AppArmorProfile>) -> Option<SecurityProfile> {
    profile.map(|p| match (p.type_.as_str(), p.localhost_profile.clone()) {
        ("RuntimeDefault", _) => SecurityProfile::RuntimeDefault,
        ("Localhost", Some(name)) => SecurityProfile::Localhost(name),
        _ => SecurityProfile::Unconfined,
    })
}

fn groups(pod: &PodSecurityContext) -> (Vec<i64>, SupplementalGroupsPolicy) {
    let mut groups = pod.supplemental_groups.clone().unwrap_or_default();
    groups.extend(pod.fs_group);
    let policy = match pod.supplemental_groups_policy.as_deref() {
        Some("Strict") => SupplementalGroupsPolicy::Strict,
        _ => SupplementalGroupsPolicy::Merge,
    };
    (groups, policy)
}

/// Of the sandbox. `profiles` is the directory of seccomp profiles on the node.
///
/// # Errors
/// What this node cannot do.
pub fn of_sandbox(pod: &Pod, profiles: &Path) -> Result<SandboxSecurity, SecurityError> {
    let context = pod_context(pod);
    let (supplemental_groups, supplemental_groups_policy) = groups(&context);
    let all = model::containers(pod).iter().chain(model::init_containers(pod));
    Ok(SandboxSecurity {
        namespaces: namespaces(pod),
        selinux: selinux(context.se_linux_options.as_ref()),
        run_as_user: context.run_as_user,
        run_as_group: context.run_as_group,
        supplemental_groups,
        supplemental_groups_policy,
        privileged: all.into_iter().any(privileged),
        // The sandbox runs nothing of the pod's.
        seccomp: match seccomp(context.seccomp_profile.as_ref(), profiles)? {
            SecurityProfile::Localhost(_) => SecurityProfile::RuntimeDefault,
            profile => profile,
        },
        apparmor: apparmor(context.app_armor_profile.as_ref()),
    })
}

/// The user of an image: a number or a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageUser {
    /// User id.
    pub uid: Option<i64>,
    /// Its name otherwise; empty for root.
    pub name: String,
}

/// Of a container. `target` is the container that it shares a pid namespace with.
///
/// # Errors
/// A policy that the image's user breaks, or a profile without a name.
pub fn of_container(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    target: Option<&str>,
    profiles: &Path,
) -> Result<ContainerSecurity, SecurityError> {
    let (of_pod, own) = (pod_context(pod), container_context(container));
    verify_non_root(pod, container, image, &of_pod, &own)?;
    let run_as_user = own.run_as_user.or(of_pod.run_as_user);
    let (supplemental_groups, supplemental_groups_policy) = groups(&of_pod);
    let privileged = own.privileged.unwrap_or(false);
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let (masked_paths, readonly_paths) = if privileged || unmasked {
        (vec![], vec![])
    } else {
        let plain = |paths: &[&str]| paths.iter().map(|p| (*p).to_owned()).collect::<Vec<String>>();
        ([plain(&MASKED), MASKED_PROCESSORS.clone()].concat(), plain(&READ_ONLY))
    };
    let capabilities = own.capabilities.clone().unwrap_or_default();
    let mut namespaces = namespaces(pod);
    if let Some(target) = target {
        namespaces.pid = NamespaceMode::Target;
        namespaces.target = target.to_owned();
    }
    let user = run_as_user.or(image.uid);
    Ok(ContainerSecurity {
        capabilities: Capabilities {
            add: capabilities.add.unwrap_or_default(),
            drop: capabilities.drop.unwrap_or_default(),
            add_ambient: vec![],
        },
        privileged,
        namespaces,
        selinux: selinux(own.se_linux_options.as_ref().or(of_pod.se_linux_options.as_ref())),
        run_as_user: user,
        run_as_username: if user.is_none() { image.name.clone() } else { String::new() },
        run_as_group: own.run_as_group.or(of_pod.run_as_group),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups,
        supplemental_groups_policy,
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: if privileged {
            SecurityProfile::Unconfined
        } else {
            seccomp(own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref()), profiles)?
        },
        apparmor: apparmor(own.app_armor_profile.as_ref().or(of_pod.app_armor_profile.as_ref())),
    })
}

fn verify_non_root(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    of_pod: &PodSecurityContext,
    own: &SecurityContext,
) -> Result<(), SecurityError> {
    if own.run_as_non_root.or(of_pod.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let (pod, container) = (model::display(pod), container.name.clone());
    match (own.run_as_user.or(of_pod.run_as_user), image.uid) {
        (Some(0), _) => Err(SecurityError::RootUser { pod, container }),
        (Some(_), _) => Ok(()),
        (None, None) if !image.name.is_empty() => {
            Err(SecurityError::NamedUser { user: image.name.clone(), pod, container })
        }
        // An image that names no user runs as root.
        (None, Some(0) | None) => Err(SecurityError::RootImage { pod, container }),
        (None, Some(_)) => Ok(()),
    }
}

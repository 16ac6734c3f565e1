//! The OCI runtime configuration of a container, from what the kubelet asks for and the image's configuration.
//!
//! Invariants: pure but for the files that [`user`] reads in the image; every field of the configuration is carried out or
//! refused; defaults are those of containerd's CRI plug-in.

pub mod capabilities;
mod devices;
mod mounts;
pub mod user;

use crate::cdi::Edits;
use crate::cgroup;
use crate::records::{FinalCapabilities, ShimConfig};
use crate::seccomp::{self, Profile};
use crate::user_namespaces::{self, Staging};
use kaji_containers::{
    ContainerConfig, ContainerUser, ImageConfig, LinuxResources, NamespaceMode, PodSandboxConfig,
    RuntimeError, SecurityProfile,
};
use kaji_files::NamespaceIds;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a configuration is made of.
pub struct Parts<'a> {
    /// Of the container.
    pub id: &'a str,
    /// Of the container.
    pub config: &'a ContainerConfig,
    /// Of its pod.
    pub sandbox: &'a PodSandboxConfig,
    /// Of its image.
    pub image: &'a ImageConfig,
    /// The mounted root file system.
    pub rootfs: &'a Path,
    /// Paths of pinned namespaces, by their OCI names; `pid` for one that is joined.
    pub namespaces: &'a [(&'static str, PathBuf)],
    /// Generated `/etc/resolv.conf` and `/etc/hostname`, and the pod's shared memory; with their container paths.
    pub pod_files: &'a [(&'static str, PathBuf)],
    /// Image volumes: container path, directory.
    pub image_mounts: &'a [(String, PathBuf)],
    /// What the container's CDI devices bring.
    pub cdi: &'a Edits,
    /// Capabilities of this process: there are no others to give.
    pub available: &'a [String],
    /// For a pod with a user namespace.
    pub staging: Option<Staging>,
    /// The AppArmor profile that confines it.
    pub apparmor: Option<String>,
}

/// A configuration, and what else its shim has to know.
#[derive(Debug)]
pub struct Built {
    /// `config.json`.
    pub spec: Value,
    /// `shim.json`.
    pub shim: ShimConfig,
    /// The user of the first process.
    pub user: ContainerUser,
}

/// Builds the configuration of a container.
///
/// # Errors
/// [`RuntimeError::InvalidArgument`] for what cannot be carried out, [`RuntimeError::Unimplemented`] for what is not.
pub fn build(parts: &Parts<'_>) -> Result<Built, RuntimeError> {
    let (config, security) = (parts.config, &parts.config.security);
    refuse_what_is_missing(parts)?;
    let user = user::resolve(security, &parts.image.user, parts.rootfs)?;
    user::check(&user, NamespaceIds::own())?;
    // libcontainer writes none for cgroup v2.
    let device_rules = *crate::cgroup::hierarchies() != crate::cgroup::Hierarchies::Unified;
    let capabilities = capabilities::of(security, parts.available, device_rules)?;
    let seccomp = seccomp_profile(security.privileged, &security.seccomp, &capabilities.bounding)?;
    let cgroup = container_cgroup(parts.sandbox, parts.id);
    let range = parts.staging.as_ref().map(|staging| staging.range);
    let owner = |id: i64| user_namespaces::host_id(range.as_ref(), id);
    for group in &user.supplemental_groups {
        owner(*group)?;
    }
    // The root file system is the first of the staged mounts.
    let mut staging = parts.staging.clone();
    let rootfs = staging.as_mut().map_or_else(|| parts.rootfs.to_owned(), |s| s.mount(parts.rootfs, false));
    let mut process = process(parts, &user, &capabilities)?;
    if let Some(profile) = &parts.apparmor {
        process["apparmorProfile"] = json!(profile);
    }
    let mut spec = json!({
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": rootfs, "readonly": security.readonly_rootfs},
        "mounts": mounts::of(parts, staging.as_mut())?,
        "annotations": config.annotations,
        "linux": linux(parts, &cgroup, staging.as_mut(), &user)?,
    });
    if let Some(hooks) = parts.cdi.oci_hooks() {
        spec["hooks"] = hooks;
    }
    let log_path = (!config.log_path.is_empty() && !parts.sandbox.log_directory.is_empty())
        .then(|| Path::new(&parts.sandbox.log_directory).join(&config.log_path));
    let shim = ShimConfig {
        id: parts.id.to_owned(),
        log_path,
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        uid: owner(user.uid)?,
        gid: owner(user.gid)?,
        capabilities,
        seccomp,
        reaper: false,
        cgroups: cgroup::directories(&cgroup),
        oom_score_adj: config.resources.oom_score_adj.unwrap_or_default(),
        staging,
    };
    Ok(Built { spec, shim, user })
}

/// A container's cgroup, below the mount points of the hierarchies.
pub fn container_cgroup(sandbox: &PodSandboxConfig, id: &str) -> String {
    format!("/{}/{id}", sandbox.cgroup_parent.trim_matches('/'))
}

fn refuse_what_is_missing(parts: &Parts<'_>) -> Result<(), RuntimeError> {
    let unimplemented = |what: &str| {
        Err(RuntimeError::Unimplemented(format!("{what} is not supported by the built-in runtime")))
    };
    let security = &parts.config.security;
    if parts.sandbox.security.namespaces.user.is_none() && security.namespaces.user.is_some() {
        return unimplemented("a user namespace that is not the pod's");
    }
    if security.selinux.as_ref().is_some_and(|o| !o.level.is_empty() || !o.kind.is_empty())
        && Path::new("/sys/fs/selinux/enforce").exists()
    {
        return unimplemented("an SELinux label");
    }
    if parts.sandbox.cgroup_parent.split('/').any(|part| part == "..") {
        return Err(RuntimeError::InvalidArgument("the cgroup parent must not contain \"..\"".into()));
    }
    Ok(())
}

fn process(
    parts: &Parts<'_>,
    user: &ContainerUser,
    capabilities: &FinalCapabilities,
) -> Result<Value, RuntimeError> {
    let config = parts.config;
    let args = arguments(config, parts.image);
    if args.is_empty() {
        return Err(RuntimeError::InvalidArgument(format!(
            "no command specified: container {:?}",
            config.metadata.name
        )));
    }
    let cwd = [config.working_dir.as_str(), parts.image.working_dir.as_str(), "/"];
    let cwd = cwd.into_iter().find(|directory| !directory.is_empty()).unwrap_or("/");
    // Loading the filter and dropping the others takes two more than the program gets; the shim drops them.
    let mut bounding = capabilities.bounding.clone();
    for needed in ["CAP_SYS_ADMIN", "CAP_SETPCAP"] {
        if !bounding.iter().any(|name| name == needed) {
            bounding.push(needed.to_owned());
        }
    }
    let mut environment = environment(parts);
    if parts.staging.is_some() && !environment.iter().any(|variable| variable.starts_with("HOME=")) {
        // Otherwise libcontainer looks it up, but for further processes by ids of the node.
        environment.push(format!("HOME={}", user::home(parts.rootfs, user.uid)));
    }
    let mut groups = user.supplemental_groups.clone();
    for group in parts.cdi.additional_gids.iter().map(|group| i64::from(*group)) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    if !NamespaceIds::own().sets_groups() {
        // Root's own group has been the only one.
        groups.clear();
    }
    Ok(json!({
        "terminal": config.tty,
        "user": {"uid": user.uid, "gid": user.gid, "additionalGids": groups},
        "args": args,
        "env": environment,
        "cwd": cwd,
        "noNewPrivileges": config.security.no_new_privs,
        "capabilities": {
            "bounding": bounding, "effective": bounding, "permitted": bounding, "inheritable": [], "ambient": [],
        },
    }))
}

/// A command replaces the image's entry point and its arguments, arguments only the latter.
fn arguments(config: &ContainerConfig, image: &ImageConfig) -> Vec<String> {
    let (entrypoint, cmd) = match (config.command.is_empty(), config.args.is_empty()) {
        (true, true) => (&image.entrypoint, &image.cmd),
        (true, false) => (&image.entrypoint, &config.args),
        (false, _) => (&config.command, &config.args),
    };
    entrypoint.iter().chain(cmd).cloned().collect()
}

/// Later values of a name replace earlier ones in their place. What has no value is dropped, as containerd does.
fn environment(parts: &Parts<'_>) -> Vec<String> {
    let mut environment = vec![PATH.to_owned()];
    if !parts.sandbox.hostname.is_empty() {
        environment.push(format!("HOSTNAME={}", parts.sandbox.hostname));
    }
    if parts.config.tty {
        environment.push("TERM=xterm".to_owned());
    }
    let name = |variable: &str| variable.split_once('=').map(|(name, _)| name.to_owned());
    // A namespace with many services makes thousands of variables.
    let mut known: HashMap<String, usize> =
        environment.iter().enumerate().filter_map(|(at, variable)| Some((name(variable)?, at))).collect();
    let own = parts.config.envs.iter().map(|(name, value)| format!("{name}={value}"));
    for variable in parts.image.env.iter().cloned().chain(own).chain(parts.cdi.env.iter().cloned()) {
        let Some(name) = name(&variable) else { continue };
        match known.get(&name) {
            Some(at) => environment[*at] = variable,
            None => {
                known.insert(name, environment.len());
                environment.push(variable);
            }
        }
    }
    environment
}

fn seccomp_profile(
    privileged: bool,
    profile: &SecurityProfile,
    capabilities: &[String],
) -> Result<Option<Profile>, RuntimeError> {
    if privileged {
        return Ok(None);
    }
    let profile = match profile {
        SecurityProfile::Unconfined => return Ok(None),
        SecurityProfile::RuntimeDefault => seccomp::profile::runtime_default(capabilities),
        SecurityProfile::Localhost(path) => {
            let invalid = |error: &dyn std::fmt::Display| {
                RuntimeError::InvalidArgument(format!("failed to load seccomp profile {path:?}: {error}"))
            };
            let bytes = std::fs::read(path).map_err(|error| invalid(&error))?;
            serde_json::from_slice(&bytes).map_err(|error| invalid(&error))?
        }
    };
    seccomp::compile(&profile).map_err(|error| RuntimeError::InvalidArgument(error.to_string()))?;
    Ok(Some(profile))
}

fn linux(
    parts: &Parts<'_>,
    cgroup: &str,
    mut staging: Option<&mut Staging>,
    user: &ContainerUser,
) -> Result<Value, RuntimeError> {
    let security = &parts.config.security;
    let mut namespaces = vec![json!({"type": "mount"})];
    if !matches!(security.namespaces.pid, NamespaceMode::Node)
        && !parts.namespaces.iter().any(|(name, _)| *name == "pid")
    {
        namespaces.push(json!({"type": "pid"}));
    }
    for (name, path) in parts.namespaces {
        // The user namespace is entered first, while the pins are in reach.
        let path = match &mut staging {
            Some(staging) if *name != "user" => staging.namespace(path),
            _ => path.clone(),
        };
        namespaces.push(json!({"type": name, "path": path}));
    }
    if *cgroup::hierarchies() == cgroup::Hierarchies::Unified && !security.privileged {
        namespaces.push(json!({"type": "cgroup"}));
    }
    let (devices, rules) = devices::of(parts, user)?;
    let resources = cgroup::available().then(|| {
        let mut resources = resources(&parts.config.resources);
        resources["devices"] = json!(rules);
        resources
    });
    let mut linux = json!({
        "namespaces": namespaces,
        "cgroupsPath": cgroup::in_configuration(cgroup),
        "resources": resources,
        "devices": devices,
        "rootfsPropagation": mounts::root_propagation(parts),
    });
    if let Some(intel_rdt) = &parts.cdi.intel_rdt {
        linux["intelRdt"] = intel_rdt.clone();
    }
    if !security.privileged {
        linux["maskedPaths"] = json!(security.masked_paths);
        let mut read_only = security.readonly_paths.clone();
        // The directory above the controllers of version 1, which has to be writable while they are mounted in it.
        read_only.push(mounts::CGROUPS.to_owned());
        linux["readonlyPaths"] = json!(read_only);
    }
    Ok(linux)
}

/// The limits, as OCI names them. Those that are not set are absent.
fn resources(limits: &LinuxResources) -> Value {
    let (mut cpu, mut memory) = (serde_json::Map::new(), serde_json::Map::new());
    let set = |map: &mut serde_json::Map<String, Value>, name: &str, value: Option<Value>| {
        if let Some(value) = value {
            map.insert(name.to_owned(), value);
        }
    };
    let positive = |value: u64| (value > 0).then(|| json!(value));
    let given = |value: i64| (value != 0).then(|| json!(value));
    let listed = |value: &str| (!value.is_empty()).then(|| json!(value));
    set(&mut cpu, "shares", positive(limits.cpu_shares));
    set(&mut cpu, "period", positive(limits.cpu_period));
    set(&mut cpu, "quota", given(limits.cpu_quota));
    set(&mut cpu, "cpus", listed(&limits.cpuset_cpus));
    set(&mut cpu, "mems", listed(&limits.cpuset_mems));
    set(&mut memory, "limit", given(limits.memory_limit_bytes));
    set(&mut memory, "swap", given(limits.memory_swap_limit_bytes).filter(|_| swap_is_counted()));
    let mut resources = json!({"cpu": cpu, "memory": memory});
    if let Some(pids) = limits.pids_limit {
        resources["pids"] = json!({"limit": if pids <= 0 { -1 } else { pids }});
    }
    if !limits.hugepage_limits.is_empty() {
        let each = limits.hugepage_limits.iter().map(|l| json!({"pageSize": l.page_size, "limit": l.limit}));
        resources["hugepageLimits"] = each.collect();
    }
    if !limits.unified.is_empty() {
        resources["unified"] = json!(limits.unified);
    }
    resources
}

/// Kernels without the accounting have no file for the limit; upstream leaves it out there too.
fn swap_is_counted() -> bool {
    *cgroup::hierarchies() == cgroup::Hierarchies::Unified
        || Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists()
}

#[cfg(test)]
mod tests;

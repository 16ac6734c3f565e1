//! Mounts of containers.
//!
//! Invariant: volumes are mounted in the order of the depth of their paths, after the container's own file systems, so that
//! none hides one that is mounted within it.

use super::Parts;
use crate::cgroup;
use kaji_containers::{Mount, MountPropagation, NamespaceMode, RuntimeError};
use serde_json::{Value, json};
use std::path::Path;

/// All mounts, in order.
pub fn of(parts: &Parts<'_>) -> Result<Vec<Value>, RuntimeError> {
    let security = &parts.config.security;
    let privileged = security.privileged;
    let system = |destination: &str, kind: &str, options: &[&str]| json!({"destination": destination, "type": kind, "source": kind, "options": options});
    let sysfs: &[&str] =
        if privileged { &["nosuid", "noexec", "nodev", "rw"] } else { &["nosuid", "noexec", "nodev", "ro"] };
    let cgroups: &[&str] = if privileged {
        &["nosuid", "noexec", "nodev", "relatime", "rw"]
    } else {
        &["nosuid", "noexec", "nodev", "relatime", "ro"]
    };
    let mut mounts = vec![
        system("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        system("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        system(
            "/dev/pts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        system("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
    ];
    if matches!(security.namespaces.network, NamespaceMode::Node)
        || matches!(parts.sandbox.security.namespaces.network, NamespaceMode::Node)
    {
        // A new sysfs can be mounted only by the owner of the network namespace.
        let options: Vec<&str> = ["rbind"].iter().chain(sysfs).copied().collect();
        mounts.push(json!({"destination": "/sys", "type": "bind", "source": "/sys", "options": options}));
    } else {
        mounts.push(system("/sys", "sysfs", sysfs));
    }
    if *cgroup::hierarchies() == cgroup::Hierarchies::Unified || !host_network(parts) {
        mounts.push(system("/sys/fs/cgroup", "cgroup", cgroups));
    }
    let own = |path: &str| parts.config.mounts.iter().any(|mount| clean(&mount.container_path) == path);
    for (path, source) in parts.pod_files {
        if !own(path) {
            let mut options = vec!["rbind", "rprivate"];
            if *path == "/dev/shm" {
                options.extend(["nosuid", "noexec", "nodev"]);
            } else if security.readonly_rootfs {
                options.push("ro");
            }
            mounts.push(json!({"destination": path, "type": "bind", "source": source, "options": options}));
        }
    }
    let mut volumes: Vec<&Mount> = parts.config.mounts.iter().collect();
    volumes.sort_by_key(|mount| clean(&mount.container_path).matches('/').count());
    for volume in volumes {
        mounts.push(bind(volume, parts)?);
    }
    Ok(mounts)
}

fn host_network(parts: &Parts<'_>) -> bool {
    matches!(parts.sandbox.security.namespaces.network, NamespaceMode::Node)
}

fn bind(mount: &Mount, parts: &Parts<'_>) -> Result<Value, RuntimeError> {
    let invalid = |what: String| Err(RuntimeError::InvalidArgument(what));
    if !mount.container_path.starts_with('/') || mount.container_path.split('/').any(|part| part == "..") {
        return invalid(format!("mount path {:?} is not absolute", mount.container_path));
    }
    let image = parts.image_mounts.iter().find(|(path, _)| *path == mount.container_path);
    let source = match (&mount.image, image) {
        (Some(_), Some((_, directory))) => directory.clone(),
        (Some(image), None) => return invalid(format!("image {:?} is not mounted", image.image)),
        (None, _) => Path::new(&mount.host_path).to_owned(),
    };
    if !source.is_absolute() {
        return invalid(format!("mount source {:?} is not absolute", mount.host_path));
    }
    if !source.exists() {
        return invalid(format!(
            "failed to generate container spec: failed to stat {:?}: no such file or directory",
            source.display()
        ));
    }
    let mut options = vec!["rbind"];
    options.push(match mount.propagation {
        MountPropagation::Private => "rprivate",
        MountPropagation::HostToContainer => "rslave",
        MountPropagation::Bidirectional => "rshared",
    });
    if mount.image.is_some() || (mount.readonly && !mount.recursive_read_only) {
        options.push("ro");
    } else if mount.recursive_read_only {
        if !mount.readonly || mount.propagation != MountPropagation::Private {
            return invalid(
                "recursive read-only mounts need a read-only mount without propagation".to_owned(),
            );
        }
        options.extend(["ro", "rro"]);
    } else {
        options.push("rw");
    }
    Ok(json!({"destination": mount.container_path, "type": "bind", "source": source, "options": options}))
}

/// The root's propagation has to let through what a volume's needs.
pub fn root_propagation(parts: &Parts<'_>) -> &'static str {
    let any = |wanted| parts.config.mounts.iter().any(|mount| mount.propagation == wanted);
    if any(MountPropagation::Bidirectional) {
        "rshared"
    } else if any(MountPropagation::HostToContainer) {
        "rslave"
    } else {
        "private"
    }
}

/// Without a slash at the end.
pub fn clean(path: &str) -> &str {
    if path.len() > 1 { path.trim_end_matches('/') } else { path }
}

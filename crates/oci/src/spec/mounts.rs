//! Mounts of containers.
//!
//! Invariant: volumes are mounted in the order of the depth of their paths, after the container's own file systems, so that
//! none hides one that is mounted within it.

use super::{Parts, devices};
use crate::cdi::EditedMount;
use crate::cgroup;
use crate::rootless::Facts;
use crate::user_namespaces::{self, Staging};
use kaji_containers::{Mount, MountPropagation, NamespaceMode, RuntimeError, UserNamespace};
use kaji_files::NamespaceIds;
use serde_json::{Value, json};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// The group of terminals.
const TTY: u32 = 5;
/// Where cgroups are seen.
pub const CGROUPS: &str = "/sys/fs/cgroup";

/// All mounts, in order.
pub fn of(parts: &Parts<'_>, mut staging: Option<&mut Staging>) -> Result<Vec<Value>, RuntimeError> {
    let security = &parts.config.security;
    let mut mounts = file_systems(parts, staging.as_deref_mut());
    let own = |path: &str| parts.config.mounts.iter().any(|mount| clean(&mount.container_path) == path);
    for (path, source) in parts.pod_files {
        if !own(path) {
            let mut options = vec!["rbind", "rprivate"];
            if *path == "/dev/shm" {
                options.extend(["nosuid", "noexec", "nodev"]);
            } else if security.readonly_rootfs {
                options.push("ro");
            }
            // The pod's shared memory is its root's already.
            let mapped = *path != "/dev/shm";
            let source = staging.as_mut().map_or_else(|| source.clone(), |s| s.mount(source, mapped));
            mounts.push(json!({"destination": path, "type": "bind", "source": source, "options": options}));
        }
    }
    let of_devices = devices::mounted(parts);
    let mut volumes: Vec<&Mount> = parts.config.mounts.iter().chain(&of_devices).collect();
    let of_cdi = &parts.cdi.mounts;
    volumes.retain(|v| !of_cdi.iter().any(|m| clean(&m.container_path) == clean(&v.container_path)));
    volumes.sort_by_key(|mount| clean(&mount.container_path).matches('/').count());
    for volume in volumes {
        let mut mount = bind(volume, parts)?;
        let mapped = is_mapped(volume, parts)?;
        if let (Some(staging), Some(source)) = (&mut staging, mount["source"].as_str()) {
            mount["source"] = json!(staging.mount(Path::new(source), mapped));
        }
        mounts.push(mount);
    }
    let mut of_cdi: Vec<&EditedMount> = of_cdi.iter().collect();
    of_cdi.sort_by_key(|mount| clean(&mount.container_path).matches('/').count());
    for mount in of_cdi {
        let (mut mount, is_bind) = cdi_mount(mount);
        if let (Some(staging), Some(source), true) = (&mut staging, mount["source"].as_str(), is_bind) {
            mount["source"] = json!(staging.mount(Path::new(source), false));
        }
        mounts.push(mount);
    }
    Ok(mounts)
}

/// The container's own file systems.
fn file_systems(parts: &Parts<'_>, staging: Option<&mut Staging>) -> Vec<Value> {
    let privileged = parts.config.security.privileged;
    let system = |destination: &str, kind: &str, options: &[&str]| json!({"destination": destination, "type": kind, "source": kind, "options": options});
    let sysfs: &[&str] =
        if privileged { &["nosuid", "noexec", "nodev", "rw"] } else { &["nosuid", "noexec", "nodev", "ro"] };
    let cgroups: &[&str] = if privileged {
        &["nosuid", "noexec", "nodev", "relatime", "rw"]
    } else {
        &["nosuid", "noexec", "nodev", "relatime", "ro"]
    };
    let mut terminals = vec!["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"];
    if NamespaceIds::own().has_group(TTY) {
        terminals.push("gid=5");
    }
    let theirs = foreign(parts);
    let system = |destination: &str, kind: &str, options: &[&str]| match theirs.contains(&destination) {
        true => {
            json!({"destination": destination, "type": "bind", "source": destination, "options": ["rbind", "rslave"]})
        }
        false => system(destination, kind, options),
    };
    let mut mounts = vec![
        system("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        system("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        system("/dev/pts", "devpts", &terminals),
        system("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
    ];
    // The machine may not have mounted it.
    mounts.retain(|mount| mount["type"] != "bind" || mount["source"].as_str().is_some_and(is_directory));
    mounts.push(system("/sys", "sysfs", sysfs));
    if !cgroup::available() {
        mounts.push(system(CGROUPS, "tmpfs", &["nosuid", "noexec", "nodev", "mode=755", "size=1m"]));
    } else if *cgroup::hierarchies() == cgroup::Hierarchies::Unified || privileged {
        mounts.push(system("/sys/fs/cgroup", "cgroup", cgroups));
    } else {
        let cgroup = super::container_cgroup(parts.sandbox, parts.id);
        mounts.extend(own_cgroups(&cgroup, staging));
    }
    mounts
}

fn is_directory(path: &str) -> bool {
    Path::new(path).is_dir()
}

/// A mount that a CDI device brings, and whether it shows a file or a directory of the node.
fn cdi_mount(mount: &EditedMount) -> (Value, bool) {
    let mut options = mount.options.clone();
    let says_bind = options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind"));
    let is_bind = says_bind || matches!(mount.kind.as_str(), "" | "bind" | "none");
    if is_bind && !says_bind {
        options.push("rbind".to_owned());
    }
    let kind = if is_bind { "bind" } else { &mount.kind };
    let value = json!({
        "destination": mount.container_path, "type": kind, "source": mount.host_path, "options": options,
    });
    (value, is_bind)
}

/// File systems that only a process could mount which owns the namespaces that they show: for containers in the machine's namespaces
/// they are the machine's, if this process is in a user namespace.
fn foreign(parts: &Parts<'_>) -> Vec<&'static str> {
    let Some(facts) = Facts::entered() else { return vec![] };
    let namespaces = &parts.config.security.namespaces;
    let node = |mode: NamespaceMode| matches!(mode, NamespaceMode::Node);
    let shown = [
        ("/proc", node(namespaces.pid)),
        ("/dev/mqueue", node(parts.sandbox.security.namespaces.ipc)),
        ("/sys", !facts.sysfs),
    ];
    shown.into_iter().filter(|(_, is_foreign)| *is_foreign).map(|(path, _)| path).collect()
}

/// Whether a volume's ids are the pod's. Those of image volumes are mapped with the image's layers.
fn is_mapped(mount: &Mount, parts: &Parts<'_>) -> Result<bool, RuntimeError> {
    if mount.uid_mappings.is_empty() && mount.gid_mappings.is_empty() {
        return Ok(false);
    }
    let own = UserNamespace { uids: mount.uid_mappings.clone(), gids: mount.gid_mappings.clone() };
    let range = user_namespaces::check(&own)?;
    if parts.staging.as_ref().is_none_or(|staging| staging.range != range) {
        return Err(RuntimeError::Unimplemented(
            "an id-mapped mount with other ids than the pod's is not supported by the built-in runtime"
                .into(),
        ));
    }
    Ok(mount.image.is_none())
}

/// Of version 1: the container's cgroup of each controller, read-only. `libcontainer` would mount them writable, and the cgroup of its
/// caller of hierarchies without controllers.
fn own_cgroups(cgroup: &str, mut staging: Option<&mut Staging>) -> Vec<Value> {
    let root = json!({
        "destination": CGROUPS, "type": "tmpfs", "source": "tmpfs",
        "options": ["nosuid", "noexec", "nodev", "mode=755", "size=1m"],
    });
    let mut mounts = vec![root];
    for (names, source) in cgroup::controller_directories(cgroup) {
        let source = staging.as_mut().map_or_else(|| source.clone(), |s| s.cgroup(&source));
        for name in names.split(',') {
            mounts.push(json!({
                "destination": format!("{CGROUPS}/{name}"), "type": "bind", "source": source,
                "options": ["bind", "nosuid", "noexec", "nodev", "ro"],
            }));
        }
    }
    mounts
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
    if mount.image.is_none() {
        make_absent(&source).map_err(RuntimeError::InvalidArgument)?;
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

/// Creates the source of a mount that is absent, as containerd and CRI-O do: hostPath volumes without a type rely on it.
fn make_absent(source: &Path) -> Result<(), String> {
    let failed = |what: &str, error: std::io::Error| {
        format!("failed to generate container spec: failed to {what} {:?}: {error}", source.display())
    };
    match std::fs::metadata(source) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(source);
            made.map_err(|error| failed("mkdir", error))
        }
        Err(error) => Err(failed("stat", error)),
    }
}

/// The root's propagation has to let through what a volume's needs. In the words of `libcontainer`: it takes "shared" and "slave" as
/// recursive, and refuses "rshared" and "rslave".
pub fn root_propagation(parts: &Parts<'_>) -> &'static str {
    let any = |wanted| parts.config.mounts.iter().any(|mount| mount.propagation == wanted);
    if any(MountPropagation::Bidirectional) {
        "shared"
    } else if any(MountPropagation::HostToContainer) {
        "slave"
    } else {
        "private"
    }
}

/// Without a slash at the end.
pub fn clean(path: &str) -> &str {
    if path.len() > 1 { path.trim_end_matches('/') } else { path }
}

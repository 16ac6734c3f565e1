//! Namespaces of pods, pinned by bind mounts, and work that is done in them.
//!
//! Invariant: namespaces are entered by threads of their own that end afterwards; threads of the async runtime never change
//! theirs.

use kaji_containers::RuntimeError;
use kaji_files::MountTable;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use tokio::sync::oneshot;

/// What to make.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// `net`, `ipc`, `uts`, and where each is pinned; `user` only for those that a shim makes.
    pub pins: Vec<(String, PathBuf)>,
    /// Set in a new uts namespace.
    pub hostname: String,
    /// Kernel parameters of the new namespaces.
    pub sysctls: BTreeMap<String, String>,
}

/// Makes and pins namespaces.
///
/// # Errors
/// Those of the kernel, naming what failed.
pub async fn create(wanted: Wanted) -> Result<(), RuntimeError> {
    on_thread(move || create_here(&wanted)).await
}

/// Makes a network namespace and keeps it by a mount on `path`, for a node that is not in that of this process. Unmounting the path
/// removes it once nothing uses it.
///
/// # Errors
/// Those of the kernel, naming what failed.
pub async fn create_network_namespace(path: PathBuf) -> Result<(), RuntimeError> {
    create(Wanted { pins: vec![("net".to_owned(), path)], ..Wanted::default() }).await
}

/// Runs a function in a thread of its own.
///
/// # Errors
/// Those of the function, or when there is no thread to be had.
pub async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    let (send, receive) = oneshot::channel();
    std::thread::Builder::new().name("namespaces".into()).spawn(move || {
        // The future was dropped otherwise.
        let _ = send.send(work());
    })?;
    receive.await.map_err(|_| RuntimeError::Internal("a thread ended without an answer".into()))?
}

/// What to unshare for pins, but for a user namespace.
pub fn unshare_flags(pins: &[(String, PathBuf)]) -> CloneFlags {
    let flag = |name: &str| match name {
        "net" => CloneFlags::CLONE_NEWNET,
        "ipc" => CloneFlags::CLONE_NEWIPC,
        "uts" => CloneFlags::CLONE_NEWUTS,
        _ => CloneFlags::empty(),
    };
    pins.iter().fold(CloneFlags::empty(), |flags, (name, _)| flags | flag(name))
}

/// Sets the host name and kernel parameters of the namespaces that this thread is in.
///
/// # Errors
/// Those of the kernel, naming what failed.
pub fn configure(wanted: &Wanted) -> Result<(), RuntimeError> {
    let failed =
        |what: &str, error: &dyn std::fmt::Display| RuntimeError::Internal(format!("{what}: {error}"));
    if wanted.pins.iter().any(|(name, _)| name == "uts") && !wanted.hostname.is_empty() {
        nix::unistd::sethostname(&wanted.hostname)
            .map_err(|error| failed("setting the host name", &error))?;
    }
    for (name, value) in &wanted.sysctls {
        let path = sysctl_path(name)?;
        fs::write(&path, value).map_err(|error| failed(&format!("setting sysctl {name}={value}"), &error))?;
    }
    Ok(())
}

fn create_here(wanted: &Wanted) -> Result<(), RuntimeError> {
    let failed =
        |what: &str, error: &dyn std::fmt::Display| RuntimeError::Internal(format!("{what}: {error}"));
    unshare(unshare_flags(&wanted.pins)).map_err(|error| failed("creating namespaces", &error))?;
    configure(wanted)?;
    for (name, path) in &wanted.pins {
        pin(Path::new(&format!("/proc/thread-self/ns/{name}")), path)
            .map_err(|error| failed(&format!("pinning the {name} namespace"), &error))?;
    }
    Ok(())
}

/// `net.ipv4.ip_forward` and `net/ipv4/conf/eth0.1/forwarding` are both names of kernel parameters.
fn sysctl_path(name: &str) -> Result<PathBuf, RuntimeError> {
    let first = name.find(['.', '/']).map(|at| name.as_bytes()[at]);
    let relative = if first == Some(b'/') { name.to_owned() } else { name.replace('.', "/") };
    let namespaced = ["net/", "kernel/shm", "kernel/msg", "kernel/sem", "fs/mqueue/"];
    if relative.split('/').any(|part| part.is_empty() || part == "..")
        || !namespaced.iter().any(|prefix| relative.starts_with(prefix))
    {
        return Err(RuntimeError::InvalidArgument(format!(
            "sysctl {name:?} is not of the pod's own namespaces"
        )));
    }
    Ok(Path::new("/proc/sys").join(relative))
}

/// Keeps a namespace by a mount.
///
/// # Errors
/// Those of the kernel.
pub fn pin(namespace: &Path, path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    File::create(path)?;
    mount(Some(namespace), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    Ok(())
}

/// Takes a mount away, and whatever is mounted over it; what is not mounted is a success.
///
/// # Errors
/// Those of the kernel.
pub fn unmount(path: &Path) -> io::Result<()> {
    // Mounts can be stacked; nothing of ours is deeper than a few.
    for _ in 0..16 {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Enters a pinned network namespace; for threads that end afterwards.
///
/// # Errors
/// Those of the kernel.
pub fn enter_network(path: &Path) -> Result<(), RuntimeError> {
    let file = File::open(path)?;
    setns(&file, CloneFlags::CLONE_NEWNET)
        .map_err(|error| RuntimeError::Internal(format!("entering {}: {error}", path.display())))
}

/// All mount points at or below a directory, the deepest first.
///
/// # Errors
/// When the table cannot be read.
pub fn mounts_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut points = MountTable::read()?.points_below(directory);
    points.reverse();
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctls_are_of_the_namespaces() {
        let path = |name| sysctl_path(name).map(|path| path.display().to_string());
        assert_eq!(path("net.ipv4.ip_forward").unwrap(), "/proc/sys/net/ipv4/ip_forward");
        assert_eq!(
            path("net/ipv4/conf/eth0.1/forwarding").unwrap(),
            "/proc/sys/net/ipv4/conf/eth0.1/forwarding"
        );
        assert_eq!(path("kernel.shm_rmid_forced").unwrap(), "/proc/sys/kernel/shm_rmid_forced");
        for name in ["vm.swappiness", "net..", "net/../vm/swappiness", "kernel.core_pattern", ""] {
            assert!(path(name).is_err(), "{name}");
        }
    }
}

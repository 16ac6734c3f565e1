//! Root file systems of containers: overlays of image layers with a writable layer in the bundle.
//!
//! Invariant: layers are passed as descriptors, so that neither their number nor characters of their paths matter; the
//! writable layer goes with the bundle.

use super::namespaces::unmount;
use kaji_containers::RuntimeError;
use nix::mount::{MsFlags, mount};
use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Mounts layers (the topmost first) at `rootfs` in the bundle.
///
/// # Errors
/// Those of the kernel.
pub fn mount_root(bundle: &Path, layers: &[PathBuf]) -> Result<PathBuf, RuntimeError> {
    let rootfs = bundle.join("rootfs");
    let (upper, work) = (bundle.join("upper"), bundle.join("work"));
    for directory in [&rootfs, &upper, &work] {
        fs::create_dir_all(directory)?;
    }
    // The writable layer's own mode is that of the container's root directory.
    let mode =
        layers.first().map_or(Ok(0o755), |top| fs::metadata(top).map(|m| m.permissions().mode() & 0o7777));
    fs::set_permissions(&upper, Permissions::from_mode(mode?))?;
    overlay(&rootfs, layers, Some((&upper, &work)))?;
    Ok(rootfs)
}

/// Mounts layers read-only.
///
/// # Errors
/// Those of the kernel.
pub fn mount_read_only(bundle: &Path, name: &str, layers: &[PathBuf]) -> Result<PathBuf, RuntimeError> {
    let target = bundle.join(name);
    let empty = bundle.join("empty");
    fs::create_dir_all(&target)?;
    fs::create_dir_all(&empty)?;
    // A read-only overlay takes at least two layers.
    let mut all = layers.to_vec();
    all.push(empty);
    overlay(&target, &all, None)?;
    Ok(target)
}

fn overlay(target: &Path, layers: &[PathBuf], writable: Option<(&Path, &Path)>) -> Result<(), RuntimeError> {
    if layers.is_empty() {
        return Err(RuntimeError::InvalidArgument("the image has no layers".into()));
    }
    let open = |path: &Path| {
        File::open(path).map_err(|error| RuntimeError::Internal(format!("layer {}: {error}", path.display())))
    };
    let lower = layers.iter().map(|layer| open(layer)).collect::<Result<Vec<_>, _>>()?;
    let name = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = format!("lowerdir={}", lower.iter().map(name).collect::<Vec<_>>().join(":"));
    let mut held = vec![];
    // Device nodes in an image's layers are not to be opened.
    let mut flags = MsFlags::MS_NODEV;
    if let Some((upper, work)) = writable {
        let (upper, work) = (open(upper)?, open(work)?);
        options = format!("{options},upperdir={},workdir={}", name(&upper), name(&work));
        held.extend([upper, work]);
    } else {
        flags |= MsFlags::MS_RDONLY;
    }
    mount(Some("overlay"), target, Some("overlay"), flags, Some(options.as_str())).map_err(|error| {
        RuntimeError::Internal(format!("mounting the overlay at {}: {error}", target.display()))
    })
}

/// Removes a bundle or a sandbox's directory with everything that is mounted in it.
///
/// # Errors
/// Those of the kernel.
pub fn remove_directory(directory: &Path) -> Result<(), RuntimeError> {
    for point in super::namespaces::mounts_below(directory)? {
        unmount(&point)?;
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

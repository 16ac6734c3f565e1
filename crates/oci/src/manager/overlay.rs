//! Root file systems of containers: overlays of image layers with a writable layer in the bundle, or copies where there are no overlays.
//!
//! Invariant: layers are passed as descriptors, so that neither their number nor characters of their paths matter; the
//! writable layer goes with the bundle.

use super::copied_root;
use super::namespaces::unmount;
use crate::rootless::Facts;
use crate::user_namespaces;
use kaji_containers::{IdMapping, RuntimeError};
use kaji_files::NamespaceIds;
use nix::mount::{MsFlags, mount};
use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The user namespace of a pod: where it is pinned, and its ids.
pub type PodIds<'a> = Option<(&'a Path, IdMapping)>;

/// Mounts layers (the topmost first) at `rootfs` in the bundle.
///
/// # Errors
/// Those of the kernel.
pub fn mount_root(bundle: &Path, layers: &[PathBuf], ids: PodIds<'_>) -> Result<PathBuf, RuntimeError> {
    let rootfs = bundle.join("rootfs");
    if !has_overlays() {
        fs::create_dir_all(&rootfs)?;
        copied_root::copy_layers(layers, &rootfs)?;
        return Ok(rootfs);
    }
    let (upper, work) = (bundle.join("upper"), bundle.join("work"));
    for directory in [&rootfs, &upper, &work] {
        fs::create_dir_all(directory)?;
    }
    // The writable layer's own mode is that of the container's root directory.
    let mode =
        layers.first().map_or(Ok(0o755), |top| fs::metadata(top).map(|m| m.permissions().mode() & 0o7777));
    fs::set_permissions(&upper, Permissions::from_mode(mode?))?;
    if let Some((_, range)) = ids {
        std::os::unix::fs::chown(&upper, Some(range.host_id), Some(range.host_id))?;
    }
    with_ids(bundle, "rootfs", layers, ids, |layers| overlay(&rootfs, layers, Some((&upper, &work))))?;
    Ok(rootfs)
}

/// Mounts layers read-only.
///
/// # Errors
/// Those of the kernel.
pub fn mount_read_only(
    bundle: &Path,
    name: &str,
    layers: &[PathBuf],
    ids: PodIds<'_>,
) -> Result<PathBuf, RuntimeError> {
    let target = bundle.join(name);
    let empty = bundle.join("empty");
    fs::create_dir_all(&target)?;
    if !has_overlays() {
        // The container's configuration makes the mount read-only.
        copied_root::copy_layers(layers, &target)?;
        return Ok(target);
    }
    fs::create_dir_all(&empty)?;
    // A read-only overlay takes at least two layers.
    let mut all = layers.to_vec();
    all.push(empty);
    with_ids(bundle, name, &all, ids, |layers| overlay(&target, layers, None))?;
    Ok(target)
}

/// Without root, the kernel or the file system may have none.
fn has_overlays() -> bool {
    Facts::entered().is_none_or(|facts| facts.overlays)
}

/// Hands `work` the layers as they are, or mounted with mapped ids. An overlay keeps clones of its layers' mounts, so that these
/// go again at once.
fn with_ids(
    bundle: &Path,
    name: &str,
    layers: &[PathBuf],
    ids: PodIds<'_>,
    work: impl FnOnce(&[PathBuf]) -> Result<(), RuntimeError>,
) -> Result<(), RuntimeError> {
    let Some((user, _)) = ids else { return work(layers) };
    let user = File::open(user)?;
    let directory = bundle.join(format!("{name}-layers"));
    let mut mapped = vec![];
    for (number, layer) in layers.iter().enumerate() {
        let target = directory.join(number.to_string());
        fs::create_dir_all(&target)?;
        let tree = user_namespaces::clone_tree(layer)?;
        user_namespaces::map_ids(tree.as_fd(), user.as_fd(), layer)?;
        user_namespaces::attach(tree.as_fd(), &target)?;
        mapped.push(target);
    }
    // What is left of one that failed goes with the bundle.
    work(&mapped)?;
    mapped.iter().try_for_each(|target| unmount(target))?;
    Ok(fs::remove_dir_all(&directory)?)
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
    if !NamespaceIds::own().is_whole() {
        // Others than the machine's root have no trusted attributes.
        options.push_str(",userxattr");
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

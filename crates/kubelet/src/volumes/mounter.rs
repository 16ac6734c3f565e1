//! Mounts of the kubelet's own: memory for volumes, bind mounts of sub-paths.

use kaji_files::MountTable;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

/// Mounts and unmounts. Paths are the kubelet's own, below its directory.
pub trait Mounter: Send + Sync + 'static {
    /// Whether this process may mount at all.
    fn can_mount(&self) -> bool;

    /// Mounts memory on a directory, of this size in bytes at most.
    ///
    /// # Errors
    /// The kernel's.
    fn tmpfs(&self, dir: &Path, size: Option<i64>, mode: u32) -> io::Result<()>;

    /// Mounts what a descriptor refers to on a file or directory.
    ///
    /// # Errors
    /// The kernel's.
    fn bind(&self, source: std::os::fd::BorrowedFd<'_>, target: &Path) -> io::Result<()>;

    /// Mounts a file system.
    ///
    /// # Errors
    /// The kernel's.
    fn mount(&self, source: &str, target: &Path, kind: &str, flags: MountFlags, data: &str)
    -> io::Result<()>;

    /// Gives a bind mount other flags.
    ///
    /// # Errors
    /// The kernel's.
    fn change_bind(&self, target: &Path, flags: MountFlags) -> io::Result<()>;

    /// Sees to it that mounts that are made below a directory are seen in other mount namespaces too.
    ///
    /// # Errors
    /// The kernel's.
    fn make_shared(&self, dir: &Path) -> io::Result<()>;

    /// Unmounts; what is no mount point is a success.
    ///
    /// # Errors
    /// The kernel's.
    fn unmount(&self, path: &Path) -> io::Result<()>;

    /// The mount points below a directory, itself included.
    fn below(&self, dir: &Path) -> Vec<PathBuf>;

    /// Whether something is mounted on a path.
    fn is_mount_point(&self, path: &Path) -> bool {
        self.below(path).iter().any(|p| p == path)
    }
}

/// The kernel's mounts, in this process's mount namespace.
#[derive(Debug, Clone, Copy)]
pub struct KernelMounter;

impl Mounter for KernelMounter {
    fn can_mount(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    fn tmpfs(&self, dir: &Path, size: Option<i64>, mode: u32) -> io::Result<()> {
        let size = size.map(|s| format!(",size={s}")).unwrap_or_default();
        let data = CString::new(format!("mode={mode:o}{size}"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("tmpfs", dir, "tmpfs", flags, Some(data.as_c_str()))?;
        Ok(())
    }

    fn bind(&self, source: std::os::fd::BorrowedFd<'_>, target: &Path) -> io::Result<()> {
        // The path of the descriptor: what it refers to cannot be exchanged any more.
        let path = format!("/proc/self/fd/{}", source.as_fd().as_raw_fd());
        rustix::mount::mount_bind(path, target)?;
        Ok(())
    }

    fn mount(
        &self,
        source: &str,
        target: &Path,
        kind: &str,
        flags: MountFlags,
        data: &str,
    ) -> io::Result<()> {
        let data = CString::new(data)?;
        rustix::mount::mount(source, target, kind, flags, Some(data.as_c_str()))?;
        Ok(())
    }

    fn change_bind(&self, target: &Path, flags: MountFlags) -> io::Result<()> {
        // Flags that the source's mount has cannot be taken away by other processes than the first ones; they are kept.
        let kept = flags_of(target);
        rustix::mount::mount_remount(target, MountFlags::BIND | flags | kept, "")?;
        Ok(())
    }

    fn make_shared(&self, dir: &Path) -> io::Result<()> {
        use rustix::mount::MountPropagationFlags as Propagation;
        std::fs::create_dir_all(dir)?;
        if MountTable::read()?.containing(&dir.canonicalize()?).is_some_and(|mount| mount.is_shared) {
            return Ok(());
        }
        let shared = Propagation::SHARED | Propagation::REC;
        let mounts = self.below(dir);
        if mounts.iter().any(|mount| mount == dir) {
            rustix::mount::mount_change(dir, shared)?;
            return Ok(());
        }
        // The copies of these are what is seen from now on. Those below would be in the mount table for ever.
        let mut former = vec![];
        for mount in mounts {
            former.push(rustix::fs::openat(CWD, &mount, PATH_ONLY, Mode::empty())?);
        }
        rustix::mount::mount_bind_recursive(dir, dir)?;
        rustix::mount::mount_change(dir, shared)?;
        for mount in former.iter().rev() {
            let path = format!("/proc/self/fd/{}", mount.as_raw_fd());
            rustix::mount::unmount(path, UnmountFlags::DETACH)?;
        }
        Ok(())
    }

    fn unmount(&self, path: &Path) -> io::Result<()> {
        match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn below(&self, dir: &Path) -> Vec<PathBuf> {
        MountTable::read().unwrap_or_default().points_below(dir)
    }
}

/// The flags of the mount on a path that a remount has to repeat.
fn flags_of(path: &Path) -> MountFlags {
    let mut flags = MountFlags::empty();
    let table = MountTable::read().unwrap_or_default();
    for option in table.at(path).iter().flat_map(|mount| &mount.options) {
        flags |= match option.as_str() {
            "ro" => MountFlags::RDONLY,
            "nosuid" => MountFlags::NOSUID,
            "nodev" => MountFlags::NODEV,
            "noexec" => MountFlags::NOEXEC,
            "noatime" => MountFlags::NOATIME,
            "nodiratime" => MountFlags::NODIRATIME,
            "relatime" => MountFlags::RELATIME,
            _ => MountFlags::empty(),
        };
    }
    flags
}

/// Flags for a descriptor that only names a file.
pub(super) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

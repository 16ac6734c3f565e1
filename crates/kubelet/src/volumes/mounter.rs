//! Mounts of the kubelet's own: memory for volumes, bind mounts of sub-paths.

use rustix::fs::OFlags;
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

    fn unmount(&self, path: &Path) -> io::Result<()> {
        match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn below(&self, dir: &Path) -> Vec<PathBuf> {
        let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return vec![] };
        let point = |line: &str| line.split(' ').nth(4).map(|p| PathBuf::from(unescape(p)));
        table.lines().filter_map(point).filter(|p| p.starts_with(dir)).collect()
    }
}

/// `\040` and the like stand for what would end a word of the table.
fn unescape(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|c| u8::from_str_radix(c, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

/// Flags for a descriptor that only names a file.
pub(super) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

//! Mounts of the kubelet's own: memory for volumes, bind mounts of sub-paths.

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
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        if shared(&table, &dir.canonicalize()?) {
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
        let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return vec![] };
        let point = |line: &str| line.split(' ').nth(4).map(|p| PathBuf::from(unescape(p)));
        table.lines().filter_map(point).filter(|p| p.starts_with(dir)).collect()
    }
}

/// Whether the mount that a path is on is shared, by the mount table.
fn shared(table: &str, path: &Path) -> bool {
    let mut found = (0, false);
    for line in table.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let Some(point) = words.get(4).map(|p| PathBuf::from(unescape(p))) else { continue };
        let depth = point.components().count();
        // Of several on one path the last one is seen.
        if path.starts_with(&point) && depth >= found.0 {
            let optional = words.iter().skip(6).take_while(|w| **w != "-");
            found = (depth, optional.into_iter().any(|w| w.starts_with("shared:")));
        }
    }
    found.1
}

/// The flags of the mount on a path that a remount has to repeat.
fn flags_of(path: &Path) -> MountFlags {
    let mut flags = MountFlags::empty();
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return flags };
    let words = table.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    let options = words.rev().find(|w| w.get(4).is_some_and(|p| Path::new(&unescape(p)) == path));
    for option in options.iter().filter_map(|w| w.get(5)).flat_map(|o| o.split(',')) {
        flags |= match option {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_as_shared_as_the_mount_that_it_is_on() {
        let table = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /var rw shared:1 - ext4 /dev/b rw\n\
                     3 2 8:3 / /var/my\\040lib rw master:1 - ext4 /dev/c rw\n";
        let of = |path: &str| shared(table, Path::new(path));
        assert!(of("/var/lib/kubelet") && of("/var"));
        assert!(!of("/tmp") && !of("/var/my lib/x") && !of("/variable"));
    }
}

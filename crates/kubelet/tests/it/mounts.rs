//! A mounter that keeps what it was asked for in memory.

use kaji_kubelet::volumes::Mounter;
use rustix::mount::MountFlags;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Mounts nothing: volumes are plain directories. Keeps what it was asked for where it may mount.
#[derive(Default)]
pub struct NoMounts {
    pub may: bool,
    /// Targets and what is mounted there.
    pub mounts: Mutex<BTreeMap<PathBuf, String>>,
}

impl NoMounts {
    fn add(&self, target: &Path, what: String) -> std::io::Result<()> {
        self.mounts.lock().unwrap().insert(target.to_owned(), what);
        Ok(())
    }
}

impl Mounter for NoMounts {
    fn can_mount(&self) -> bool {
        self.may
    }
    fn tmpfs(&self, dir: &Path, _: Option<i64>, _: u32) -> std::io::Result<()> {
        if self.may {
            self.add(dir, "tmpfs".into())
        } else {
            Err(std::io::ErrorKind::PermissionDenied.into())
        }
    }
    fn bind(&self, source: std::os::fd::BorrowedFd<'_>, target: &Path) -> std::io::Result<()> {
        use std::os::fd::AsRawFd;
        let source = std::fs::read_link(format!("/proc/self/fd/{}", source.as_raw_fd()))?;
        if self.may {
            self.add(target, source.display().to_string())
        } else {
            Err(std::io::ErrorKind::PermissionDenied.into())
        }
    }
    fn mount(
        &self,
        source: &str,
        target: &Path,
        kind: &str,
        flags: MountFlags,
        data: &str,
    ) -> std::io::Result<()> {
        self.add(target, format!("{kind} {source} {} {data}", flags.bits()))
    }
    fn change_bind(&self, target: &Path, flags: MountFlags) -> std::io::Result<()> {
        let mut mounts = self.mounts.lock().unwrap();
        mounts.get_mut(target).unwrap().push_str(&format!(" flags {}", flags.bits()));
        Ok(())
    }
    fn make_shared(&self, dir: &Path) -> std::io::Result<()> {
        self.add(dir, "shared".into())
    }
    fn unmount(&self, path: &Path) -> std::io::Result<()> {
        self.mounts.lock().unwrap().remove(path);
        Ok(())
    }
    fn below(&self, dir: &Path) -> Vec<PathBuf> {
        self.mounts.lock().unwrap().keys().filter(|p| p.starts_with(dir)).cloned().collect()
    }
}

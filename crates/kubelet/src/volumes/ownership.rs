//! Giving a volume to a pod's `fsGroup`. Upstream's `volume_linux.go`.
//!
//! Invariant: nothing outside of the volume changes, though a pod that has the volume already may exchange its files meanwhile:
//! every file is opened by its name in an open directory, without following links, and changed by its descriptor.

use crate::pods::core::Pod;
use crate::pods::model;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, chownat, openat, statat};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Directories below each other.
const DEEPEST: usize = 400;

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const ENTER: u32 = 0o110;
const SET_GROUP: u32 = 0o2000;

/// The group of a pod's volumes, and whether a volume is left as it is when its root has the group already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VolumeGroup {
    pub(super) gid: u32,
    pub(super) only_on_mismatch: bool,
}

impl VolumeGroup {
    pub(super) fn of(pod: &Pod) -> Option<VolumeGroup> {
        let context = model::spec(pod).security_context.as_ref()?;
        let gid = u32::try_from(context.fs_group?).ok()?;
        let only_on_mismatch = context.fs_group_change_policy.as_deref() == Some("OnRootMismatch");
        Some(VolumeGroup { gid, only_on_mismatch })
    }

    /// Whether a volume's root is as the group needs it.
    fn holds(self, volume: &Path, read_only: bool) -> bool {
        let Ok(found) = std::fs::metadata(volume) else { return false };
        let needed = if read_only { READ_ONLY } else { READ_WRITE } | ENTER | SET_GROUP;
        found.is_dir()
            && std::os::unix::fs::MetadataExt::gid(&found) == self.gid
            && found.permissions().mode() & needed == needed
    }

    /// Gives a volume and all in it to the group. Blocks.
    ///
    /// # Errors
    /// A text.
    pub(super) fn apply(self, volume: &Path, read_only: bool) -> Result<(), String> {
        if self.only_on_mismatch && self.holds(volume, read_only) {
            return Ok(());
        }
        let shown = |error: Errno| format!("{}: {error}", volume.display());
        // The root may be a link of the kubelet's own.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, volume, flags, Mode::empty()).map_err(shown)?;
        self.directory(&root, read_only, 0).map_err(shown)
    }

    fn directory(self, dir: &OwnedFd, read_only: bool, depth: usize) -> Result<(), Errno> {
        if depth > DEEPEST {
            return Err(Errno::LOOP);
        }
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match openat(dir, name, flags, Mode::empty()) {
                Ok(file) => file,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error),
            };
            let kind = FileType::from_raw_mode(statat(&file, "", AtFlags::EMPTY_PATH)?.st_mode);
            if kind == FileType::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match openat(dir, name, flags, Mode::empty()) {
                    Ok(inner) => self.directory(&inner, read_only, depth + 1)?,
                    // Exchanged meanwhile.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            self.file(&file, kind, read_only);
        }
        self.file(dir, FileType::Directory, read_only);
        Ok(())
    }

    /// Failures are logged, as upstream does: some file systems know no owners.
    fn file(self, file: &OwnedFd, kind: FileType, read_only: bool) {
        let changed = chownat(file, "", None, Some(Gid::from_raw(self.gid)), AtFlags::EMPTY_PATH);
        if let Err(error) = changed {
            tracing::debug!(%error, "a file of a volume keeps its group");
        }
        if kind == FileType::Symlink {
            return;
        }
        let Ok(found) = statat(file, "", AtFlags::EMPTY_PATH) else { return };
        let mut mode = found.st_mode & 0o7777 | if read_only { READ_ONLY } else { READ_WRITE };
        if kind == FileType::Directory {
            mode |= ENTER | SET_GROUP;
        }
        // A descriptor that only names a file takes no mode; the path of the descriptor does.
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        if let Err(error) = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)) {
            tracing::debug!(%error, "a file of a volume keeps its mode");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn files_get_the_group_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("v"), dir.path().join("outside"));
        std::fs::create_dir_all(volume.join("a/b")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        for file in [&volume.join("a/b/file"), &outside.join("file")] {
            std::fs::write(file, "").unwrap();
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&outside, volume.join("link")).unwrap();
        symlink(outside.join("file"), volume.join("a/link")).unwrap();
        // The group of this process: only root may give files to others.
        let gid = std::fs::metadata(&volume).unwrap().gid();
        let group = VolumeGroup { gid, only_on_mismatch: true };
        assert!(!group.holds(&volume, false));
        group.apply(&volume, false).unwrap();
        assert!(group.holds(&volume, false));
        assert_eq!(mode(&volume.join("a/b/file")), 0o660);
        assert_eq!(mode(&volume.join("a/b")) & 0o2770, 0o2770);
        assert_eq!((mode(&outside), mode(&outside.join("file"))), (0o700, 0o600));
        // A root that is right is not looked into.
        std::fs::set_permissions(volume.join("a/b/file"), std::fs::Permissions::from_mode(0o600)).unwrap();
        group.apply(&volume, false).unwrap();
        assert_eq!(mode(&volume.join("a/b/file")), 0o600);
        VolumeGroup { only_on_mismatch: false, ..group }.apply(&volume, false).unwrap();
        assert_eq!(mode(&volume.join("a/b/file")), 0o660);
    }
}

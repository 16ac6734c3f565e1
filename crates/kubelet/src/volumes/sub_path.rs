//! Sub-paths of volumes. A container can change its volumes while it is configured anew: the path is resolved by the kernel
//! within the volume, to a descriptor, and that is what is mounted.
//!
//! Invariant: nothing outside the volume is opened or created, whatever links there are in it.

use super::mounter::{Mounter, PATH_ONLY};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat2, statat};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// Opens a path within a volume, creating directories that are missing.
fn open(volume: &Path, sub: &str) -> Result<OwnedFd, String> {
    let shown = |e: rustix::io::Errno| format!("{sub}: {e}");
    let root = rustix::fs::openat(CWD, volume, PATH_ONLY, Mode::empty()).map_err(shown)?;
    match openat2(&root, sub, PATH_ONLY, Mode::empty(), BENEATH) {
        Ok(found) => return Ok(found),
        Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(shown(error)),
    }
    let mut dir = root;
    for part in sub.split('/').filter(|p| !p.is_empty() && *p != ".") {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let next = openat2(&dir, part, directory, Mode::empty(), BENEATH);
        dir = match next {
            Ok(next) => next,
            Err(rustix::io::Errno::NOENT) => {
                mkdirat(&dir, part, Mode::from_raw_mode(0o750)).map_err(shown)?;
                openat2(&dir, part, directory, Mode::empty(), BENEATH).map_err(shown)?
            }
            Err(error) => return Err(shown(error)),
        };
    }
    Ok(dir)
}

/// Mounts a path within a volume at a place of the pod's own, or answers what is mounted there already.
///
/// # Errors
/// A text for the log.
pub(super) fn bind(
    mounter: &dyn Mounter,
    volume: &Path,
    sub: &str,
    target: &Path,
) -> Result<PathBuf, String> {
    let shown = |e: std::io::Error| format!("{}: {e}", target.display());
    if !mounter.can_mount() {
        return Err("this kubelet may not mount file systems".to_owned());
    }
    let source = open(volume, sub)?;
    mounter.unmount(target).map_err(shown)?;
    let kind = statat(&source, "", AtFlags::EMPTY_PATH).map_err(|e| shown(e.into()))?;
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent).map_err(shown)?;
    }
    if FileType::from_raw_mode(kind.st_mode) == FileType::Directory {
        std::fs::create_dir_all(target).map_err(shown)?;
    } else {
        std::fs::OpenOptions::new().create(true).append(true).open(target).map_err(shown)?;
    }
    mounter.bind(std::os::fd::AsFd::as_fd(&source), target).map_err(shown)?;
    Ok(target.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_a_volume_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        std::fs::create_dir_all(volume.join("inner")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, volume.join("absolute")).unwrap();
        std::os::unix::fs::symlink("../outside", volume.join("relative")).unwrap();
        std::os::unix::fs::symlink("inner", volume.join("fine")).unwrap();
        for sub in ["absolute", "relative", "relative/new", "absolute/new", "../outside"] {
            assert!(open(&volume, sub).is_err(), "{sub}");
        }
        for sub in ["inner", "fine", "new/dir"] {
            assert!(open(&volume, sub).is_ok(), "{sub}");
        }
        assert!(volume.join("new/dir").is_dir());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }
}

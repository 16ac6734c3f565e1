//! Sub-paths of volumes. A container can change its volumes while it is configured anew: the path is resolved by the kernel
//! within the volume, to a descriptor, and that is what is mounted.
//!
//! Invariant: nothing outside the volume is opened or created, whatever links there are in it.

use super::mounter::{Mounter, PATH_ONLY};
use kaji_files::open_within;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fchmod, mkdirat, statat};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// Opens a path within a volume, creating directories that are missing. They get the permissions of the volume, so that what may
/// write the volume may write them.
fn open(volume: &Path, sub: &str) -> Result<OwnedFd, String> {
    let shown = |e: rustix::io::Errno| format!("{sub}: {e}");
    let root = rustix::fs::openat(CWD, volume, PATH_ONLY, Mode::empty()).map_err(shown)?;
    match open_within(&root, sub, PATH_ONLY, BENEATH) {
        Ok(found) => return Ok(found),
        Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(shown(error)),
    }
    let volume_mode = statat(&root, "", AtFlags::EMPTY_PATH).map_err(shown)?.st_mode & 0o7777;
    let mut dir = root;
    for part in sub.split('/').filter(|p| !p.is_empty() && *p != ".") {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let next = open_within(&dir, part, directory, BENEATH);
        dir = match next {
            Ok(next) => next,
            Err(rustix::io::Errno::NOENT) => {
                mkdirat(&dir, part, Mode::from_raw_mode(volume_mode)).map_err(shown)?;
                // Creating is subject to the process's mask of permissions.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let made = open_within(&dir, part, flags, BENEATH).map_err(shown)?;
                fchmod(&made, Mode::from_raw_mode(volume_mode)).map_err(shown)?;
                made
            }
            Err(error) => return Err(shown(error)),
        };
    }
    Ok(dir)
}

/// Reads a regular file of a volume. Links in the volume are followed as if the volume were the root.
///
/// # Errors
/// Also for a file of more than `longest` bytes.
pub(super) fn read(volume: &Path, path: &str, longest: u64) -> std::io::Result<String> {
    let root = rustix::fs::openat(CWD, volume, PATH_ONLY, Mode::empty())?;
    // Opening a pipe would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = std::fs::File::from(open_within(&root, path, flags, inside)?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut bytes = vec![];
    file.take(longest + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        return Err(std::io::Error::other(format!("more than {longest} bytes")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
    fn a_new_sub_path_has_the_permissions_of_its_volume() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o2777)).unwrap();
        std::fs::create_dir(dir.path().join("old")).unwrap();
        let old = mode(&dir.path().join("old"));
        open(dir.path(), "old").unwrap();
        open(dir.path(), "a/new").unwrap();
        assert_eq!(mode(&dir.path().join("a")), 0o2777);
        assert_eq!(mode(&dir.path().join("a/new")), 0o2777);
        assert_eq!(mode(&dir.path().join("old")), old);
    }

    #[test]
    fn files_are_read_within_their_volume_up_to_a_size() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        std::fs::write(volume.join("secret"), "inside").unwrap();
        std::os::unix::fs::symlink("/secret", volume.join("absolute")).unwrap();
        std::os::unix::fs::symlink("../../secret", volume.join("relative")).unwrap();
        for path in ["secret", "absolute", "relative", "/secret"] {
            assert_eq!(read(&volume, path, 6).unwrap(), "inside", "{path}");
        }
        assert!(read(&volume, "secret", 5).is_err());
        assert!(read(&volume, ".", 5).is_err());
        assert!(read(&volume, "absent", 5).is_err());
    }

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

//! Opening files within a directory, resolved by the kernel (`openat2(2)`).
//!
//! Invariant: a rename or a mount of something else fails no opening. While the kernel follows `..` within a directory it
//! answers `EAGAIN` when either happened meanwhile, since `..` may then lead out of it.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

/// Attempts before `EAGAIN` is the answer. One fails when a rename or a mount falls within the microseconds that it takes.
const MAX_ATTEMPTS: usize = 1000;

/// Opens a path within a directory; nothing is created. `resolve` says what happens to paths that lead out of it.
///
/// # Errors
/// As `openat2(2)`; `EAGAIN` after many attempts only.
pub fn open_within(
    directory: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    for _ in 0..MAX_ATTEMPTS {
        match openat2(&directory, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn renames_meanwhile_fail_no_opening() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        std::fs::create_dir_all(volume.join("a/b/c")).unwrap();
        std::fs::write(volume.join("file"), "inside").unwrap();
        let root = std::fs::File::open(&volume).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (one, other) = (dir.path().join("one"), dir.path().join("other"));
                std::fs::create_dir(&one).unwrap();
                while !done.load(Ordering::Relaxed) {
                    std::fs::rename(&one, &other).unwrap();
                    std::fs::rename(&other, &one).unwrap();
                }
            });
            let opened = (0..20_000).try_for_each(|_| {
                let path = "a/b/c/../../b/c/../../../file";
                open_within(&root, path, OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::BENEATH).map(drop)
            });
            done.store(true, Ordering::Relaxed);
            opened.unwrap();
        });
    }
}

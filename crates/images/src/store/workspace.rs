//! Directories for unfinished work, locked by the process that works there.

use super::Store;
use crate::error::{Context, ImageError};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A directory that is removed when it is dropped, or by a later sweep when the process was killed.
pub struct Workspace {
    path: PathBuf,
    _lock: File,
}

impl Workspace {
    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a directory of unfinished work could not be removed");
        }
    }
}

impl Store {
    /// Makes a directory for unfinished work.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn workspace(&self) -> Result<Workspace, ImageError> {
        let path = self.temporary();
        // A sweep would take a directory for an abandoned one before it is locked.
        let _lock = self.lock()?;
        std::fs::create_dir(&path).on("create", &path)?;
        let lock = path.join("lock");
        let file = File::options().create_new(true).write(true).open(&lock).on("create", &lock)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).on("lock", &lock)?;
        Ok(Workspace { path, _lock: file })
    }

    /// Removes the directories of processes that are gone; the caller holds the lock.
    pub(super) fn remove_abandoned(&self) -> Result<(), ImageError> {
        let tmp = self.root().join("tmp");
        for entry in std::fs::read_dir(&tmp).on("read", &tmp)? {
            let path = entry.on("read", &tmp)?.path();
            if let Ok(file) = File::open(path.join("lock"))
                && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
            {
                continue;
            }
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).on("remove", &path);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

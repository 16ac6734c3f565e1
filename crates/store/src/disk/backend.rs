//! The file beneath the database, and what its errors mean to the store.
//!
//! Invariant: an error of the file system or of the database becomes a [`StoreError`] that says which file it is about
//! and what to do; a full disk and damage are told apart from everything else.

use crate::StoreError;
use crate::mvcc::panic_text;
use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};
use std::fmt::Debug;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// Makes file operations fail, so that a full or broken disk can be tried out.
pub trait Fault: Debug + Send + Sync + 'static {
    /// Called before a write of `len` bytes at `offset`; its error is the write's.
    ///
    /// # Errors
    /// Whatever the disk is to say.
    fn on_write(&self, offset: u64, len: usize) -> io::Result<()>;

    /// Called before an fsync; its error is the fsync's.
    ///
    /// # Errors
    /// Whatever the disk is to say.
    fn on_sync(&self) -> io::Result<()>;

    /// How many bytes the disk is to have left; `None` for as many as it has.
    fn free(&self) -> Option<u64> {
        None
    }
}

/// How many bytes are left on the disk that a file is on, for whoever this process runs as; `None` where nobody knows.
pub(super) fn free(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let disk = rustix::fs::statvfs(path).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// redb's file, with faults.
#[derive(Debug)]
pub(super) struct Backend {
    pub file: FileBackend,
    pub fault: Option<Arc<dyn Fault>>,
}

type LockResult = Result<bool, BackendError>;

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fault.as_ref().map_or(Ok(()), |f| f.on_sync())?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.fault.as_ref().map_or(Ok(()), |f| f.on_write(offset, data.len()))?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> LockResult {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> LockResult {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> LockResult {
        self.file.query_lock_range(start, end)
    }
}

/// What an error of the file system means.
pub(super) fn io_error(path: &Path, error: &io::Error) -> StoreError {
    let text = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            StoreError::NoSpace(format!("{text}; free some space and start again"))
        }
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => StoreError::Corrupt(text),
        _ => StoreError::Unavailable(text),
    }
}

/// What an error of the database means.
pub(super) fn db_error(path: &Path, error: impl Into<redb::Error>) -> StoreError {
    match error.into() {
        redb::Error::Io(error) => io_error(path, &error),
        redb::Error::PreviousIo => StoreError::Unavailable(format!(
            "{}: an earlier write failed, so that what is on disk is unknown; start again",
            path.display()
        )),
        redb::Error::DatabaseAlreadyOpen => in_use(path),
        redb::Error::DatabaseClosed => StoreError::Closed,
        error @ (redb::Error::Corrupted(_)
        | redb::Error::UpgradeRequired(_)
        | redb::Error::RepairAborted
        | redb::Error::TableDoesNotExist(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TypeDefinitionChanged { .. }) => {
            StoreError::Corrupt(format!("{}: {error}", path.display()))
        }
        error => StoreError::Unavailable(format!("{}: {error}", path.display())),
    }
}

/// The error for a directory that another process has.
pub(super) fn in_use(path: &Path) -> StoreError {
    StoreError::Unavailable(format!("{} is in use by another process", path.display()))
}

/// Runs something that reads the database. redb panics over some kinds of damage; that is damage too.
pub(super) fn guarded<T>(path: &Path, run: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        Err(StoreError::Corrupt(format!("{}: {}", path.display(), panic_text(&*panic))))
    })
}

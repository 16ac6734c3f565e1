//! The file beneath the database, and what its errors mean to the store.
//!
//! Invariants: nothing is read from a file once it is closed, because it may have been opened anew by then and changed;
//! an error of the file system or of the database becomes a [`StoreError`] that says which file it is about
//! and what to do; a full disk and damage have separate errors.

use super::DiskOptions;
use crate::StoreError;
use crate::mvcc::panic_text;
use redb::backends::FileBackend;
use redb::{BackendError, Builder, Database, StorageBackend};
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

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

    /// As [`Fault::on_write`], with the file as it is before the write. What this writes itself before it fails is a short write.
    ///
    /// # Errors
    /// Whatever the disk is to say.
    fn before_write(&self, file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
        let _ = file;
        self.on_write(offset, data.len())
    }

    /// Called before a file's length changes; its error is that of the change.
    ///
    /// # Errors
    /// Whatever the disk is to say.
    fn before_resize(&self, file: &File, len: u64) -> io::Result<()> {
        let _ = (file, len);
        Ok(())
    }

    /// Everything that was written to a file is on disk.
    fn synced(&self, file: &File) {
        let _ = file;
    }
}

/// What stands between the store and one of its files: nothing, or a fault.
#[derive(Debug, Default)]
pub(super) struct FaultyFile {
    /// The fault, and the file that it looks at.
    fault: Option<(Arc<dyn Fault>, File)>,
}

impl FaultyFile {
    /// For this file.
    pub fn new(fault: Option<&Arc<dyn Fault>>, file: &File) -> io::Result<FaultyFile> {
        let fault = fault.map(|fault| Ok::<_, io::Error>((fault.clone(), file.try_clone()?)));
        Ok(FaultyFile { fault: fault.transpose()? })
    }

    /// Writes, if the fault lets it.
    pub fn write(&self, offset: u64, data: &[u8], write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if let Some((fault, file)) = &self.fault {
            fault.before_write(file, offset, data)?;
        }
        write()
    }

    /// Changes the length, if the fault lets it.
    pub fn resize(&self, len: u64, resize: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if let Some((fault, file)) = &self.fault {
            fault.before_resize(file, len)?;
        }
        resize()
    }

    /// Syncs, if the fault lets it.
    pub fn sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some((fault, file)) = &self.fault else { return sync() };
        fault.on_sync()?;
        sync()?;
        fault.synced(file);
        Ok(())
    }
}

/// How many bytes the user of this process may still write on the file system of a file; `None` where the system does not say.
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

/// An open database.
#[derive(Debug)]
pub(super) struct Opened {
    pub db: Database,
    /// It was closed to be opened anew.
    pub replaced: Arc<AtomicBool>,
    draft: Arc<AtomicBool>,
}

impl Opened {
    /// Ends the making of a new file: what is in it is on disk, and what will be written is synced as the database asks for.
    ///
    /// # Errors
    /// When it cannot be synced.
    pub fn complete(&self, path: &Path, options: &DiskOptions) -> Result<(), StoreError> {
        self.draft.store(false, Ordering::SeqCst);
        let sync = || {
            let file = File::open(path)?;
            FaultyFile::new(options.fault.as_ref(), &file)?.sync(|| file.sync_all())
        };
        sync().map_err(|e| io_error(path, &e))
    }
}

/// Whether an fsync of a file has failed: the system may show what is not on disk, now and when it is opened again.
pub(super) type Unsynced = Arc<AtomicBool>;

/// Opens a database, or makes a file that is one. A new file is not synced before [`Opened::complete`]: without its name it
/// is of no use after a crash.
pub(super) fn open(
    path: &Path,
    new: bool,
    options: &DiskOptions,
    unsynced: &Unsynced,
) -> Result<Opened, StoreError> {
    let mut open = OpenOptions::new();
    open.read(true).write(true).create_new(new);
    std::os::unix::fs::OpenOptionsExt::mode(&mut open, kaji_files::PRIVATE);
    let file = open.open(path).map_err(|e| io_error(path, &e))?;
    guarded(path, || {
        let fault = FaultyFile::new(options.fault.as_ref(), &file).map_err(|e| io_error(path, &e))?;
        let (file, unsynced) = (FileBackend::new(file).map_err(|e| db_error(path, e))?, unsynced.clone());
        let draft = Arc::new(AtomicBool::new(new));
        let backend = Backend { file, fault, unsynced, draft: draft.clone(), closed: RwLock::default() };
        let database = Builder::new().set_cache_size(options.cache_bytes).create_with_backend(backend);
        Ok(Opened { db: database.map_err(|e| db_error(path, e))?, replaced: Arc::default(), draft })
    })
}

/// redb's file, with faults.
#[derive(Debug)]
struct Backend {
    file: FileBackend,
    fault: FaultyFile,
    unsynced: Unsynced,
    /// Set while the file is being made.
    draft: Arc<AtomicBool>,
    /// Held shared by reads.
    closed: RwLock<bool>,
}

type LockResult = Result<bool, BackendError>;

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(io::Error::other("the file is closed"));
        }
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.fault.resize(len, || self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.draft.load(Ordering::SeqCst) {
            return Ok(());
        }
        let synced = self.fault.sync(|| self.file.sync_data());
        synced.inspect_err(|_| self.unsynced.store(true, Ordering::SeqCst))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.fault.write(offset, data, || self.file.write(offset, data))
    }

    fn close(&self) -> io::Result<()> {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
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
            StoreError::NoSpace(format!("{text}; free some space"))
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
            "{}: an earlier write failed, so that what is on disk is unknown",
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

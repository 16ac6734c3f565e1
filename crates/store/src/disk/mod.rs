//! The embedded backend: one directory on this machine, one process at a time.
//!
//! Invariants: an acknowledged write is on disk; a store that was made is never opened as an empty one; a store that is
//! damaged, or that cannot write, says so and refuses to serve. Before a disk is full there is a reserve that is not
//! used: writes are refused, reads and watches go on, and so do writes once there is room again.

mod backend;
mod codec;
mod format;
mod log;

pub use backend::Fault;

use crate::mvcc::hub::HubLimits;
use crate::mvcc::{Engine, Limits, delegate_store};
use crate::{Clock, StoreError, SystemClock};
use backend::{Backend, db_error, guarded, io_error};
use format::{Directory, Found};
use log::DiskLog;
use redb::backends::FileBackend;
use redb::{Builder, Database};
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How a [`DiskStore`] is to behave.
#[derive(Clone)]
pub struct DiskOptions {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// How long superseded versions stay readable.
    pub history_age: Duration,
    /// How many bytes of superseded versions are kept at most.
    pub history_bytes: u64,
    /// The largest transaction, in bytes of keys and values.
    pub max_txn_bytes: usize,
    /// Bytes of the database cached in memory.
    pub cache_bytes: usize,
    /// Bytes of recent changes that watches are served from without reading the disk.
    pub recent_bytes: usize,
    /// Bytes of changes that wait for one watch before it is served from history instead.
    pub watch_queue_bytes: usize,
    /// Makes the disk fail. For tests.
    pub fault: Option<Arc<dyn Fault>>,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            clock: Arc::new(SystemClock),
            history_age: Limits::DEFAULT_HISTORY_AGE,
            history_bytes: Limits::DEFAULT_HISTORY_BYTES,
            max_txn_bytes: Limits::DEFAULT_TXN_BYTES,
            cache_bytes: 2 << 20,
            recent_bytes: Limits::DEFAULT_HUB.recent_bytes,
            watch_queue_bytes: Limits::DEFAULT_HUB.queue_bytes,
            fault: None,
        }
    }
}

/// A [`Store`](crate::Store) in a directory.
#[derive(Debug)]
pub struct DiskStore(Engine);

impl DiskStore {
    /// Opens the store in a directory, or makes an empty one if there never was one. Blocks: it reads the whole log.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when another process has it open or it cannot be read,
    /// [`StoreError::Corrupt`] when it is damaged or part of it is missing, [`StoreError::NoSpace`].
    pub fn open(path: impl AsRef<Path>, options: DiskOptions) -> Result<DiskStore, StoreError> {
        let directory = Directory::lock(path.as_ref())?;
        let db = match directory.inspect()? {
            Found::Store => open_database(&directory.data(), false, &options)?,
            Found::Nothing => {
                let draft = directory.new_data();
                let db = open_database(&draft, true, &options)?;
                log::initialise(&db, &draft)?;
                directory.publish()?;
                db
            }
        };
        let mut log = DiskLog::new(db, directory, options.fault);
        let loaded = log.load()?;
        log.mark()?;
        log.shrink(&loaded.index)?;
        let limits = Limits {
            history_age_millis: u64::try_from(options.history_age.as_millis()).unwrap_or(u64::MAX),
            history_bytes: options.history_bytes,
            max_txn_bytes: options.max_txn_bytes,
            hub: HubLimits { recent_bytes: options.recent_bytes, queue_bytes: options.watch_queue_bytes },
        };
        Engine::start(Box::new(log), loaded, options.clock, limits).map(DiskStore)
    }

    /// Ends expired leases and compacts old history now, instead of within the next half second.
    ///
    /// # Errors
    /// Those of a store that cannot write.
    pub async fn tick(&self) -> Result<(), StoreError> {
        self.0.tick().await
    }
}

delegate_store!(DiskStore);

fn open_database(path: &Path, new: bool, options: &DiskOptions) -> Result<Database, StoreError> {
    let mut open = OpenOptions::new();
    open.read(true).write(true).create_new(new);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut open, 0o600);
    let file = open.open(path).map_err(|e| io_error(path, &e))?;
    guarded(path, || {
        let file = FileBackend::new(file).map_err(|e| db_error(path, e))?;
        let backend = Backend { file, fault: options.fault.clone() };
        let database = Builder::new().set_cache_size(options.cache_bytes).create_with_backend(backend);
        database.map_err(|e| db_error(path, e))
    })
}

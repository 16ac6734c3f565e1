//! The embedded backend: one directory on this machine, one process at a time.
//!
//! Small commits are appended to a journal, and enter the database together ([`journal`]).
//!
//! Invariants: an acknowledged write is on disk; a store that was made is never opened as an empty one; a store that is
//! damaged says so and refuses to serve; one that could not write is opened anew before it goes on. Before a disk is full
//! there is a reserve that is not used: writes are refused, reads and watches go on, and so do writes once there is room
//! again.

mod backend;
mod codec;
mod damage;
mod fork;
mod format;
mod journal;
mod log;
mod pages;
mod pending;
mod restore;
mod rewrite;
mod salvage;
mod survey;

pub use backend::Fault;
pub use damage::Damage;
pub use fork::{Forked, fork};
pub use salvage::{Checkup, Lost, Salvaged, check, salvage};

use crate::mvcc::hub::HubLimits;
use crate::mvcc::{Drive, Engine, Limits};
use crate::{Clock, KeyValue, Revision, Store, StoreError, SystemClock};
use format::{Directory, Found};
use log::DiskLog;
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
    /// Bytes of the journal: commits that are appended to it before they enter the database together. 0 for none.
    pub journal_bytes: usize,
    /// How often, at most, it is looked whether the file is much larger than what is in it, and is written anew.
    pub shrink_interval: Duration,
    /// Bytes of changes that wait for one watch before it is served from history instead.
    pub watch_queue_bytes: usize,
    /// Whether a file that a smaller one replaces at the start is overwritten before it is removed, as a scrub always does:
    /// where values are encrypted, the former file may hold older ones in plain text.
    pub erase_replaced: bool,
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
            journal_bytes: 1 << 20,
            shrink_interval: Limits::DEFAULT_SHRINK_INTERVAL,
            watch_queue_bytes: Limits::DEFAULT_HUB.queue_bytes,
            erase_replaced: false,
            fault: None,
        }
    }
}

/// A [`Store`] in a directory.
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
        let unsynced = backend::Unsynced::default();
        let opened = match directory.inspect()? {
            Found::Store => {
                survey::verify_closed(&directory.data())?;
                backend::open(&directory.data(), false, &options, &unsynced)?
            }
            Found::Nothing => {
                let draft = directory.new_data();
                let opened = backend::open(&draft, true, &options, &unsynced)?;
                log::initialise(&opened.db, &draft)?;
                opened.complete(&draft, &options)?;
                // Its name lasts with that of the database.
                journal::Journal::new(&directory.journal(), &options, &unsynced).create()?;
                directory.publish()?;
                directory.sync()?;
                opened
            }
        };
        let mut log = DiskLog::new((opened, unsynced), directory, options.clone());
        log.replay()?;
        let loaded = log.load()?;
        log.loaded = true;
        log.mark()?;
        log.erase_former()?;
        log.shrink_file(&loaded.index)?;
        let limits = Limits {
            history_age_millis: u64::try_from(options.history_age.as_millis()).unwrap_or(u64::MAX),
            history_bytes: options.history_bytes,
            max_txn_bytes: options.max_txn_bytes,
            shrink_interval: options.shrink_interval,
            hub: HubLimits { recent_bytes: options.recent_bytes, queue_bytes: options.watch_queue_bytes },
        };
        Engine::start(Box::new(log), loaded, options.clock, limits, Drive::Thread).map(DiskStore)
    }

    /// Makes a store in a directory that has none, of the keys that `next` answers with, in any order, until it answers `None`. They
    /// keep their revisions, and the store is at `revision`; nothing below it can be read or watched. Leases get an hour. Answers
    /// with the number of keys. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when there is a store, those of `next`, and those of a store that cannot write. Nothing
    /// half-made is left.
    pub fn restore(
        path: impl AsRef<Path>,
        options: &DiskOptions,
        revision: Revision,
        next: &mut dyn FnMut() -> Result<Option<KeyValue>, StoreError>,
    ) -> Result<u64, StoreError> {
        restore::restore(path.as_ref(), options, revision, next)
    }

    /// Ends expired leases and compacts old history now, instead of within the next half second.
    ///
    /// # Errors
    /// Those of a store that cannot write.
    pub async fn tick(&self) -> Result<(), StoreError> {
        self.0.tick().await
    }
}

impl Store for DiskStore {
    crate::delegate_store!(0);
}

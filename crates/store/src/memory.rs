//! The memory backend: nothing survives the process. For tests and throw-away clusters.
//!
//! Invariant: it differs from the disk backend in nothing but where the log is.

use crate::mvcc::hub::HubLimits;
use crate::mvcc::log::{Commit, Entry, Loc, Log, LogSnapshot, Reader, Record, Visit, missing};
use crate::mvcc::writer::{Fork, Loaded};
use crate::mvcc::{Drive, Engine, Limits, lock};
use crate::{Clock, Revision, Store, StoreError, SystemClock};
use imbl::OrdMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a [`MemoryStore`] is to behave.
#[derive(Clone)]
pub struct MemoryOptions {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// How long superseded versions stay readable.
    pub history_age: Duration,
    /// How many bytes of superseded versions are kept at most.
    pub history_bytes: u64,
    /// The largest transaction, in bytes of keys and values.
    pub max_txn_bytes: usize,
    /// Bytes of recent changes that watches are served from without reading the log.
    pub recent_bytes: usize,
    /// Bytes of changes that wait for one watch before it is served from history instead.
    pub watch_queue_bytes: usize,
    /// Writes on the callers' threads, in the order of the calls, without a thread of the store's own; leases and history end
    /// only with [`MemoryStore::tick`]. For simulations, which have one thread and decide when anything happens.
    pub inline: bool,
}

impl Default for MemoryOptions {
    fn default() -> MemoryOptions {
        MemoryOptions {
            clock: Arc::new(SystemClock),
            history_age: Limits::DEFAULT_HISTORY_AGE,
            history_bytes: Limits::DEFAULT_HISTORY_BYTES,
            max_txn_bytes: Limits::DEFAULT_TXN_BYTES,
            recent_bytes: Limits::DEFAULT_HUB.recent_bytes,
            watch_queue_bytes: Limits::DEFAULT_HUB.queue_bytes,
            inline: false,
        }
    }
}

/// A [`Store`] in memory.
#[derive(Debug)]
pub struct MemoryStore(Engine);

impl MemoryStore {
    /// An empty store with the default options.
    ///
    /// # Errors
    /// When the writer thread cannot be started.
    pub fn new() -> Result<MemoryStore, StoreError> {
        MemoryStore::with_options(MemoryOptions::default())
    }

    /// An empty store.
    ///
    /// # Errors
    /// When the writer thread cannot be started.
    pub fn with_options(options: MemoryOptions) -> Result<MemoryStore, StoreError> {
        start(Box::new(MemoryLog::default()), Loaded::empty(), options)
    }

    /// A second store that begins as this one is now, with the same keys, revisions, history and leases; the two have nothing to do
    /// with each other afterwards. Values are shared, so that this takes the time of copying the index of keys.
    ///
    /// # Errors
    /// When this store is closed, or the writer thread cannot be started.
    pub async fn fork(&self, options: MemoryOptions) -> Result<MemoryStore, StoreError> {
        let Fork { log, loaded } = self.0.fork().await?;
        start(log, loaded, options)
    }

    /// Ends expired leases and compacts old history now, instead of within the next half second.
    ///
    /// # Errors
    /// Those of a store that cannot write.
    pub async fn tick(&self) -> Result<(), StoreError> {
        self.0.tick().await
    }
}

fn start(log: Box<dyn Log>, loaded: Loaded, options: MemoryOptions) -> Result<MemoryStore, StoreError> {
    let limits = Limits {
        history_age_millis: u64::try_from(options.history_age.as_millis()).unwrap_or(u64::MAX),
        history_bytes: options.history_bytes,
        max_txn_bytes: options.max_txn_bytes,
        shrink_interval: Limits::DEFAULT_SHRINK_INTERVAL,
        hub: HubLimits { recent_bytes: options.recent_bytes, queue_bytes: options.watch_queue_bytes },
    };
    let drive = if options.inline { Drive::Caller } else { Drive::Thread };
    Engine::start(log, loaded, options.clock, limits, drive).map(MemoryStore)
}

impl Store for MemoryStore {
    crate::delegate_store!(0);
}

type Entries = OrdMap<Loc, Arc<Entry>>;

/// Snapshots share structure with the map that goes on changing.
#[derive(Clone, Default)]
pub(crate) struct MemoryLog(pub(crate) Arc<Mutex<Entries>>);

impl Log for MemoryLog {
    fn commit(&mut self, commit: &Commit<'_>) -> Result<(), StoreError> {
        let mut entries = lock(&self.0);
        for entry in commit.entries {
            let mut kept = entry.clone();
            kept.event.previous = None;
            entries.insert(entry.loc(), Arc::new(kept));
        }
        for loc in commit.remove {
            entries.remove(loc);
        }
        Ok(())
    }

    /// Nothing is kept but what the map holds.
    fn rewrite(&mut self) -> Result<Result<(), StoreError>, StoreError> {
        Ok(Ok(()))
    }

    fn reopen(&mut self) -> Result<Option<Loaded>, StoreError> {
        Ok(None)
    }

    fn fork(&self) -> Option<Box<dyn Log>> {
        Some(Box::new(MemoryLog(Arc::new(Mutex::new(lock(&self.0).clone())))))
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(self.clone())
    }
}

impl Reader for MemoryLog {
    fn snapshot(&self) -> Result<Box<dyn LogSnapshot>, StoreError> {
        Ok(Box::new(MemorySnapshot(lock(&self.0).clone())))
    }
}

struct MemorySnapshot(Entries);

impl LogSnapshot for MemorySnapshot {
    fn get(&self, loc: Loc, visit: &mut dyn FnMut(Record<'_>)) -> Result<(), StoreError> {
        let entry = self.0.get(&loc).ok_or_else(|| missing(loc))?;
        visit(Record::from(&**entry));
        Ok(())
    }

    fn scan(&self, from: Revision, to: Revision, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        let (from, to) = (Loc { revision: from, sub: 0 }, Loc { revision: to, sub: u32::MAX });
        for (_, entry) in self.0.range(from..=to) {
            if let ControlFlow::Break(()) = visit(Record::from(&**entry)) {
                break;
            }
        }
        Ok(())
    }
}

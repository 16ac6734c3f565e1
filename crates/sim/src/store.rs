//! The store of a simulation: it outlives the servers over it, its calls take time, and its disk may be full for a while.
//!
//! Invariants:
//! - A commit takes place at one point of the caller's time, after a delay and before another one, so that two writers race as
//!   they do over a network.
//! - While the disk is full, nothing is added or changed; deletions go on, as in the embedded store.

use crate::faults::Dice;
use futures_util::future::BoxFuture;
use kaji_store::{
    LeaseId, Op, Range, RangeResult, Revision, Store, StoreError, Txn, TxnOutcome, WatchStream,
    memory::MemoryStore,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Until when the store's disk is full.
#[derive(Clone, Debug, Default)]
pub struct FullDisk(Arc<Mutex<Option<Instant>>>);

impl FullDisk {
    /// There is no room for so long.
    pub fn fill(&self, time: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + time);
    }

    /// Whether there is no room now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| Instant::now() < until)
    }

    fn failure(&self) -> Option<StoreError> {
        self.is_full().then(|| StoreError::NoSpace("no space left on device".into()))
    }
}

fn adds(txn: &Txn) -> bool {
    txn.ops.iter().any(|op| matches!(op, Op::Put { .. }))
}

/// See the module.
pub struct SimulatedStore {
    inner: Arc<MemoryStore>,
    dice: Dice,
    disk: FullDisk,
}

impl SimulatedStore {
    /// Around a store that writes inline.
    #[must_use]
    pub fn new(inner: Arc<MemoryStore>, dice: Dice, disk: FullDisk) -> SimulatedStore {
        SimulatedStore { inner, dice, disk }
    }

    async fn delay(&self) {
        // Mostly an fsync of a good disk, at times a stall.
        let micros = match self.dice.below(200) {
            0 => self.dice.below(400_000),
            _ => 200 + self.dice.below(2_000),
        };
        tokio::time::sleep(Duration::from_micros(micros)).await;
    }
}

impl Store for SimulatedStore {
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
        Box::pin(async move {
            self.delay().await;
            if let Some(error) = self.disk.failure().filter(|_| adds(&txn)) {
                return Err(error);
            }
            let outcome = self.inner.txn(txn).await;
            self.delay().await;
            outcome
        })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, StoreError>> {
        self.inner.range(range)
    }

    fn watch(&self, prefix: &str, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>> {
        self.inner.watch(prefix, from)
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.inner.revision()
    }

    fn current_revision_hint(&self) -> Option<Revision> {
        self.inner.current_revision_hint()
    }

    fn write_failure(&self) -> Option<StoreError> {
        self.disk.failure().or_else(|| self.inner.write_failure())
    }

    fn request_progress(&self) {
        self.inner.request_progress();
    }

    fn grant_lease(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        match self.disk.failure() {
            Some(error) => Box::pin(std::future::ready(Err(error))),
            None => self.inner.grant_lease(ttl),
        }
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        self.inner.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.revoke(lease)
    }

    fn compact(&self, to: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.compact(to)
    }

    fn scrub(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.scrub()
    }

    fn compacted(&self) -> Revision {
        self.inner.compacted()
    }

    /// The store goes on: the next server opens it.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

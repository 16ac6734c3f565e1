//! The store of a simulation: it outlives the servers over it, and its calls take time.
//!
//! Invariant: a commit takes place at one point of the caller's time, after a delay and before another one, so that two writers
//! race as they do over a network.

use crate::faults::Dice;
use futures_util::future::BoxFuture;
use kaji_store::{
    LeaseId, Range, RangeResult, Revision, Store, StoreError, Txn, TxnOutcome, WatchStream,
    memory::MemoryStore,
};
use std::{sync::Arc, time::Duration};

/// See the module.
pub struct SimulatedStore {
    inner: Arc<MemoryStore>,
    dice: Dice,
}

impl SimulatedStore {
    /// Around a store that writes inline.
    #[must_use]
    pub fn new(inner: Arc<MemoryStore>, dice: Dice) -> SimulatedStore {
        SimulatedStore { inner, dice }
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
        self.inner.write_failure()
    }

    fn request_progress(&self) {
        self.inner.request_progress();
    }

    fn grant_lease(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        self.inner.grant_lease(ttl)
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

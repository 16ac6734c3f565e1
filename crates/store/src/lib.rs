//! The revisioned key space beneath the API server: the [`Store`] trait, the memory and disk backends, and the
//! conformance suite that every backend passes.
//!
//! Invariants of every backend:
//! - One global revision. Every transaction that changes something gets the next one, exactly +1; it never goes back,
//!   neither within a process nor over a restart. An empty store is at revision 1, as etcd's is.
//! - A transaction is atomic: its compares are checked and all its operations applied at one revision, or none is.
//! - When the future of a write resolves, the write is durable (where the backend is), readable, and handed to watchers.
//! - A watch delivers whole transactions in revision order, none missing and none twice, also across a restart, or ends
//!   with an error that says why it cannot.

pub mod archive;
mod blocking;
mod clock;
pub mod conformance;
mod delegate;

pub mod disk;
pub mod memory;
mod mvcc;
mod types;

pub use blocking::{blocking, runs_inline};
pub use clock::{Clock, ManualClock, SystemClock};
pub use types::{
    Compare, Event, EventKind, KeyValue, LeaseId, Op, Range, RangeResult, Revision, StoreError, Txn,
    TxnOutcome, UnreadableChange, WatchBatch, WatchStream,
};

/// What the methods of a [`Store`] answer with.
pub use futures_util::future::BoxFuture;
use std::time::Duration;

/// A revisioned key space with compare-and-set, ranges at a revision, watches from a revision, leases and compaction.
///
/// Used as `Arc<dyn Store>`. Futures must be polled on a tokio runtime. Dropping the future of a write does not undo
/// the write: it may still happen.
pub trait Store: Send + Sync + 'static {
    /// Checks every compare, then applies every operation at one new revision. Resolves once the outcome is durable;
    /// concurrent callers share the cost of making it so.
    ///
    /// A transaction that changes nothing (no operations, or only deletes of absent keys) commits at the current
    /// revision. A key may appear once among the operations.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for an empty or repeated key, [`StoreError::TooLarge`], [`StoreError::LeaseNotFound`]
    /// (in these three nothing was written), and the errors of a store that cannot write. After `Unavailable`,
    /// `NoSpace` or `Closed` the outcome may be unknown, as it is after `Uncertain`.
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>>;

    /// Reads the live keys in a range, in key order, as of a revision.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] for a revision below the compacted one, [`StoreError::FutureRevision`].
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, StoreError>>;

    /// Starts a watch of all keys that start with `prefix`. `from` is the first revision to deliver (the revision of a
    /// list plus one); 0 means from now. A `from` in the future waits for it.
    ///
    /// Batches without events are progress: everything up to their revision has been delivered. They arrive by
    /// themselves shortly after other keys change (see [`Store::request_progress`] for sooner). A slow consumer never
    /// blocks writers; it is served from history until it has caught up. After an error the stream ends.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when `from` is not above the compacted revision.
    fn watch(&self, prefix: &str, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>>;

    /// The keys in a range with the revisions of their last writes. A store that changes values passes this on: it works where a
    /// value cannot be read.
    ///
    /// # Errors
    /// Those of [`Store::range`].
    fn keys(&self, range: Range) -> BoxFuture<'_, Result<Vec<(String, Revision)>, StoreError>> {
        let read = self.range(range);
        Box::pin(async move {
            Ok(read.await?.kvs.into_iter().map(|kv| (kv.key.to_string(), kv.mod_revision)).collect())
        })
    }

    /// Removes a key that was last written at `mod_revision`, and answers with the revision of that; `None` if it has changed since.
    /// A store that changes values passes this on: it works where the value cannot be read.
    ///
    /// # Errors
    /// Those of [`Store::txn`].
    fn remove_unread(
        &self,
        key: &str,
        mod_revision: Revision,
    ) -> BoxFuture<'_, Result<Option<Revision>, StoreError>> {
        let removed = self.txn(Txn::delete(key, mod_revision));
        Box::pin(async move {
            Ok(match removed.await? {
                TxnOutcome::Committed { revision, .. } => Some(revision),
                TxnOutcome::Conflict { .. } => None,
            })
        })
    }

    /// Whether the key's value is stored otherwise than a write of the same value would store it now (under an old
    /// encryption key, say), so that writing it is worthwhile although it changes nothing.
    fn stale(&self, _key: &str) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// The current revision, at least that of every write acknowledged before the call.
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// What [`Store::revision`] would answer, when that is known in this process; `None` for remote stores.
    fn current_revision_hint(&self) -> Option<Revision>;

    /// Why the store cannot write, by its own state: the last write failed, or the disk is nearly full. `None` while writes
    /// succeed, and for stores that do not track it. After a failure it changes only with a later write.
    fn write_failure(&self) -> Option<StoreError> {
        None
    }

    /// Requests a progress batch on every watch, without waiting for it. A hint: cheap, coalesced, never blocks.
    fn request_progress(&self);

    /// Creates a lease. When it is not kept alive for `ttl` the keys attached to it are deleted, in one transaction.
    fn grant_lease(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>>;

    /// Restarts the lease's time to live, and answers with it.
    ///
    /// # Errors
    /// [`StoreError::LeaseNotFound`] when it has expired or was revoked.
    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>>;

    /// Ends a lease now and deletes its keys.
    ///
    /// # Errors
    /// [`StoreError::LeaseNotFound`]
    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Gives up history below `to`: reads below it and watches from it or below fail with `Compacted` from then on.
    /// Compacting to a revision already compacted is no error.
    ///
    /// # Errors
    /// [`StoreError::FutureRevision`]
    fn compact(&self, to: Revision) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Removes everything but current values from where the store keeps them: gives up all history, and leaves nothing of it
    /// in free parts of files or in former files. Reads below the current revision and watches from it or below fail with
    /// `Compacted` afterwards. Takes as long as writing all values anew; writes wait meanwhile.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] when there is no room for a second copy, and those of a store that cannot write.
    /// [`StoreError::Unavailable`] for a kind of store that cannot do this.
    fn scrub(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Err(StoreError::Unavailable("this store cannot be scrubbed".into()))))
    }

    /// The compacted revision as last known here; 0 when nothing was ever compacted.
    fn compacted(&self) -> Revision;

    /// Finishes the queued writes, ends the watches with [`StoreError::Closed`] and releases what the store holds.
    /// Later calls answer `Closed`.
    fn close(&self) -> BoxFuture<'_, ()>;
}

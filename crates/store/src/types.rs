//! The plain data that goes in and out of a [`Store`](crate::Store). No behaviour beyond constructors.

use bytes::Bytes;
use futures_util::stream::BoxStream;
use std::fmt;
use std::sync::Arc;

/// A point in the history of the whole store.
pub type Revision = u64;

/// Names a lease. Positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub i64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// One version of a key. In a delete event: key and `mod_revision` of the delete, everything else empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Arc<str>,
    /// The value, as it was put.
    pub value: Bytes,
    /// Revision at which the key last came into being.
    pub create_revision: Revision,
    /// Revision at which this version was written.
    pub mod_revision: Revision,
    /// How many times the key was put since it came into being, from 1.
    pub version: u64,
    /// The lease that this version hangs on.
    pub lease: Option<LeaseId>,
}

/// A condition of a transaction: the key's last change was at exactly this revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The key to compare.
    pub key: String,
    /// The expected `mod_revision`; 0 means that the key must not exist.
    pub mod_revision: Revision,
}

/// One change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creates or replaces a key. The lease replaces the one the key had, also when `None`.
    Put {
        /// Not empty.
        key: String,
        /// Any bytes.
        value: Bytes,
        /// The key is deleted when this lease ends.
        lease: Option<LeaseId>,
    },
    /// Removes a key; nothing happens when it does not exist.
    Delete {
        /// Not empty.
        key: String,
    },
}

impl Op {
    /// The key that the operation changes.
    pub fn key(&self) -> &str {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
        }
    }
}

/// Compares and the changes that happen if all of them hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All must hold.
    pub compare: Vec<Compare>,
    /// Applied in order at one revision. No key twice.
    pub ops: Vec<Op>,
}

impl Txn {
    /// Puts a key that must not exist.
    pub fn create(key: impl Into<String>, value: impl Into<Bytes>) -> Txn {
        let key = key.into();
        Txn {
            compare: vec![Compare { key: key.clone(), mod_revision: 0 }],
            ops: vec![Op::Put { key, value: value.into(), lease: None }],
        }
    }

    /// Puts a key whatever it was before.
    pub fn put(key: impl Into<String>, value: impl Into<Bytes>) -> Txn {
        Txn { compare: Vec::new(), ops: vec![Op::Put { key: key.into(), value: value.into(), lease: None }] }
    }

    /// Replaces a key that is still at `mod_revision`.
    pub fn update(key: impl Into<String>, mod_revision: Revision, value: impl Into<Bytes>) -> Txn {
        let key = key.into();
        Txn {
            compare: vec![Compare { key: key.clone(), mod_revision }],
            ops: vec![Op::Put { key, value: value.into(), lease: None }],
        }
    }

    /// Deletes a key that is still at `mod_revision`.
    pub fn delete(key: impl Into<String>, mod_revision: Revision) -> Txn {
        let key = key.into();
        Txn { compare: vec![Compare { key: key.clone(), mod_revision }], ops: vec![Op::Delete { key }] }
    }

    /// Bytes of keys and values, which is what the size limit of a store is about.
    pub fn size(&self) -> usize {
        let compare: usize = self.compare.iter().map(|c| c.key.len()).sum();
        let ops: usize = self
            .ops
            .iter()
            .map(|op| match op {
                Op::Put { key, value, .. } => key.len() + value.len(),
                Op::Delete { key } => key.len(),
            })
            .sum();
        compare + ops
    }
}

/// How a transaction went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnOutcome {
    /// Every compare held and every operation is done.
    Committed {
        /// The transaction's revision; the current one when nothing changed.
        revision: Revision,
        /// Per operation, what the key was before.
        previous: Vec<Option<KeyValue>>,
    },
    /// Some compare did not hold; nothing was changed.
    Conflict {
        /// The revision at which the compares were checked.
        revision: Revision,
        /// Per compare, what the key is.
        current: Vec<Option<KeyValue>>,
    },
}

/// What to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First key.
    pub start: String,
    /// First key beyond the range; empty means `start` alone.
    pub end: String,
    /// At most so many keys; 0 means all.
    pub limit: usize,
    /// As of this revision; 0 means the latest.
    pub revision: Revision,
    /// The caller has no use for [`RangeResult::count`]: a store need not walk the keys beyond the limit.
    pub uncounted: bool,
}

impl Range {
    /// All keys that start with `prefix`, which must not be empty.
    pub fn prefix(prefix: &str) -> Range {
        Range { start: prefix.to_owned(), end: prefix_end(prefix), limit: 0, revision: 0, uncounted: false }
    }

    /// One key.
    pub fn key(key: impl Into<String>) -> Range {
        Range { start: key.into(), end: String::new(), limit: 0, revision: 0, uncounted: false }
    }

    /// The same range with at most `limit` keys.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Range {
        self.limit = limit;
        self
    }

    /// The same range without the count of its keys.
    #[must_use]
    pub fn uncounted(mut self) -> Range {
        self.uncounted = true;
        self
    }

    /// The same range as of `revision`.
    #[must_use]
    pub fn at(mut self, revision: Revision) -> Range {
        self.revision = revision;
        self
    }
}

/// The first string after all strings that start with `prefix`.
///
/// Keys are UTF-8, and its byte order is that of code points, so the last code point that has a successor is raised.
fn prefix_end(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        let next = match last {
            '\u{D7FF}' => Some('\u{E000}'),
            c => char::from_u32(c as u32 + 1),
        };
        if let Some(next) = next {
            end.push(next);
            return end;
        }
    }
    // Nothing sorts after every string; no key has this many of the largest code point.
    "\u{10FFFF}".repeat(8)
}

/// What a range held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResult {
    /// The revision read: the requested one, or the current one if none was.
    pub revision: Revision,
    /// In key order.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit cut keys off.
    pub more: bool,
    /// How many keys the range held regardless of the limit; at least those in `kvs` when the range was `uncounted`.
    pub count: usize,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Created or replaced.
    Put,
    /// Removed, by a transaction or with its lease.
    Delete,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The new version.
    pub kv: KeyValue,
    /// The version before; `None` when the key did not exist.
    pub previous: Option<KeyValue>,
}

impl Event {
    /// The versions that have values: the new one, unless it is a deletion, and the one before.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut KeyValue> {
        let new = (self.kind == EventKind::Put).then_some(&mut self.kv);
        new.into_iter().chain(&mut self.previous)
    }
}

/// A run of whole transactions, in revision order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchBatch {
    /// Everything up to here has been delivered with this batch. Grows from batch to batch.
    pub revision: Revision,
    /// What happened since the batch before; empty for progress.
    pub events: Vec<Event>,
    /// In place of events with values that cannot be read. Only a store that transforms values has them.
    pub unreadable: Vec<UnreadableChange>,
}

/// A change of a key, the value of which, or the one before, cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableChange {
    /// The key.
    pub key: Arc<str>,
    /// Why.
    pub error: StoreError,
}

impl WatchBatch {
    /// A batch without changes that cannot be read.
    pub fn new(revision: Revision, events: Vec<Event>) -> WatchBatch {
        WatchBatch { revision, events, unreadable: vec![] }
    }

    /// For users of a watch that cannot do without any event.
    ///
    /// # Errors
    /// For the first change that cannot be read.
    pub fn all_readable(self) -> Result<WatchBatch, StoreError> {
        match self.unreadable.first() {
            Some(change) => Err(change.error.clone()),
            None => Ok(self),
        }
    }
}

/// The batches of a watch. Dropping it ends the watch.
pub type WatchStream = BoxStream<'static, Result<WatchBatch, StoreError>>;

/// Why a store did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// History that was needed is gone.
    #[error("the requested revision has been compacted; the oldest readable one is {compacted}")]
    Compacted {
        /// The oldest revision that can be read; watches start above it.
        compacted: Revision,
    },
    /// The revision has not happened yet.
    #[error("the requested revision is a future revision; the current one is {current}")]
    FutureRevision {
        /// The current revision.
        current: Revision,
    },
    /// The store cannot answer now, because of this.
    #[error("store is unavailable: {0}")]
    Unavailable(String),
    /// The answer to a write was lost, because of this: it may have happened, or may happen yet.
    #[error("the outcome of the write is not known: {0}")]
    Uncertain(String),
    /// No space is left where the store writes.
    #[error("store is out of space: {0}")]
    NoSpace(String),
    /// What is stored is damaged, or is not a store.
    #[error("store is corrupt: {0}")]
    Corrupt(String),
    /// A value cannot be encrypted or decrypted now, because of this; nothing was written.
    #[error("{0}")]
    Encryption(String),
    /// The transaction is over the size limit.
    #[error("transaction of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The store's limit in bytes.
        limit: usize,
    },
    /// There is no such transaction, range or watch; a mistake of the caller.
    #[error("invalid store request: {0}")]
    Invalid(String),
    /// The lease never existed, expired or was revoked.
    #[error("requested lease not found")]
    LeaseNotFound,
    /// The store was closed.
    #[error("store is closed")]
    Closed,
}

impl StoreError {
    /// A value that is no object, for this reason.
    #[must_use]
    pub fn undecodable(key: &str, reason: &dyn std::fmt::Display) -> StoreError {
        StoreError::Corrupt(format!("the value of {key:?} cannot be decoded: {reason}"))
    }

    /// Whether a transaction that failed so has certainly changed nothing. After other errors it may have happened, or may still.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        use StoreError::{Compacted, Encryption, FutureRevision, Invalid, LeaseNotFound, TooLarge};
        match self {
            Compacted { .. }
            | FutureRevision { .. }
            | Encryption(_)
            | TooLarge { .. }
            | Invalid(_)
            | LeaseNotFound => true,
            StoreError::Unavailable(_)
            | StoreError::Uncertain(_)
            | StoreError::NoSpace(_)
            | StoreError::Corrupt(_)
            | StoreError::Closed => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn computes_the_end_of_a_prefix() {
        assert_eq!(prefix_end("/a/"), "/a0");
        assert_eq!(prefix_end("a\u{D7FF}"), "a\u{E000}");
        assert_eq!(prefix_end("a\u{10FFFF}"), "b");
    }

    proptest! {
        #[test]
        fn prefix_range_is_starts_with(prefix in "[a-c\u{D7FF}\u{10FFFF}/]{1,3}", key in "[a-c\u{D7FF}\u{10FFFF}/]{0,5}") {
            let range = Range::prefix(&prefix);
            let inside = *key >= *range.start && *key < *range.end;
            prop_assert_eq!(inside, key.starts_with(&prefix));
        }
    }
}

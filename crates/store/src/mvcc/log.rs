//! What the revision machinery needs from the place that keeps the history: an ordered log of changes that commits a
//! batch at once and reads consistent snapshots.
//!
//! Invariant: after [`Log::commit`] returned `Ok`, everything in it is there after a crash; before that, all of it or
//! none is. The log holds exactly the changes that were committed and not removed by a later commit.

use super::index::Index;
use super::writer::Loaded;
use crate::{Event, EventKind, KeyValue, LeaseId, Revision, StoreError};
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Where a change is in the log: its revision, and its position among the changes of that revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Loc {
    pub revision: Revision,
    pub sub: u32,
}

/// A change on its way into the log and to the watchers.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub sub: u32,
    pub event: Event,
    /// Where the version before is; it stays readable as long as this change may be watched.
    pub previous: Option<Loc>,
}

impl Entry {
    pub fn loc(&self) -> Loc {
        Loc { revision: self.event.kv.mod_revision, sub: self.sub }
    }
}

/// A change as the log gives it back. Borrowed, so that a scan copies only what it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub loc: Loc,
    pub kind: EventKind,
    pub key: &'a str,
    pub value: Value<'a>,
    pub create_revision: Revision,
    pub version: u64,
    pub lease: Option<LeaseId>,
    pub previous: Option<Loc>,
}

/// Value bytes that are cheap to share in one backend and have to be copied in the other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Slice(&'a [u8]),
    Shared(&'a Bytes),
}

impl Value<'_> {
    pub fn len(&self) -> usize {
        match self {
            Value::Slice(s) => s.len(),
            Value::Shared(b) => b.len(),
        }
    }

    pub fn to_bytes(self) -> Bytes {
        match self {
            Value::Slice(s) => Bytes::copy_from_slice(s),
            Value::Shared(b) => b.clone(),
        }
    }
}

impl Record<'_> {
    pub fn to_key_value(self, key: Arc<str>) -> KeyValue {
        KeyValue {
            key,
            value: self.value.to_bytes(),
            create_revision: self.create_revision,
            mod_revision: self.loc.revision,
            version: self.version,
            lease: self.lease,
        }
    }

    /// As it was on its way into the log.
    pub fn to_entry(self) -> Entry {
        let kv = self.to_key_value(Arc::from(self.key));
        Entry {
            sub: self.loc.sub,
            event: Event { kind: self.kind, kv, previous: None },
            previous: self.previous,
        }
    }
}

impl<'a> From<&'a Entry> for Record<'a> {
    fn from(entry: &'a Entry) -> Record<'a> {
        let kv = &entry.event.kv;
        Record {
            loc: entry.loc(),
            kind: entry.event.kind,
            key: &kv.key,
            value: Value::Shared(&kv.value),
            create_revision: kv.create_revision,
            version: kv.version,
            lease: kv.lease,
            previous: entry.previous,
        }
    }
}

/// The store's own counters, kept with the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub revision: Revision,
    pub compacted: Revision,
    /// The last lease id given out; ids are never reused.
    pub last_lease: i64,
    /// How many changes the log holds; a log that lost some does not agree with it.
    pub entries: u64,
}

impl State {
    /// An empty store is at revision 1, as etcd's is, so that 0 can mean "none".
    pub const EMPTY: State = State { revision: 1, compacted: 0, last_lease: 0, entries: 0 };
}

/// Remembers that everything up to `revision` is at least as old as `at_millis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeMark {
    pub revision: Revision,
    pub at_millis: u64,
}

/// A lease as it is kept. The deadline is wall-clock time, so that the remaining time survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    pub ttl_millis: u64,
    pub deadline_millis: u64,
}

/// Everything that one group commit makes durable.
#[derive(Debug)]
pub(crate) struct Commit<'a> {
    pub state: State,
    /// In log order, after everything that is in the log.
    pub entries: &'a [Entry],
    /// Changes that compaction drops, oldest use first.
    pub remove: &'a [Loc],
    pub leases: &'a [(LeaseId, Option<LeaseRecord>)],
    pub mark: Option<TimeMark>,
    /// Marks of lower revisions are of no more use.
    pub marks_from: Revision,
}

/// The writer's side of a log.
pub(crate) trait Log: Send + 'static {
    /// Makes the commit durable. After an error the log is of no use until it is opened anew.
    fn commit(&mut self, commit: &Commit<'_>) -> Result<(), StoreError>;

    /// Opens what is on disk anew after an error; either all of the failed commit is in it or none. Snapshots from before
    /// may fail. May be tried again after an error, and not after `None`: what is on disk cannot be known.
    fn reopen(&mut self) -> Result<Option<Loaded>, StoreError>;

    /// Writes what the log holds anew, so that nothing that was removed is left anywhere. Snapshots from before may fail.
    /// The inner error says why that was not done, the outer one that what is on disk is not known.
    fn rewrite(&mut self) -> Result<Result<(), StoreError>, StoreError>;

    /// How many bytes there is still room for; `None` when that is not limited, or not known. Cheap.
    fn free(&self) -> Option<u64> {
        None
    }

    /// A second log that holds the same now; `None` where that is not cheap.
    fn fork(&self) -> Option<Box<dyn Log>> {
        None
    }

    /// Makes the place that the log takes smaller if much of it is free, as far as that is quickly done. For a log without other work.
    ///
    /// # Errors
    /// When what is on disk is not known any more.
    fn shrink(&mut self, _index: &Index) -> Result<(), StoreError> {
        Ok(())
    }

    /// A handle for reading, usable from any thread.
    fn reader(&self) -> Arc<dyn Reader>;
}

/// Opens snapshots.
pub(crate) trait Reader: Send + Sync + 'static {
    /// Everything committed up to now. Cheap; it must not wait for a commit that is under way.
    fn snapshot(&self) -> Result<Box<dyn LogSnapshot>, StoreError>;
}

/// Visits a record, and says whether to go on.
pub(crate) type Visit<'a> = dyn FnMut(Record<'_>) -> ControlFlow<()> + 'a;

/// The log as it was at one moment.
pub(crate) trait LogSnapshot: Send + 'static {
    /// Shows the record at `loc`; an error when there is none, because callers take the location from the index.
    fn get(&self, loc: Loc, visit: &mut dyn FnMut(Record<'_>)) -> Result<(), StoreError>;

    /// Visits the records with `from <= revision <= to` in order.
    fn scan(&self, from: Revision, to: Revision, visit: &mut Visit<'_>) -> Result<(), StoreError>;
}

/// Reads one version as a key-value.
pub(crate) fn read_key_value(
    snapshot: &dyn LogSnapshot,
    loc: Loc,
    key: &Arc<str>,
) -> Result<KeyValue, StoreError> {
    let mut found = None;
    snapshot.get(loc, &mut |record| found = Some(record.to_key_value(key.clone())))?;
    match found {
        Some(kv) => Ok(kv),
        None => Err(missing(loc)),
    }
}

/// The error for a version that is in the index and not in the log.
pub(crate) fn missing(loc: Loc) -> StoreError {
    StoreError::Corrupt(format!("change {}.{} is missing from the log", loc.revision, loc.sub))
}

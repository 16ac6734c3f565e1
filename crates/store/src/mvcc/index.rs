//! The keys and their versions in memory, without values: answers compares and says which log records a range needs.
//!
//! Invariants: a key's versions are in revision order; `dead` lists every version that a later change has superseded
//! (and every deletion mark) in the order in which compaction may drop them, so dropping a prefix of it never brings a
//! deleted key back; nothing that is readable at `compacted` or above is dropped.

use super::log::{Loc, State};
use crate::{LeaseId, Range, Revision, StoreError};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// Memory and disk that a version costs beside its key and value, for the size limit of history.
const VERSION_OVERHEAD: u64 = 192;

/// One version of a key; `version` 0 is the mark of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub revision: Revision,
    pub sub: u32,
    pub value_len: u32,
    pub create_revision: Revision,
    pub version: u64,
    /// 0 is none.
    pub lease: i64,
}

impl Version {
    pub fn loc(&self) -> Loc {
        Loc { revision: self.revision, sub: self.sub }
    }

    pub fn is_live(&self) -> bool {
        self.version != 0
    }

    pub fn lease(&self) -> Option<LeaseId> {
        (self.lease != 0).then_some(LeaseId(self.lease))
    }
}

#[derive(Clone, Debug)]
struct Versions {
    latest: Version,
    older: Option<Box<Older>>,
}

/// Superseded versions that are still readable, oldest first. Most keys have none, so it is kept apart.
#[derive(Clone, Debug, Default)]
struct Older(VecDeque<Version>);

impl Versions {
    fn at(&self, revision: Revision) -> Option<&Version> {
        let found = if self.latest.revision <= revision {
            Some(&self.latest)
        } else {
            let older = &self.older.as_ref()?.0;
            older.partition_point(|v| v.revision <= revision).checked_sub(1).and_then(|last| older.get(last))
        };
        found.filter(|v| v.is_live())
    }
}

/// A version that is unreadable from revision `at` on.
#[derive(Clone, Debug)]
struct Dead {
    at: Revision,
    loc: Loc,
    bytes: u64,
    key: Arc<str>,
}

/// What a range selects.
#[derive(Debug)]
pub(crate) struct Selection {
    pub revision: Revision,
    pub versions: Vec<(Arc<str>, Version)>,
    pub more: bool,
    pub count: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    keys: BTreeMap<Arc<str>, Versions>,
    dead: VecDeque<Dead>,
    dead_bytes: u64,
    revision: Revision,
    compacted: Revision,
}

impl Index {
    pub fn new(state: &State) -> Index {
        Index {
            keys: BTreeMap::new(),
            dead: VecDeque::new(),
            dead_bytes: 0,
            revision: state.revision,
            compacted: state.compacted,
        }
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn set_revision(&mut self, revision: Revision) {
        debug_assert!(revision >= self.revision);
        self.revision = revision;
    }

    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    /// Bytes of history that compaction could free.
    pub fn dead_bytes(&self) -> u64 {
        self.dead_bytes
    }

    /// Bytes of everything that the log holds, about.
    pub fn bytes(&self) -> u64 {
        let one = |key: &Arc<str>, v: &Version| VERSION_OVERHEAD + key.len() as u64 + u64::from(v.value_len);
        let live: u64 = self.live().map(|(key, version)| one(key, version)).sum();
        live + self.dead.iter().map(|dead| dead.bytes).sum::<u64>()
    }

    /// The latest version of a key, if it exists, with the shared form of the key.
    pub fn get(&self, key: &str) -> Option<(&Arc<str>, &Version)> {
        let (key, versions) = self.keys.get_key_value(key)?;
        versions.latest.is_live().then_some((key, &versions.latest))
    }

    /// All keys that exist.
    pub fn live(&self) -> impl Iterator<Item = (&Arc<str>, &Version)> {
        self.keys.iter().map(|(k, v)| (k, &v.latest)).filter(|(_, v)| v.is_live())
    }

    /// Adds the next version of a key. Revisions must not go down.
    pub fn apply(&mut self, key: &Arc<str>, version: Version) {
        let bytes = |v: &Version| VERSION_OVERHEAD + key.len() as u64 + u64::from(v.value_len);
        let (key, replaced) = match self.keys.entry(key.clone()) {
            std::collections::btree_map::Entry::Vacant(slot) => {
                let shared = slot.key().clone();
                slot.insert(Versions { latest: version, older: None });
                (shared, None)
            }
            std::collections::btree_map::Entry::Occupied(mut slot) => {
                let shared = slot.key().clone();
                let versions = slot.get_mut();
                let replaced = std::mem::replace(&mut versions.latest, version);
                versions.older.get_or_insert_default().0.push_back(replaced);
                (shared, Some(replaced))
            }
        };
        // A deletion mark was listed when it was made.
        if let Some(old) = replaced.filter(Version::is_live) {
            self.push_dead(Dead {
                at: version.revision,
                loc: old.loc(),
                bytes: bytes(&old),
                key: key.clone(),
            });
        }
        if !version.is_live() {
            let bytes = bytes(&version);
            self.push_dead(Dead { at: version.revision, loc: version.loc(), bytes, key });
        }
        self.revision = self.revision.max(version.revision);
    }

    fn push_dead(&mut self, dead: Dead) {
        self.dead_bytes += dead.bytes;
        self.dead.push_back(dead);
    }

    /// Selects what a range shows.
    pub fn select(&self, range: &Range) -> Result<Selection, StoreError> {
        if range.revision > self.revision {
            return Err(StoreError::FutureRevision { current: self.revision });
        }
        let at = if range.revision == 0 { self.revision } else { range.revision };
        if at < self.compacted {
            return Err(StoreError::Compacted { compacted: self.compacted });
        }
        let mut selection = Selection { revision: at, versions: Vec::new(), more: false, count: 0 };
        if range.end.is_empty() {
            if let Some((key, versions)) = self.keys.get_key_value(range.start.as_str())
                && let Some(version) = versions.at(at)
            {
                selection.versions.push((key.clone(), *version));
                selection.count = 1;
            }
            return Ok(selection);
        }
        if range.start >= range.end {
            return Ok(selection);
        }
        let bounds = (Bound::Included(range.start.as_str()), Bound::Excluded(range.end.as_str()));
        for (key, versions) in self.keys.range::<str, _>(bounds) {
            let Some(version) = versions.at(at) else { continue };
            selection.count += 1;
            if range.limit == 0 || selection.versions.len() < range.limit {
                selection.versions.push((key.clone(), *version));
            } else {
                selection.more = true;
                if range.uncounted {
                    break;
                }
            }
        }
        Ok(selection)
    }

    /// Gives up what is readable only below `to`; [`Index::reap`] then drops it bit by bit.
    pub fn compact(&mut self, to: Revision) {
        debug_assert!(to <= self.revision);
        self.compacted = self.compacted.max(to);
    }

    /// The lowest revision to compact to so that at most `target` bytes of history are left.
    pub fn compaction_for(&self, target: u64) -> Revision {
        let mut left = self.dead_bytes;
        let mut to = self.compacted;
        for dead in &self.dead {
            if left <= target {
                break;
            }
            left -= dead.bytes;
            to = dead.at;
        }
        to.max(self.compacted)
    }

    /// Whether compaction has something left to drop.
    pub fn has_garbage(&self) -> bool {
        self.dead.front().is_some_and(|dead| dead.at <= self.compacted)
    }

    /// The next at most `max` records that compaction drops from the log, without dropping them here.
    pub fn garbage(&self, max: usize) -> Vec<Loc> {
        self.dead.iter().take(max).take_while(|d| d.at <= self.compacted).map(|d| d.loc).collect()
    }

    /// Forgets the first `count` records of [`Index::garbage`].
    pub fn reap(&mut self, count: usize) {
        for _ in 0..count {
            let Some(dead) = self.dead.pop_front() else { return };
            self.dead_bytes -= dead.bytes;
            let Some(versions) = self.keys.get_mut(&dead.key) else { continue };
            let first = versions.older.as_ref().and_then(|older| older.0.front());
            if first.is_some_and(|v| v.loc() == dead.loc) {
                versions.older = versions.older.take().filter(|older| older.0.len() > 1);
                versions.older.as_mut().map(|older| older.0.pop_front());
            } else if versions.latest.loc() == dead.loc {
                self.keys.remove(&dead.key);
            }
        }
        // A burst of deletions should not pin its memory for good.
        if self.dead.capacity() > 1024 && self.dead.len() < self.dead.capacity() / 4 {
            self.dead.shrink_to(self.dead.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(revision: Revision, create_revision: Revision, version: u64) -> Version {
        Version { revision, sub: 0, value_len: 10, create_revision, version, lease: 0 }
    }

    fn keys(index: &Index, range: Range) -> Vec<(String, Revision)> {
        let selection = index.select(&range).unwrap();
        selection.versions.iter().map(|(k, v)| (k.to_string(), v.revision)).collect()
    }

    fn sample() -> Index {
        let mut index = Index::new(&State::EMPTY);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        index.apply(&a, version(2, 2, 1));
        index.apply(&b, version(3, 3, 1));
        index.apply(&a, version(4, 2, 2));
        index.apply(&b, version(5, 0, 0));
        index.apply(&b, version(6, 6, 1));
        index
    }

    #[test]
    fn reads_at_a_revision() {
        let index = sample();
        let all = || Range { start: "a".into(), end: "z".into(), ..Range::default() };
        assert_eq!(keys(&index, all()), [("a".into(), 4), ("b".into(), 6)]);
        assert_eq!(keys(&index, all().at(5)), [("a".into(), 4)]);
        assert_eq!(keys(&index, all().at(3)), [("a".into(), 2), ("b".into(), 3)]);
        let limited = index.select(&all().limit(1)).unwrap();
        assert_eq!((limited.versions.len(), limited.more, limited.count), (1, true, 2));
        let limited = index.select(&all().limit(1).uncounted()).unwrap();
        assert_eq!((limited.versions.len(), limited.more), (1, true));
        assert_eq!(index.select(&all().at(7)).unwrap_err(), StoreError::FutureRevision { current: 6 });
    }

    #[test]
    fn compaction_drops_only_what_is_unreadable() {
        let mut index = sample();
        index.compact(5);
        let garbage = index.garbage(10);
        let revisions: Vec<_> = garbage.iter().map(|l| l.revision).collect();
        assert_eq!(revisions, [2, 3, 5]);
        index.reap(garbage.len());
        assert!(!index.has_garbage());
        assert_eq!(index.dead_bytes(), 0);
        let all = Range { start: "a".into(), end: "z".into(), ..Range::default() };
        assert_eq!(keys(&index, all.clone().at(5)), [("a".into(), 4)]);
        assert_eq!(keys(&index, all.clone()), [("a".into(), 4), ("b".into(), 6)]);
        assert_eq!(index.select(&all.at(4)).unwrap_err(), StoreError::Compacted { compacted: 5 });
    }

    #[test]
    fn compaction_by_size_goes_as_far_as_needed() {
        let index = sample();
        assert_eq!(index.compaction_for(u64::MAX), 0);
        assert_eq!(index.compaction_for(index.dead_bytes() - 1), 4);
        assert_eq!(index.compaction_for(0), 5);
    }
}

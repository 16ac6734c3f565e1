//! Following a cache by comparing snapshots: for indexes that are brought up to date when they are asked.
//!
//! Invariant: what follows between two calls costs what changed between them, not what there is; the last snapshot is
//! held on to until the next call.

use super::{Cache, Entry, Objects};
use imbl::ordmap::DiffItem;
use kaji_store::Revision;
use std::sync::Arc;

/// An entry is identified by its key and its revision.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.revision == other.revision && self.key == other.key
    }
}

/// Follows one cache.
pub struct Follower {
    cache: Arc<Cache>,
    last: Objects,
}

impl Follower {
    /// Begins with nothing: the first call of [`Follower::take`] gives all objects.
    pub fn new(cache: Arc<Cache>) -> Self {
        Follower { cache, last: Objects::default() }
    }

    /// The revision of the cache's last change. Cheap.
    pub fn revision(&self) -> Revision {
        self.cache.changed()
    }

    /// What changed since the last call: entries that are new, and (`false`) those that are gone.
    pub fn take(&mut self) -> (Revision, Vec<(Arc<Entry>, bool)>) {
        let now = self.cache.snapshot();
        let changes = self.last.diff(&now.objects).map(|item| match item {
            DiffItem::Add(_, entry) | DiffItem::Update { new: (_, entry), .. } => (entry.clone(), true),
            DiffItem::Remove(_, entry) => (entry.clone(), false),
        });
        let changes = changes.collect();
        self.last = now.objects;
        (now.changed, changes)
    }
}

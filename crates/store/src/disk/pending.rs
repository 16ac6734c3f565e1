//! What is in the journal and not in the database, for readers.
//!
//! Invariants: a reader takes the pending commits before it takes a snapshot of the database, and the database has them before
//! they cease to be pending; so between the two nothing is missing, and what is in both is the same. What a pending commit
//! removes stays readable until it is in the database: nothing names it any more.

use super::journal::Journaled;
use crate::Revision;
use crate::mvcc::log::{Entry, Loc};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// Commits of one generation of the journal, in order.
#[derive(Debug, Default)]
pub(super) struct Pending(RwLock<Vec<Journaled>>);

impl Pending {
    /// The commits.
    pub fn commits(&self) -> RwLockReadGuard<'_, Vec<Journaled>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one that is in the journal.
    pub fn push(&self, commit: Journaled) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(commit);
    }

    /// The change at `loc`.
    pub fn get(&self, loc: Loc) -> Option<Entry> {
        let commits = self.commits();
        // Commits without changes have the revision of the one before.
        let at = commits.partition_point(|commit| commit.state.revision < loc.revision);
        let entries = &commits.get(at)?.entries;
        let at = entries.binary_search_by_key(&loc, Entry::loc).ok()?;
        entries.get(at).cloned()
    }

    /// The changes behind `after`, from one revision to another, in order.
    pub fn range(&self, after: Option<Loc>, from: Revision, to: Revision) -> Vec<Entry> {
        let commits = self.commits();
        let first = commits.partition_point(|commit| commit.state.revision < from);
        let entries = commits.iter().skip(first).flat_map(|commit| &commit.entries);
        entries
            .skip_while(|entry| entry.loc().revision < from || Some(entry.loc()) <= after)
            .take_while(|entry| entry.loc().revision <= to)
            .cloned()
            .collect()
    }
}

/// The pending commits of the current generation.
#[derive(Debug, Default)]
pub(super) struct CurrentPending(RwLock<Arc<Pending>>);

impl CurrentPending {
    /// As they are now; more may be added.
    pub fn get(&self) -> Arc<Pending> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// They are in the database.
    pub fn clear(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }
}

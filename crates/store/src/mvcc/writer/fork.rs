//! Forks of a log in memory, and giving back what a log does not need any more: both between two commits.
//!
//! Invariant: a fork is of the state after a commit, with the leases and the history that belong to it.

use super::{Loaded, Writer};
use crate::StoreError;
use crate::mvcc::log::Log;
use std::time::Instant;

/// What a second store begins with.
pub(crate) struct Fork {
    pub log: Box<dyn Log>,
    pub loaded: Loaded,
}

impl std::fmt::Debug for Fork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fork").field("loaded", &self.loaded).finish_non_exhaustive()
    }
}

impl Writer {
    /// Answers those that wait for a fork.
    pub(super) fn answer_forks(&mut self, failure: Option<&StoreError>) {
        for answer in std::mem::take(&mut self.forks) {
            let fork = match (failure, self.log.fork()) {
                (Some(failure), _) => Err(failure.clone()),
                (None, Some(log)) => Ok(Fork { log, loaded: self.loaded() }),
                (None, None) => {
                    Err(StoreError::Invalid("the files of this store are forked, not the store".into()))
                }
            };
            // The caller may have dropped its future.
            let _ = answer.send(fork);
        }
    }

    fn loaded(&self) -> Loaded {
        Loaded {
            state: self.state,
            index: self.shared.index().clone(),
            leases: self.leases.clone(),
            marks: self.marks.clone(),
        }
    }

    /// Gives back room that much was removed from, now and then.
    pub(super) fn shrink(&mut self, tick: bool) -> Result<(), StoreError> {
        if !tick
            || self.last_shrink.elapsed() < self.limits.shrink_interval
            || self.shared.index().has_garbage()
        {
            return Ok(());
        }
        let shrunk = self.log.shrink(&self.shared.index());
        self.last_shrink = Instant::now();
        shrunk
    }
}

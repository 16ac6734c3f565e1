//! How far the caches have come: one revision for all of them.

use kaji_store::Revision;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// The revision up to which every cache is complete. Only grows.
#[derive(Debug)]
pub(crate) struct Progress {
    applied: AtomicU64,
    changed: Notify,
}

impl Progress {
    /// Begins at a revision.
    pub fn new(revision: Revision) -> Self {
        Progress { applied: AtomicU64::new(revision), changed: Notify::new() }
    }

    /// Everything up to here is in every cache.
    pub fn applied(&self) -> Revision {
        self.applied.load(Ordering::Acquire)
    }

    /// Called after every cache has everything up to `revision`.
    pub fn advance(&self, revision: Revision) {
        if self.applied.fetch_max(revision, Ordering::AcqRel) < revision {
            self.changed.notify_waiters();
        }
    }

    /// Waits until `applied()` is at least `revision`.
    pub async fn wait(&self, revision: Revision) {
        while self.applied() < revision {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the second look, so that no change is missed between look and wait.
            changed.as_mut().enable();
            if self.applied() >= revision {
                return;
            }
            changed.await;
        }
    }
}

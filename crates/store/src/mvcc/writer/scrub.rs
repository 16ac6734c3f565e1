//! Scrubbing: what compaction gave up is removed at once, and the log is written anew.
//!
//! Invariant: a scrub is acknowledged once nothing but current values is left, and not before.

use super::{Plan, REAP_IDLE, Writer};
use crate::StoreError;

impl Writer {
    /// Carries out the requested scrubs, if there are any; compaction has been raised to the current revision by then.
    pub(super) fn scrub(&mut self, now: u64) -> Result<(), StoreError> {
        if self.scrubs.is_empty() {
            return Ok(());
        }
        // Each commit removes some; an index that did not get smaller would be a bug, and no reason to go on for ever.
        let mut left = self.shared.index().garbage(usize::MAX).len();
        while left > 0 {
            self.commit(Plan::new(self.state.revision), now)?;
            let now_left = self.shared.index().garbage(usize::MAX).len();
            if now_left >= left {
                return Err(StoreError::Unavailable(format!(
                    "{left} changes cannot be removed ({REAP_IDLE} at once)"
                )));
            }
            left = now_left;
        }
        let rewritten = self.log.rewrite()?;
        if rewritten.is_ok() {
            tracing::info!(revision = self.state.compacted, "the store holds nothing but current values");
        }
        for answer in self.scrubs.drain(..) {
            // The caller may have dropped its future.
            let _ = answer.send(rewritten.clone());
        }
        Ok(())
    }

    /// Answers those that wait with an error.
    pub(super) fn refuse_scrubs(&mut self, error: &StoreError) {
        for answer in self.scrubs.drain(..) {
            let _ = answer.send(Err(error.clone()));
        }
    }
}

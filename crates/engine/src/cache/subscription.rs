//! A watch's side of the cache: where it begins, and taking what comes.

use super::{
    Cache, CacheSnapshot, Filter, WatchEvent,
    watcher::{Mode, Taken, Watcher},
};
use kaji_store::Revision;
use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

/// Where a subscription begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// With the present state, which is returned; then what happens after it.
    Now,
    /// With the first event after a revision.
    After(Revision),
}

/// The window no longer reaches back that far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooOld {
    /// All events after this revision are still there.
    pub floor: Revision,
}

/// A registered watcher. Dropping it ends it.
pub(crate) struct Subscription {
    cache: Arc<Cache>,
    watcher: Arc<Watcher>,
    epoch: u64,
}

impl Cache {
    /// Begins to watch. The snapshot is that of the same moment.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        filter: Filter,
        namespaced: bool,
        start: Start,
    ) -> Result<(Subscription, CacheSnapshot), TooOld> {
        let mut inner = self.lock();
        // The lock keeps events out, so this is the state as of the first event that will be pushed.
        let snapshot = self.snapshot();
        let interest = filter.interest(&self.prefix, namespaced, &inner.fields);
        let (after, from) = match start {
            Start::Now => (0, inner.window.end()),
            Start::After(revision) => {
                let floor = inner.window.oldest();
                (revision, inner.window.after(revision).ok_or(TooOld { floor })?)
            }
        };
        let mode = if inner.closed { Mode::Closed } else { Mode::Lagging(from) };
        let watcher = Arc::new(Watcher::new(filter, interest, after, self.queue, mode));
        let caught_up = inner.window.from(from).is_some_and(|events| watcher.refill(from, events));
        if caught_up {
            inner.index.add(watcher.clone());
        }
        self.watchers.fetch_add(1, Ordering::Relaxed);
        Ok((Subscription { cache: self.clone(), watcher, epoch: inner.epoch }, snapshot))
    }
}

impl Subscription {
    /// Moves what is queued, at most `max` items, to `out`. `None`: no more will come, because the resource is gone, the
    /// engine shuts down, or this watcher was too slow.
    pub fn poll_take(&self, max: usize, out: &mut Vec<WatchEvent>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        loop {
            match self.watcher.take(max, out, cx) {
                Taken::Items => return Poll::Ready(Some(())),
                Taken::Pending => return Poll::Pending,
                Taken::Closed => return Poll::Ready(None),
                Taken::Lagging(number) => {
                    if !self.catch_up(number) {
                        return Poll::Ready(None);
                    }
                }
            }
        }
    }

    /// Everything up to here has been queued for this watcher, if it is live.
    pub fn applied(&self) -> Revision {
        self.cache.progress.applied()
    }

    /// Refills the queue from the window, and goes live again when that was all.
    fn catch_up(&self, number: u64) -> bool {
        let mut inner = self.cache.lock();
        if inner.closed || inner.epoch != self.epoch {
            return false;
        }
        let Some(events) = inner.window.from(number) else {
            tracing::debug!(prefix = &**self.cache.prefix(), "a watcher was too slow and is terminated");
            return false;
        };
        if self.watcher.refill(number, events) {
            inner.index.add(self.watcher.clone());
        }
        true
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.cache.lock().index.remove(&self.watcher);
        let mut wake: Vec<Waker> = vec![];
        self.watcher.close(&mut wake);
        self.cache.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

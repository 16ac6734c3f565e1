//! Hands committed batches to the watches, and keeps the most recent ones in memory.
//!
//! Invariants: the recent batches are contiguous and end at `published`; a live subscriber has been given every batch
//! since the revision at which it became live; a subscriber that falls behind loses its liveness, never a batch that
//! it was given, and the writer never waits for it. Memory is bounded by the limits of the recent batches and of each
//! queue, and batches are shared by all their holders.

use super::index::Version;
use super::lock;
use super::log::Entry;
use crate::{KeyValue, Revision, StoreError};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// The changes of one group commit: whole transactions.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The last revision before this batch; batches follow each other without a gap.
    pub after: Revision,
    pub last: Revision,
    pub entries: Vec<Entry>,
    /// Positions in `entries`, sorted by key.
    by_key: Vec<u32>,
    bytes: usize,
}

impl Batch {
    pub fn new(after: Revision, last: Revision, entries: Vec<Entry>) -> Batch {
        let mut by_key: Vec<u32> = (0..u32::try_from(entries.len()).unwrap_or(u32::MAX)).collect();
        by_key.sort_by(|a, b| entries[*a as usize].event.kv.key.cmp(&entries[*b as usize].event.kv.key));
        let size = |kv: &KeyValue| kv.key.len() + kv.value.len() + 128;
        let bytes =
            entries.iter().map(|e| size(&e.event.kv) + e.event.previous.as_ref().map_or(0, size)).sum();
        Batch { after, last, entries, by_key, bytes }
    }

    /// Positions of the entries with keys that start with `prefix`, sorted by key.
    pub fn matching(&self, prefix: &str) -> &[u32] {
        let key = |i: &u32| &*self.entries[*i as usize].event.kv.key;
        let start = self.by_key.partition_point(|i| key(i) < prefix);
        let rest = &self.by_key[start..];
        &rest[..rest.partition_point(|i| key(i).starts_with(prefix))]
    }
}

/// How much memory watches may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HubLimits {
    pub recent_bytes: usize,
    pub queue_bytes: usize,
}

/// A watch, as the hub sees it.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub prefix: String,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    queue: VecDeque<Arc<Batch>>,
    bytes: usize,
    live: bool,
    waker: Option<Waker>,
}

/// What a watch receives when it polls.
#[derive(Debug)]
pub(crate) enum Next {
    Batches(VecDeque<Arc<Batch>>),
    /// Nothing for this watch up to here.
    Progress(Revision),
    /// Batches were left out: history has to be read, then [`Hub::go_live`] tried.
    Lagging,
    Ended(StoreError),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    /// A copy of the state's, set after all subscribers have their batches.
    published: AtomicU64,
    limits: HubLimits,
}

#[derive(Debug)]
struct State {
    published: Revision,
    recent: VecDeque<Arc<Batch>>,
    recent_bytes: usize,
    subscribers: Vec<Arc<Subscriber>>,
    ended: Option<StoreError>,
}

impl Hub {
    pub fn new(revision: Revision, limits: HubLimits) -> Hub {
        let state = State {
            published: revision,
            recent: VecDeque::new(),
            recent_bytes: 0,
            subscribers: Vec::new(),
            ended: None,
        };
        Hub { state: Mutex::new(state), published: AtomicU64::new(revision), limits }
    }

    pub fn published(&self) -> Revision {
        self.published.load(Ordering::Acquire)
    }

    /// Gives a batch to the watches it concerns. The others learn of it with [`Hub::wake_all`].
    pub fn publish(&self, batch: Arc<Batch>) {
        let mut state = lock(&self.state);
        debug_assert_eq!(state.published, batch.after);
        let mut wake = Vec::new();
        for subscriber in &state.subscribers {
            if batch.matching(&subscriber.prefix).is_empty() {
                continue;
            }
            let mut inner = lock(&subscriber.inner);
            if inner.live && !inner.queue.is_empty() && inner.bytes + batch.bytes > self.limits.queue_bytes {
                inner.live = false;
            }
            if inner.live {
                inner.bytes += batch.bytes;
                inner.queue.push_back(batch.clone());
            }
            wake.extend(inner.waker.take());
        }
        state.published = batch.last;
        state.recent_bytes += batch.bytes;
        state.recent.push_back(batch);
        while state.recent_bytes > self.limits.recent_bytes {
            let Some(old) = state.recent.pop_front() else { break };
            state.recent_bytes -= old.bytes;
        }
        self.published.store(state.published, Ordering::Release);
        drop(state);
        wake.into_iter().for_each(Waker::wake);
    }

    /// Wakes every watch, so that it sees progress.
    pub fn wake_all(&self) {
        let state = lock(&self.state);
        let wake: Vec<_> = state.subscribers.iter().filter_map(|s| lock(&s.inner).waker.take()).collect();
        drop(state);
        wake.into_iter().for_each(Waker::wake);
    }

    /// Whether there is a watch.
    pub fn is_watched(&self) -> bool {
        !lock(&self.state).subscribers.is_empty()
    }

    /// Ends all watches; the first reason stays.
    pub fn end(&self, reason: StoreError) {
        lock(&self.state).ended.get_or_insert(reason);
        self.wake_all();
    }

    /// Adds a watch that still has to catch up.
    pub fn subscribe(&self, prefix: &str) -> Arc<Subscriber> {
        let subscriber = Arc::new(Subscriber { prefix: prefix.to_owned(), inner: Mutex::default() });
        lock(&self.state).subscribers.push(subscriber.clone());
        subscriber
    }

    pub fn unsubscribe(&self, subscriber: &Arc<Subscriber>) {
        lock(&self.state).subscribers.retain(|s| !Arc::ptr_eq(s, subscriber));
    }

    /// Makes a watch that has everything up to `delivered` live, if the recent batches reach back that far.
    pub fn go_live(&self, subscriber: &Subscriber, delivered: Revision) -> bool {
        let state = lock(&self.state);
        let reach = state.recent.front().map_or(state.published, |batch| batch.after);
        if delivered < reach {
            return false;
        }
        let mut inner = lock(&subscriber.inner);
        inner.queue.clear();
        let missed = state.recent.iter().skip(state.recent.partition_point(|b| b.last <= delivered));
        inner.queue.extend(missed.filter(|b| !b.matching(&subscriber.prefix).is_empty()).cloned());
        inner.bytes = inner.queue.iter().map(|b| b.bytes).sum();
        inner.live = true;
        true
    }

    /// The next thing for a watch that has everything up to `delivered`.
    pub fn poll_next(&self, subscriber: &Subscriber, delivered: Revision, cx: &Context<'_>) -> Poll<Next> {
        let mut inner = lock(&subscriber.inner);
        if !inner.queue.is_empty() {
            inner.bytes = 0;
            return Poll::Ready(Next::Batches(std::mem::take(&mut inner.queue)));
        }
        if !inner.live {
            return Poll::Ready(Next::Lagging);
        }
        // The queue was empty with the lock held, and this revision is stored after the queues were filled: so
        // nothing up to it is missing.
        let published = self.published();
        if published > delivered {
            return Poll::Ready(Next::Progress(published));
        }
        inner.waker = Some(cx.waker().clone());
        drop(inner);
        // Read after the waker is in place, so that an end cannot be missed.
        match &lock(&self.state).ended {
            Some(reason) => Poll::Ready(Next::Ended(reason.clone())),
            None => Poll::Pending,
        }
    }

    /// The reason why all watches ended.
    pub fn ended(&self) -> Option<StoreError> {
        lock(&self.state).ended.clone()
    }

    /// A version of a key, if it is among the recent changes.
    pub fn recent(&self, version: &Version) -> Option<KeyValue> {
        let state = lock(&self.state);
        let batch = state.recent.get(state.recent.partition_point(|b| b.last < version.revision))?;
        let entry = batch.entries.binary_search_by(|e| e.loc().cmp(&version.loc())).ok()?;
        Some(batch.entries[entry].event.kv.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, EventKind};
    use std::task::Context;

    fn batch(revision: Revision, key: &str) -> Arc<Batch> {
        let (key, value) = (key.into(), vec![0; 1000].into());
        let kv = KeyValue { key, value, create_revision: 2, mod_revision: revision, version: 1, lease: None };
        let entry =
            Entry { sub: 0, event: Event { kind: EventKind::Put, kv, previous: None }, previous: None };
        Arc::new(Batch::new(revision - 1, revision, vec![entry]))
    }

    fn hub(recent_bytes: usize, queue_bytes: usize) -> Hub {
        Hub::new(1, HubLimits { recent_bytes, queue_bytes })
    }

    fn poll(hub: &Hub, subscriber: &Subscriber, delivered: Revision) -> Option<Next> {
        match hub.poll_next(subscriber, delivered, &Context::from_waker(Waker::noop())) {
            Poll::Ready(next) => Some(next),
            Poll::Pending => None,
        }
    }

    fn revisions(next: Option<Next>) -> Vec<Revision> {
        match next {
            Some(Next::Batches(batches)) => batches.iter().map(|b| b.last).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_slow_watch_keeps_what_fits_and_goes_back_for_the_rest() {
        let hub = hub(3000, 4000);
        let subscriber = hub.subscribe("/a");
        assert!(hub.go_live(&subscriber, 1));
        for revision in 2..=10 {
            hub.publish(batch(revision, "/a/x"));
        }
        // Three of these batches fit into the queue, two into the recent ones.
        assert_eq!(revisions(poll(&hub, &subscriber, 1)), [2, 3, 4]);
        assert!(matches!(poll(&hub, &subscriber, 4), Some(Next::Lagging)));
        assert!(!hub.go_live(&subscriber, 7));
        assert!(hub.go_live(&subscriber, 8));
        assert_eq!(revisions(poll(&hub, &subscriber, 8)), [9, 10]);
        assert!(poll(&hub, &subscriber, 10).is_none());
    }

    #[test]
    fn others_see_progress_only() {
        let hub = hub(0, 0);
        let subscriber = hub.subscribe("/b");
        assert!(hub.go_live(&subscriber, 1));
        assert!(poll(&hub, &subscriber, 1).is_none());
        hub.publish(batch(2, "/a/x"));
        assert!(matches!(poll(&hub, &subscriber, 1), Some(Next::Progress(2))));
        hub.end(StoreError::Closed);
        assert!(matches!(poll(&hub, &subscriber, 2), Some(Next::Ended(StoreError::Closed))));
        hub.unsubscribe(&subscriber);
        assert!(!hub.is_watched());
    }
}

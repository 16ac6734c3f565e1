//! A cache that lacks a change, or all objects from the start, because a value of its resource cannot be read: the key is not known
//! here yet, its KMS plugin does not answer, or the value is damaged or of a later release.
//!
//! Invariants: such a cache takes no events, has no watchers, and serves no requests; it is whole again only by all objects of one
//! revision and what came after it. Other caches are not concerned.

use super::{
    Cache, Objects, State,
    feed::{BACKOFF, Feed},
};
use futures_util::FutureExt;
use kaji_store::{BoxFuture, KeyValue, Revision, StoreError};
use std::{convert::Infallible, sync::Arc, task::Waker};
use tokio::time::{Instant, sleep_until};

impl Cache {
    /// Why the objects cannot be served, when they cannot.
    pub(crate) fn unreadable(&self) -> Option<Arc<StoreError>> {
        self.unreadable.load_full()
    }

    /// A change is missing from here on. Watches end: their clients begin anew when all objects have been read again.
    pub(crate) fn lose_change(&self, error: StoreError) {
        let inner = self.lock();
        self.unreadable.store(Some(Arc::new(error)));
        drop(inner);
        self.end_watches();
    }

    /// Collects events from now on, for objects that are read meanwhile. `None` while the cache loads anyway, or lacks nothing.
    fn begin_reading(&self) -> Option<Reading> {
        let mut inner = self.lock();
        let lost = self.unreadable.load_full().filter(|_| inner.loading.is_none())?;
        inner.loading = Some(vec![]);
        Some(Reading { lost })
    }

    /// The objects could not be read.
    pub(super) fn fail_reading(&self, error: StoreError) {
        let mut inner = self.lock();
        inner.loading = None;
        self.unreadable.store(Some(Arc::new(error)));
    }

    /// These are the objects at `revision`, which is that of the store after [`Cache::begin_reading`] or a later one. False when another
    /// change was lost meanwhile.
    fn finish_reading(&self, reading: &Reading, kvs: Vec<KeyValue>, revision: Revision) -> bool {
        let entries = match self.decode_page(kvs) {
            Ok(entries) => entries.into_iter(),
            Err(error) => {
                self.fail_reading(error);
                return false;
            }
        };
        let objects: Objects = entries.map(|entry| (entry.key.clone(), entry)).collect();
        let mut inner = self.lock();
        let collected = inner.loading.take().unwrap_or_default();
        if !self.unreadable.load().as_ref().is_some_and(|lost| Arc::ptr_eq(lost, &reading.lost)) {
            return false;
        }
        let State { reading, .. } = **self.state.load();
        // Not by comparing with what the cache had: events after the lost one may have been applied while the cache loaded.
        let state = inner.read_anew(State { objects, changed: revision, reading });
        self.state.store(Arc::new(state));
        let mut wake: Vec<Waker> = vec![];
        let applied = self.apply_collected(&mut inner, collected, &mut wake);
        let whole = applied.is_ok();
        self.unreadable.store(applied.err().map(Arc::new));
        drop(inner);
        wake.into_iter().for_each(Waker::wake);
        // Those that have begun since the change was lost.
        self.end_watches();
        whole
    }
}

/// All objects of a cache are being read.
struct Reading {
    /// What the cache lacked when that began.
    lost: Arc<StoreError>,
}

/// Reads the objects of such caches again, until they can be read.
#[derive(Default)]
pub(super) struct Recovery<'a> {
    waiting: Vec<Arc<Cache>>,
    due: Option<Instant>,
    /// In a row, in which something could not be read.
    attempts: usize,
    running: Option<BoxFuture<'a, Vec<Arc<Cache>>>>,
}

impl<'a> Recovery<'a> {
    /// One more cache.
    pub fn add(&mut self, cache: Arc<Cache>) {
        if !self.waiting.iter().any(|known| Arc::ptr_eq(known, &cache)) {
            self.waiting.push(cache);
        }
        self.due.get_or_insert_with(|| Instant::now() + BACKOFF[0]);
    }

    /// Reads when it is due. Nothing is lost when this is dropped and called again.
    pub async fn run(&mut self, feed: &'a Feed) -> Infallible {
        loop {
            if let Some(running) = &mut self.running {
                let left = running.await;
                self.running = None;
                self.attempts = if left.is_empty() { 0 } else { self.attempts + 1 };
                left.into_iter().for_each(|cache| self.add(cache));
                if !self.waiting.is_empty() {
                    self.due = Some(Instant::now() + BACKOFF[self.attempts.min(BACKOFF.len() - 1)]);
                }
            }
            match self.due {
                Some(due) => sleep_until(due).await,
                None => return std::future::pending().await,
            }
            self.due = None;
            self.running = Some(feed.read_again(std::mem::take(&mut self.waiting)).boxed());
        }
    }
}

impl Feed {
    /// Reads all objects of these caches. Answers with those of which some cannot be read.
    async fn read_again(&self, caches: Vec<Arc<Cache>>) -> Vec<Arc<Cache>> {
        let mut left = vec![];
        for cache in caches {
            if !self.has(&cache) {
                continue;
            }
            let Some(reading) = cache.begin_reading() else {
                // Otherwise something else has brought it up to date.
                left.extend(cache.unreadable().is_some().then_some(cache));
                continue;
            };
            let whole = match self.read_all(cache.prefix()).await {
                Ok((kvs, revision)) => cache.finish_reading(&reading, kvs, revision),
                Err(error) => {
                    cache.fail_reading(error);
                    false
                }
            };
            if whole {
                tracing::info!(prefix = &**cache.prefix(), "the objects can be read again");
            } else {
                left.push(cache);
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Limits, Progress};
    use kaji_store::{Event, EventKind};

    const PREFIX: &str = "/registry/core/pods/";

    fn cache() -> Cache {
        let limits = Limits { window: 16, window_bytes: 1 << 20, queue: 16 };
        Cache::new(PREFIX.into(), limits, Arc::new(Progress::new(1)))
    }

    fn kv(name: &str, revision: Revision) -> KeyValue {
        let value = format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}"}}}}"#);
        let key = format!("{PREFIX}{name}").into();
        KeyValue {
            key,
            value: value.into(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            lease: None,
        }
    }

    fn put(name: &str, revision: Revision) -> Vec<Event> {
        vec![Event { kind: EventKind::Put, kv: kv(name, revision), previous: None }]
    }

    fn lose(cache: &Cache) {
        cache.lose_change(StoreError::Encryption("no key".into()));
    }

    fn names(cache: &Cache) -> Vec<String> {
        cache.state.load().objects.values().map(|entry| entry.name().to_owned()).collect()
    }

    #[test]
    fn a_change_that_is_lost_while_objects_are_read_counts() {
        let cache = cache();
        cache.loaded(Objects::default(), 1).unwrap();
        lose(&cache);
        cache.apply(put("dropped", 3)).unwrap();
        let reading = cache.begin_reading().unwrap();
        assert!(cache.begin_reading().is_none());
        lose(&cache);
        cache.apply(put("b", 5)).unwrap();
        assert!(!cache.finish_reading(&reading, vec![], 3));
        assert!(cache.unreadable().is_some() && names(&cache).is_empty());
        let reading = cache.begin_reading().unwrap();
        cache.apply(put("c", 6)).unwrap();
        assert!(cache.finish_reading(&reading, vec![kv("a", 4), kv("b", 5)], 5));
        assert_eq!((cache.unreadable(), names(&cache)), (None, vec!["a".into(), "b".into(), "c".into()]));
        assert!(cache.begin_reading().is_none());
    }

    /// An event after the lost one may have been applied: what the store holds then looks older than the cache.
    #[test]
    fn a_state_of_the_store_does_not_make_a_cache_whole_that_lost_a_change() {
        let cache = cache();
        cache.loaded(Objects::default(), 1).unwrap();
        cache.apply(put("b", 5)).unwrap();
        lose(&cache);
        cache.replace(vec![kv("a", 4), kv("b", 5)], 5).unwrap();
        assert!(cache.unreadable().is_some());
        let reading = cache.begin_reading().unwrap();
        assert!(cache.finish_reading(&reading, vec![kv("a", 4), kv("b", 5)], 5));
        assert_eq!((cache.unreadable(), names(&cache)), (None, vec!["a".into(), "b".into()]));
    }

    #[test]
    fn a_change_that_is_lost_while_a_cache_loads_is_not_passed_over() {
        let cache = cache();
        lose(&cache);
        cache.apply(put("b", 3)).unwrap();
        assert!(cache.begin_reading().is_none());
        // Read before that change, which was at revision 2.
        cache.loaded(Objects::default(), 1).unwrap();
        assert_eq!(names(&cache), ["b"]);
        let reading = cache.begin_reading().unwrap();
        assert!(cache.finish_reading(&reading, vec![kv("a", 2), kv("b", 3)], 3));
        assert_eq!(names(&cache), ["a", "b"]);
    }
}

//! A cache that lacks a change, because a value of its resource cannot be read: the key is not known here yet, its KMS plugin does not
//! answer, or the value is damaged.
//!
//! Invariants: such a cache takes no events, has no watchers, and serves no requests; it is whole again only by all objects of one
//! revision and what came after it. Other caches are not concerned.

use super::{
    Cache,
    feed::{BACKOFF, Feed},
    fill::Fed,
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
        self.unreadable.store(Some(Arc::new(error)));
        self.end_watches();
    }

    /// Collects events from now on, for objects that are read meanwhile. False while the cache loads anyway.
    fn begin_reading(&self) -> bool {
        let mut inner = self.lock();
        let idle = inner.loading.is_none();
        inner.loading.get_or_insert_default();
        idle
    }

    /// The objects could not be read.
    fn fail_reading(&self, error: StoreError) {
        self.lock().loading = None;
        self.unreadable.store(Some(Arc::new(error)));
    }

    /// These are the objects at `revision`.
    fn finish_reading(&self, kvs: Vec<KeyValue>, revision: Revision) {
        let mut wake: Vec<Waker> = vec![];
        let mut inner = self.lock();
        self.replace_locked(&mut inner, kvs, revision, &mut wake);
        for fed in inner.loading.take().unwrap_or_default() {
            match fed {
                Fed::Events(events) => self.apply_locked(&mut inner, &events, 0, &mut wake),
                Fed::State(kvs, revision) => self.replace_locked(&mut inner, kvs, revision, &mut wake),
            }
        }
        self.unreadable.store(None);
        drop(inner);
        wake.into_iter().for_each(Waker::wake);
    }
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
            if !cache.begin_reading() {
                left.push(cache);
                continue;
            }
            match self.read_all(cache.prefix()).await {
                Ok((kvs, revision)) => {
                    cache.finish_reading(kvs, revision);
                    tracing::info!(prefix = &**cache.prefix(), "the objects can be read again");
                }
                Err(error) => {
                    cache.fail_reading(error);
                    left.push(cache);
                }
            }
        }
        left
    }
}

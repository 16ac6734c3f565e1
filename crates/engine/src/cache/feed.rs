//! The one store watch that feeds all caches.
//!
//! Invariants: each cache sees its events in revision order, none missing and none twice, also across a lost
//! connection to the store; progress moves only after every cache has its events.

use super::{Cache, Entry, Limits, Objects, Progress, Shaping, unreadable::Recovery};
use futures_util::StreamExt;
use kaji_store::{Event, KeyValue, Range, Revision, Store, StoreError, WatchBatch, WatchStream, runs_inline};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
};

/// Keys read at once while a cache loads.
const PAGE: usize = 1000;
/// A page of so few keys is decoded where it is read.
const PAGE_INLINE: usize = 64;
/// Pages that are decoded at the same time, while the store reads the next one. Bounds the memory of a load.
const DECODERS: usize = 2;
/// How often a load begins anew when its revision is compacted under it.
const LOAD_TRIES: usize = 5;
/// Waits between attempts to reach a store that is away.
pub(super) const BACKOFF: [Duration; 5] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(3),
];

/// Caches by storage prefix.
type Caches = HashMap<Arc<str>, Arc<Cache>>;

/// A read of a prefix, page by page.
struct Pages<'a> {
    store: &'a dyn Store,
    /// The next page.
    range: Range,
    more: bool,
}

impl Pages<'_> {
    /// The next page; `None` after the last.
    async fn next(&mut self) -> Result<Option<Vec<KeyValue>>, StoreError> {
        if !self.more {
            return Ok(None);
        }
        let page = self.store.range(self.range.clone()).await?;
        self.range.revision = page.revision;
        match page.kvs.last() {
            Some(last) if page.more => self.range.start = format!("{}\0", last.key),
            _ => self.more = false,
        }
        Ok(Some(page.kvs))
    }

    /// The revision that the pages are of, once there was one.
    fn revision(&self) -> Revision {
        self.range.revision
    }
}

/// The outcome of decoding a page on another thread.
async fn decoded(
    page: JoinHandle<Result<Vec<Arc<Entry>>, StoreError>>,
) -> Result<Vec<Arc<Entry>>, StoreError> {
    let lost = |error| StoreError::Unavailable(format!("a page of objects was not decoded: {error}"));
    page.await.map_err(lost)?
}

/// Takes events from the store to the caches.
pub(crate) struct Feed {
    store: Arc<dyn Store>,
    progress: Arc<Progress>,
    caches: RwLock<Caches>,
    /// Caches that could not be loaded, until the task that feeds has them.
    unloaded: Mutex<Vec<Arc<Cache>>>,
    unloaded_added: Notify,
}

impl Feed {
    /// All resources live below this.
    pub const PREFIX: &'static str = "/registry/";

    pub fn new(store: Arc<dyn Store>, progress: Arc<Progress>) -> Self {
        let (unloaded, unloaded_added) = (Mutex::default(), Notify::new());
        Feed { store, progress, caches: RwLock::default(), unloaded, unloaded_added }
    }

    /// The cache of a prefix, and whether it was made just now: then it collects events and is to be loaded.
    pub fn cache(&self, prefix: Arc<str>, limits: Limits) -> (Arc<Cache>, bool) {
        let mut caches = self.caches.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(cache) = caches.get(&prefix) {
            return (cache.clone(), false);
        }
        let cache = Arc::new(Cache::new(prefix.clone(), limits, self.progress.clone()));
        caches.insert(prefix, cache.clone());
        (cache, true)
    }

    /// Stops feeding a cache.
    pub fn remove(&self, prefix: &str) {
        self.caches.write().unwrap_or_else(PoisonError::into_inner).remove(prefix);
    }

    /// Whether a cache is fed.
    pub(super) fn has(&self, cache: &Arc<Cache>) -> bool {
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        caches.get(cache.prefix()).is_some_and(|fed| Arc::ptr_eq(fed, cache))
    }

    fn all(&self) -> Vec<Arc<Cache>> {
        self.caches.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Ends so many watches at most of those that keep up. How many it has ended.
    pub fn end_watches(&self, most: usize) -> usize {
        self.all().iter().fold(0, |ended, cache| ended + cache.end_some(most - ended))
    }

    /// How many watches there are that keep up.
    pub fn live_watches(&self) -> usize {
        self.all().iter().map(|cache| cache.live_watchers()).sum()
    }

    /// Ends all watches.
    pub fn close(&self) {
        self.all().iter().for_each(|cache| cache.close());
    }

    /// Fills a new cache from the store. One that is not `required` is filled later if a value cannot be read.
    pub async fn load(&self, cache: Arc<Cache>, required: bool) -> Result<(), StoreError> {
        let mut loaded = self.try_load(&cache).await;
        for _ in 1..LOAD_TRIES {
            if matches!(loaded, Err(StoreError::Compacted { .. })) {
                loaded = self.try_load(&cache).await;
            }
        }
        match loaded {
            Err(error @ (StoreError::Corrupt(_) | StoreError::Encryption(_))) if !required => {
                log_lost(&cache, &error);
                cache.fail_reading(error);
                self.unloaded.lock().unwrap_or_else(PoisonError::into_inner).push(cache);
                self.unloaded_added.notify_one();
                Ok(())
            }
            other => other,
        }
    }

    /// Resolves with the caches that could not be loaded, once there are any.
    async fn next_unloaded(&self) -> Vec<Arc<Cache>> {
        self.unloaded_added.notified().await;
        std::mem::take(&mut *self.unloaded.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn try_load(&self, cache: &Arc<Cache>) -> Result<(), StoreError> {
        let mut objects = Objects::new();
        let mut add = |page: Vec<Arc<Entry>>| {
            objects.extend(page.into_iter().map(|entry| (entry.key.clone(), entry)));
        };
        let mut pages = self.pages(cache.prefix(), 0);
        let mut decoding = VecDeque::new();
        while let Some(page) = pages.next().await? {
            if page.len() <= PAGE_INLINE || runs_inline() {
                add(cache.decode_page(page)?);
                continue;
            }
            if decoding.len() >= DECODERS
                && let Some(first) = decoding.pop_front()
            {
                add(decoded(first).await?);
            }
            let cache = cache.clone();
            decoding.push_back(tokio::task::spawn_blocking(move || cache.decode_page(page)));
        }
        while let Some(first) = decoding.pop_front() {
            add(decoded(first).await?);
        }
        cache.loaded(objects, pages.revision())
    }

    /// Reads what a cache's objects in another shape are made of.
    pub async fn shape(&self, shaping: &mut Shaping) -> Result<(), StoreError> {
        let Some(prefix) = shaping.wanted() else { return Ok(()) };
        for attempt in 1.. {
            match self.read_shape(&prefix, shaping).await {
                Err(StoreError::Compacted { .. }) if attempt < LOAD_TRIES => shaping.restart(),
                done => return done,
            }
        }
        Ok(())
    }

    async fn read_shape(&self, prefix: &str, shaping: &mut Shaping) -> Result<(), StoreError> {
        let mut pages = self.pages(prefix, 0);
        while let Some(page) = pages.next().await? {
            shaping.read(&page);
        }
        Ok(())
    }

    /// All keys of a prefix page by page, as of one revision (0: the present one).
    fn pages(&self, prefix: &str, revision: Revision) -> Pages<'_> {
        let range = Range::prefix(prefix).limit(PAGE).at(revision).uncounted();
        Pages { store: &*self.store, range, more: true }
    }

    /// Delivers a batch to the caches it concerns. Those with watchers that are to be woken later go to `late`, and those that lack
    /// a change of it to `recovery`.
    fn dispatch(&self, batch: WatchBatch, late: &mut Late, recovery: &mut Recovery<'_>) {
        let mut parts: Vec<(Arc<Cache>, Vec<Event>)> = vec![];
        {
            let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
            // First: what else happened to such a cache in this batch does not count.
            for change in batch.unreadable {
                let Some(cache) = caches.get(prefix_of_key(&change.key)) else { continue };
                lose_change(cache, change.error, recovery);
            }
            for event in batch.events {
                let Some(cache) = caches.get(prefix_of_key(&event.kv.key)) else { continue };
                match parts.iter_mut().find(|(c, _)| Arc::ptr_eq(c, cache)) {
                    Some((_, events)) => events.push(event),
                    None => parts.push((cache.clone(), vec![event])),
                }
            }
        }
        for (cache, events) in parts {
            match cache.apply(events) {
                Ok(due) => due.into_iter().for_each(|due| late.add(cache.clone(), due)),
                Err(error) => lose_change(&cache, error, recovery),
            }
        }
        self.progress.advance(batch.revision);
    }

    /// Feeds until it is stopped or the store is closed.
    pub async fn run(self: Arc<Self>, mut events: WatchStream, mut stop: watch::Receiver<bool>) {
        let fed = async {
            let (mut late, mut recovery) = (Late::default(), Recovery::default());
            // Watches in a row that ended before they told anything: the next are waited for longer and longer.
            let mut fruitless = 0;
            loop {
                let next = tokio::select! {
                    biased;
                    next = events.next() => next,
                    () = late.due() => {
                        late.begin(Instant::now());
                        continue;
                    }
                    unloaded = self.next_unloaded() => {
                        unloaded.into_iter().for_each(|cache| recovery.add(cache));
                        continue;
                    }
                    never = recovery.run(&self) => match never {},
                };
                match next {
                    Some(Ok(batch)) => {
                        let before = self.progress.applied();
                        self.dispatch(batch, &mut late, &mut recovery);
                        if self.progress.applied() > before {
                            fruitless = 0;
                        }
                    }
                    Some(Err(StoreError::Closed)) => return,
                    lost => {
                        // The store may be away for long.
                        late.begin_all();
                        let error = lost.and_then(Result::err);
                        tracing::warn!(?error, "the watch of the store ended; resuming");
                        match self.resume(error, fruitless, &mut recovery).await {
                            Some(stream) => events = stream,
                            None => return,
                        }
                        fruitless += 1;
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = fed => self.close(),
            // Either it is stopped, or the engine is gone.
            _ = stop.wait_for(|stop| *stop) => self.close(),
        }
    }

    /// A new watch from where the old one ended; if that history is gone, after bringing the caches up to date from the
    /// present state. `attempts` failed before this. `None`: the store is closed.
    async fn resume(
        &self,
        mut error: Option<StoreError>,
        attempts: usize,
        recovery: &mut Recovery<'_>,
    ) -> Option<WatchStream> {
        for attempt in attempts.. {
            if error == Some(StoreError::Closed) {
                return None;
            }
            if attempt > 0 {
                tokio::time::sleep(BACKOFF[(attempt - 1).min(BACKOFF.len() - 1)]).await;
            }
            if matches!(error, Some(StoreError::Compacted { .. }))
                && let Err(failed) = self.resync(recovery).await
            {
                error = Some(failed);
                continue;
            }
            match self.store.watch(Self::PREFIX, self.progress.applied() + 1).await {
                Ok(stream) => return Some(stream),
                Err(failed) => error = Some(failed),
            }
        }
        None
    }

    async fn resync(&self, recovery: &mut Recovery<'_>) -> Result<(), StoreError> {
        let revision = self.store.revision().await?;
        for cache in self.all() {
            let read = self.read_all_at(cache.prefix(), revision).await;
            match read.and_then(|kvs| cache.replace(kvs, revision)) {
                Ok(()) => {}
                Err(error @ (StoreError::Corrupt(_) | StoreError::Encryption(_))) => {
                    lose_change(&cache, error, recovery);
                }
                Err(error) => return Err(error),
            }
        }
        self.progress.advance(revision);
        Ok(())
    }

    /// All values of a prefix as they are now, and at which revision that is.
    pub(super) async fn read_all(&self, prefix: &str) -> Result<(Vec<KeyValue>, Revision), StoreError> {
        let revision = self.store.revision().await?;
        Ok((self.read_all_at(prefix, revision).await?, revision))
    }

    async fn read_all_at(&self, prefix: &str, revision: Revision) -> Result<Vec<KeyValue>, StoreError> {
        let mut kvs = vec![];
        let mut pages = self.pages(prefix, revision);
        while let Some(page) = pages.next().await? {
            kvs.extend(page);
        }
        Ok(kvs)
    }
}

/// A cache is to be read anew.
fn lose_change(cache: &Arc<Cache>, error: StoreError, recovery: &mut Recovery<'_>) {
    if cache.unreadable().is_none() {
        log_lost(cache, &error);
    }
    cache.lose_change(error);
    recovery.add(cache.clone());
}

fn log_lost(cache: &Cache, error: &StoreError) {
    tracing::error!(prefix = &**cache.prefix(), %error, "an object cannot be read: requests for the resource fail until it can");
}

/// Caches with watchers that are to be woken, and when.
#[derive(Default)]
struct Late(Vec<(Arc<Cache>, Instant)>);

impl Late {
    fn add(&mut self, cache: Arc<Cache>, due: Instant) {
        match self.0.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &cache)) {
            Some((_, known)) => *known = due,
            None => self.0.push((cache, due)),
        }
    }

    /// Resolves when the first is due; never when there is none.
    async fn due(&self) {
        match self.0.iter().map(|(_, due)| *due).min() {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    fn begin(&mut self, now: Instant) {
        for (cache, _) in self.0.extract_if(.., |(_, due)| *due <= now) {
            cache.begin_round();
        }
    }

    fn begin_all(&mut self) {
        self.0.drain(..).for_each(|(cache, _)| cache.begin_round());
    }
}

/// `/registry/<group>/<plural>/` of a key below it.
fn prefix_of_key(key: &str) -> &str {
    let end = key.bytes().enumerate().filter(|(_, b)| *b == b'/').nth(3);
    end.map_or(key, |(at, _)| &key[..=at])
}

#[cfg(test)]
mod tests {
    #[test]
    fn finds_the_prefix_of_a_key() {
        assert_eq!(super::prefix_of_key("/registry/core/pods/ns/name"), "/registry/core/pods/");
        assert_eq!(super::prefix_of_key("/registry/core/nodes/name"), "/registry/core/nodes/");
        assert_eq!(super::prefix_of_key("/registry/core"), "/registry/core");
    }
}

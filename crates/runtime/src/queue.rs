//! A work queue, as client-go's: it deduplicates keys, and retries failed ones with exponential backoff.
//!
//! Invariants:
//! - A key is queued once at most, and processed by one worker at a time.
//! - Keys are processed in the order in which they became ready; a key that is added while it is processed goes to the end.
//!
//! Source of the delays: client-go's default controller rate limiter (5 ms doubling to 1000 s).

mod metrics;

pub use metrics::QueueMetrics;

use crate::{meta::Key, time};
use kaji_meta::time::{Clock, SystemClock};
use metrics::Meter;
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(1000);
/// Keys for which a queue that has become empty keeps room. There are dozens of queues.
const ROOM: usize = 64;

#[derive(Default)]
struct State {
    ready: VecDeque<Key>,
    /// With the time when it was added.
    queued: HashMap<Key, Instant>,
    /// With the time when its processing began, until it has ended.
    active: HashMap<Key, Option<Instant>>,
    /// Added while being processed, and when.
    again: HashMap<Key, Instant>,
    /// Each key has one due time at most, the earliest that was requested.
    delayed: BTreeSet<(Instant, Key)>,
    due: HashMap<Key, Instant>,
    /// Processed a moment ago and not to be processed again before a while: still active.
    resting: BTreeSet<(Instant, Key)>,
    failures: HashMap<Key, u32>,
    closed: bool,
    meter: Meter,
}

/// The queue. Its size is bounded by the number of distinct keys.
pub struct Queue {
    state: Arc<Mutex<State>>,
    wake: Notify,
    clock: Arc<dyn Clock>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::new(Arc::new(SystemClock))
    }
}

impl Queue {
    /// An empty queue with delays that are measured by a clock.
    pub fn new(clock: Arc<dyn Clock>) -> Queue {
        Queue { state: Arc::default(), wake: Notify::new(), clock }
    }

    /// The same, with metrics under a name.
    pub fn named(name: &str, clock: Arc<dyn Clock>, metrics: &QueueMetrics) -> Queue {
        let queue = Queue::new(clock);
        queue.locked(|s| s.meter = metrics.meter(name));
        metrics.follow(name, Arc::downgrade(&queue.state));
        queue
    }

    fn now(&self) -> Instant {
        time::instant(&*self.clock)
    }

    fn locked<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        // A poisoned lock is a panic of another caller; every update of the state is complete.
        f(&mut self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Adds a key.
    pub fn add(&self, key: Key) {
        let wake = self.locked(|s| s.add(key));
        if wake {
            self.wake.notify_one();
        }
    }

    /// Adds a key after a delay.
    pub fn add_after(&self, key: Key, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.locked(|s| s.meter.retries.inc());
        self.add_at(key, self.now() + delay);
    }

    /// Adds a key at a point in time ([`time::instant`]).
    pub fn add_at(&self, key: Key, at: Instant) {
        self.locked(|s| s.delay(at, key));
        self.wake.notify_one();
    }

    /// Adds a key after a delay that grows with its consecutive failures.
    pub fn retry(&self, key: Key) {
        let delay = self.locked(|s| {
            let count = s.failures.entry(key.clone()).or_default();
            *count = count.saturating_add(1);
            FIRST_RETRY
                .saturating_mul(1u32.checked_shl((*count - 1).min(20)).unwrap_or(u32::MAX))
                .min(LAST_RETRY)
        });
        self.add_after(key, delay);
    }

    /// Resets the failures of a key after a success.
    pub fn forget(&self, key: &Key) {
        self.locked(|s| s.failures.remove(key));
    }

    /// The next key, or `None` once closed. The caller must call [`Queue::done`].
    pub async fn next(&self) -> Option<Key> {
        loop {
            let notified = self.wake.notified();
            let (key, due, closed) = self.locked(|s| {
                s.promote(self.now());
                let key = s.take();
                (key, s.next_instant(), s.closed)
            });
            match (key, due) {
                (Some(key), _) => {
                    // Another key may be ready: wake the next worker.
                    self.wake.notify_one();
                    return Some(key);
                }
                (None, _) if closed => return None,
                (None, Some(at)) => {
                    tokio::select! { biased; () = notified => {}, () = time::sleep_until(&*self.clock, at) => {} }
                }
                (None, None) => notified.await,
            }
        }
    }

    /// A key has been processed.
    pub fn done(&self, key: &Key) {
        let wake = self.locked(|s| s.done(key.clone()));
        if wake {
            self.wake.notify_one();
        }
    }

    /// A key has been processed, and is not processed again before `rest` has passed.
    pub fn done_after(&self, key: &Key, rest: Duration) {
        if rest.is_zero() {
            return self.done(key);
        }
        let at = self.now() + rest;
        self.locked(|s| {
            s.worked(key);
            s.resting.insert((at, key.clone()))
        });
        self.wake.notify_one();
    }

    /// Closes the queue: workers get `None` once the ready keys are taken.
    pub fn close(&self) {
        self.locked(|s| s.closed = true);
        self.wake.notify_waiters();
        self.wake.notify_one();
    }

    /// Whether no key is ready or in progress (delayed keys aside).
    pub fn idle(&self) -> bool {
        self.locked(|s| s.ready.is_empty() && s.active.is_empty())
    }
}

impl State {
    fn add(&mut self, key: Key) -> bool {
        if self.queued.contains_key(&key) || self.again.contains_key(&key) {
            return false;
        }
        self.meter.adds.inc();
        self.meter.depth.inc();
        if self.active.contains_key(&key) {
            self.again.insert(key, Instant::now());
            return false;
        }
        self.queued.insert(key.clone(), Instant::now());
        self.ready.push_back(key);
        true
    }

    /// The processing of a key has ended.
    fn worked(&mut self, key: &Key) {
        if let Some(began) = self.active.get_mut(key).and_then(Option::take) {
            self.meter.work.observe(began.elapsed().as_secs_f64());
        }
    }

    fn done(&mut self, key: Key) -> bool {
        self.worked(&key);
        self.active.remove(&key);
        let Some(added) = self.again.remove(&key) else { return false };
        self.queued.insert(key.clone(), added);
        self.ready.push_back(key);
        true
    }

    fn delay(&mut self, at: Instant, key: Key) {
        if let Some(due) = self.due.get(&key) {
            if *due <= at {
                return;
            }
            self.delayed.remove(&(*due, key.clone()));
        }
        self.due.insert(key.clone(), at);
        self.delayed.insert((at, key));
    }

    fn next_instant(&self) -> Option<Instant> {
        [self.delayed.first(), self.resting.first()].into_iter().flatten().map(|(at, _)| *at).min()
    }

    fn promote(&mut self, now: Instant) {
        while self.resting.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, key)) = self.resting.pop_first() {
                self.done(key);
            }
        }
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, key)) = self.delayed.pop_first() {
                self.due.remove(&key);
                self.add(key);
            }
        }
    }

    fn take(&mut self) -> Option<Key> {
        let key = self.ready.pop_front()?;
        if let Some(added) = self.queued.remove(&key) {
            self.meter.latency.observe(added.elapsed().as_secs_f64());
        }
        self.meter.depth.dec();
        self.active.insert(key.clone(), Some(Instant::now()));
        if self.ready.is_empty() {
            self.release_memory();
        }
        Some(key)
    }

    /// After a first list every key was queued at once, and may never be again: the room for them is given back.
    fn release_memory(&mut self) {
        if self.ready.capacity() > 2 * ROOM {
            self.ready.shrink_to(ROOM);
            self.queued.shrink_to(ROOM);
            self.active.shrink_to(ROOM);
            self.again.shrink_to(ROOM);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("", name)
    }

    #[tokio::test]
    async fn gives_room_back_once_it_is_empty() {
        let queue = Queue::default();
        for i in 0..10 * ROOM {
            queue.add(key(&i.to_string()));
        }
        for i in 0..10 * ROOM {
            let next = queue.next().await.unwrap();
            assert_eq!(next, key(&i.to_string()));
            queue.done(&next);
        }
        assert!(queue.locked(|s| s.queued.capacity().max(s.ready.capacity()) < 3 * ROOM));
    }

    #[tokio::test]
    async fn queues_a_key_once_and_gives_it_to_one_worker() {
        let queue = Queue::default();
        queue.add(key("a"));
        queue.add(key("a"));
        let a = queue.next().await.unwrap();
        queue.add(key("a"));
        queue.add(key("b"));
        assert_eq!(queue.next().await.unwrap(), key("b"));
        assert!(queue.locked(|s| s.ready.is_empty()));
        queue.done(&a);
        assert_eq!(queue.next().await.unwrap(), key("a"));
        queue.close();
        queue.done(&key("a"));
        assert_eq!(queue.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn delays_a_resting_key_and_keeps_the_earliest_delay() {
        let queue = Queue::default();
        let started = Instant::now();
        queue.add(key("a"));
        let a = queue.next().await.unwrap();
        queue.add(key("a"));
        queue.done_after(&a, Duration::from_millis(50));
        queue.add(key("a"));
        assert_eq!(queue.next().await.unwrap(), key("a"));
        assert_eq!(started.elapsed().as_millis(), 50);
        queue.done(&key("a"));
        for wait in [900, 20, 500] {
            queue.add_after(key("a"), Duration::from_millis(wait));
        }
        assert_eq!(queue.locked(|s| s.delayed.len()), 1);
        queue.next().await.unwrap();
        assert_eq!(started.elapsed().as_millis(), 70);
    }

    #[tokio::test(start_paused = true)]
    async fn doubles_the_delay_of_retries() {
        let queue = Queue::default();
        let started = Instant::now();
        let mut waits = vec![];
        for _ in 0..4 {
            let before = Instant::now();
            queue.retry(key("a"));
            let k = queue.next().await.unwrap();
            waits.push(before.elapsed().as_millis());
            queue.done(&k);
        }
        assert_eq!(waits, [5, 10, 20, 40]);
        queue.forget(&key("a"));
        queue.retry(key("a"));
        queue.next().await.unwrap();
        assert_eq!(started.elapsed().as_millis(), 80);
    }

    #[tokio::test(start_paused = true)]
    async fn bounds_the_delay_of_retries() {
        let queue = Queue::default();
        for _ in 0..40 {
            queue.retry(key("a"));
            let before = Instant::now();
            let k = queue.next().await.unwrap();
            assert!(before.elapsed() <= LAST_RETRY);
            queue.done(&k);
        }
        queue.retry(key("a"));
        let before = Instant::now();
        queue.next().await.unwrap();
        assert_eq!(before.elapsed(), LAST_RETRY);
    }

    #[tokio::test]
    async fn a_key_that_is_added_again_and_again_does_not_starve_others() {
        let queue = Queue::default();
        for name in ["a", "b", "c"] {
            queue.add(key(name));
        }
        let mut order = String::new();
        for _ in 0..6 {
            let k = queue.next().await.unwrap();
            order += &k.name;
            // Added while it is processed: it goes behind the keys that wait.
            queue.add(k.clone());
            queue.done(&k);
        }
        assert_eq!(order, "abcabc");
    }

    #[tokio::test(start_paused = true)]
    async fn wakes_one_worker_per_ready_key() {
        let queue = Arc::new(Queue::default());
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let queue = queue.clone();
            workers.spawn(async move { queue.next().await });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        for name in ["a", "b"] {
            queue.add(key(name));
        }
        let mut taken =
            vec![workers.join_next().await.unwrap().unwrap(), workers.join_next().await.unwrap().unwrap()];
        taken.sort();
        assert_eq!(taken, [Some(key("a")), Some(key("b"))]);
        assert!(!queue.idle());
        queue.close();
        assert_eq!(workers.join_next().await.unwrap().unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_of_a_key_in_progress_waits_for_its_end() {
        let queue = Queue::default();
        queue.add(key("a"));
        let a = queue.next().await.unwrap();
        queue.retry(a.clone());
        let next = tokio::time::timeout(Duration::from_secs(1), queue.next());
        assert!(next.await.is_err());
        queue.done(&a);
        assert_eq!(queue.next().await, Some(a));
    }
}

//! A work queue: each key waits at most once, is worked on by one worker at a time, and is retried with a growing delay.
//! Source of the delays: client-go's default controller rate limiter (5 ms doubling to 1000 s).

use crate::{meta::Key, time};
use kaji_meta::time::{Clock, SystemClock};
use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(1000);

#[derive(Default)]
struct State {
    ready: VecDeque<Key>,
    queued: HashSet<Key>,
    active: HashSet<Key>,
    /// Asked for while being worked on.
    again: HashSet<Key>,
    /// Each key waits for one instant at most, the earliest that was asked for.
    delayed: BTreeSet<(Instant, Key)>,
    due: HashMap<Key, Instant>,
    /// Worked on a moment ago, and left alone for a while: still active.
    resting: BTreeSet<(Instant, Key)>,
    failures: HashMap<Key, u32>,
    closed: bool,
}

/// The queue. Its size is bounded by the number of distinct keys.
pub struct Queue {
    state: Mutex<State>,
    wake: Notify,
    clock: Arc<dyn Clock>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::new(Arc::new(SystemClock))
    }
}

impl Queue {
    /// An empty one, whose delays go by a clock.
    pub fn new(clock: Arc<dyn Clock>) -> Queue {
        Queue { state: Mutex::default(), wake: Notify::new(), clock }
    }

    fn now(&self) -> Instant {
        time::instant(&*self.clock)
    }

    fn locked<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        // A poisoned lock means a panic between two pushes; the state itself is whole.
        f(&mut self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Asks for a key to be worked on.
    pub fn add(&self, key: Key) {
        let wake = self.locked(|s| s.add(key));
        if wake {
            self.wake.notify_one();
        }
    }

    /// Asks for a key after a delay.
    pub fn add_after(&self, key: Key, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.add_at(key, self.now() + delay);
    }

    /// Asks for a key at a point in time ([`time::instant`]).
    pub fn add_at(&self, key: Key, at: Instant) {
        self.locked(|s| s.delay(at, key));
        self.wake.notify_one();
    }

    /// Asks for a key after a delay that grows with its failures in a row.
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

    /// A success: the next failure starts over.
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
                    // Others may be ready too: pass the word on.
                    self.wake.notify_one();
                    return Some(key);
                }
                (None, _) if closed => return None,
                (None, Some(at)) => {
                    tokio::select! { () = notified => {}, () = time::sleep_until(&*self.clock, at) => {} }
                }
                (None, None) => notified.await,
            }
        }
    }

    /// The work on a key is over.
    pub fn done(&self, key: &Key) {
        let wake = self.locked(|s| s.done(key.clone()));
        if wake {
            self.wake.notify_one();
        }
    }

    /// The work on a key is over, and is not to be taken up again before `rest` has passed.
    pub fn done_after(&self, key: &Key, rest: Duration) {
        if rest.is_zero() {
            return self.done(key);
        }
        let at = self.now() + rest;
        self.locked(|s| s.resting.insert((at, key.clone())));
        self.wake.notify_one();
    }

    /// Ends the queue: workers get `None` once the ready keys are taken.
    pub fn close(&self) {
        self.locked(|s| s.closed = true);
        self.wake.notify_waiters();
        self.wake.notify_one();
    }

    /// Whether nothing waits and nobody works (delayed keys aside).
    pub fn idle(&self) -> bool {
        self.locked(|s| s.ready.is_empty() && s.active.is_empty())
    }
}

impl State {
    fn add(&mut self, key: Key) -> bool {
        if self.active.contains(&key) {
            self.again.insert(key);
            return false;
        }
        if !self.queued.insert(key.clone()) {
            return false;
        }
        self.ready.push_back(key);
        true
    }

    fn done(&mut self, key: Key) -> bool {
        self.active.remove(&key);
        self.again.remove(&key) && self.add(key)
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
        self.queued.remove(&key);
        self.active.insert(key.clone());
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("", name)
    }

    #[tokio::test]
    async fn a_key_waits_once_and_is_worked_on_by_one() {
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
    async fn a_resting_key_waits_and_delays_do_not_pile_up() {
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
    async fn retries_wait_longer_each_time() {
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
}

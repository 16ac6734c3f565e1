//! Pods that wait for a node: ready ones by priority and age, unschedulable ones until something changes or their
//! backoff ends.

use crate::cluster::PodInfo;
use kaji_runtime::Key;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};
use tokio::time::Instant;

/// Upstream's `podInitialBackoffSeconds` and `podMaxBackoffSeconds`.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_secs(10);
/// Upstream's flush of pods that wait without any event.
const FLUSH: Duration = Duration::from_secs(300);

type Order = (Reverse<i64>, u64);

/// The queue.
#[derive(Default)]
pub struct Queue {
    ready: BTreeMap<Order, Key>,
    pods: HashMap<Key, Waiting>,
    /// The unschedulable ones, so that waking costs nothing for those that merely wait their turn.
    sleeping: HashSet<Key>,
    arrivals: u64,
}

struct Waiting {
    info: PodInfo,
    order: Order,
    attempts: u32,
    /// Set while unschedulable: not before the first, at the latest at the second.
    asleep: Option<(Instant, Instant)>,
}

impl Queue {
    /// Adds a pod or refreshes it. A changed spec (a removed gate, a new toleration) wakes it.
    pub fn add(&mut self, key: Key, info: PodInfo) {
        if let Some(known) = self.pods.get_mut(&key) {
            let same =
                known.info.pod.metadata.uid == info.pod.metadata.uid && known.info.pod.spec == info.pod.spec;
            known.info = info;
            if !same && known.asleep.take().is_some() {
                self.sleeping.remove(&key);
                self.ready.insert(known.order, key);
            }
            return;
        }
        self.arrivals += 1;
        let order = (Reverse(info.pod.spec.priority.unwrap_or_default()), self.arrivals);
        self.ready.insert(order, key.clone());
        self.pods.insert(key, Waiting { info, order, attempts: 0, asleep: None });
    }

    /// Forgets a pod.
    pub fn remove(&mut self, key: &Key) {
        if let Some(waiting) = self.pods.remove(key) {
            self.ready.remove(&waiting.order);
            self.sleeping.remove(key);
        }
    }

    /// The next pod to decide about. It stays known until [`Queue::remove`] or [`Queue::sleep`].
    pub fn pop(&mut self) -> Option<(Key, PodInfo)> {
        let (_, key) = self.ready.pop_first()?;
        let info = self.pods.get(&key)?.info.clone();
        Some((key, info))
    }

    /// Puts a pod aside after a failed attempt.
    pub fn sleep(&mut self, key: &Key, now: Instant) {
        let Some(waiting) = self.pods.get_mut(key) else { return };
        let backoff = FIRST_BACKOFF.saturating_mul(1 << waiting.attempts.min(4)).min(LAST_BACKOFF);
        waiting.attempts = waiting.attempts.saturating_add(1);
        waiting.asleep = Some((now + backoff, now + FLUSH));
        self.ready.remove(&waiting.order);
        self.sleeping.insert(key.clone());
    }

    /// Something changed that may help: whoever sleeps may try again once its backoff is over.
    pub fn wake_all(&mut self) {
        for key in &self.sleeping {
            if let Some((backoff, at)) = self.pods.get_mut(key).and_then(|w| w.asleep.as_mut()) {
                *at = *backoff;
            }
        }
    }

    /// Wakes those whose time has come.
    pub fn wake_due(&mut self, now: Instant) {
        let (pods, ready) = (&mut self.pods, &mut self.ready);
        self.sleeping.retain(|key| {
            let Some(waiting) = pods.get_mut(key) else { return false };
            let Some((_, at)) = waiting.asleep else { return false };
            if at <= now {
                waiting.asleep = None;
                ready.insert(waiting.order, key.clone());
                return false;
            }
            true
        });
    }

    /// When the next one's time comes.
    pub fn next_due(&self) -> Option<Instant> {
        self.sleeping.iter().filter_map(|key| Some(self.pods.get(key)?.asleep?.1)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn pod(name: &str, priority: i64) -> (Key, PodInfo) {
        let pod = json!({"metadata": {"name": name, "uid": name}, "spec": {"priority": priority}});
        (Key::new("", name), PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
    }

    #[tokio::test(start_paused = true)]
    async fn priority_first_then_age_and_backoff_after_failure() {
        let mut queue = Queue::default();
        for (name, priority) in [("a", 0), ("b", 5), ("c", 0)] {
            let (key, info) = pod(name, priority);
            queue.add(key.clone(), info.clone());
            queue.add(key, info);
        }
        let order: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|(k, _)| k.name).collect();
        assert_eq!(order, ["b", "a", "c"]);
        let now = Instant::now();
        let (key, _) = pod("a", 0);
        queue.sleep(&key, now);
        queue.wake_due(now);
        assert_eq!(queue.next_due(), Some(now + FLUSH));
        queue.wake_all();
        assert_eq!(queue.next_due(), Some(now + FIRST_BACKOFF));
        queue.wake_due(now + FIRST_BACKOFF);
        assert_eq!(queue.next_due(), None);
        assert_eq!(queue.pop().unwrap().0, key);
        queue.sleep(&key, now);
        queue.wake_all();
        assert_eq!(queue.next_due(), Some(now + 2 * FIRST_BACKOFF));
    }
}

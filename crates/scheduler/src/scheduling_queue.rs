//! The scheduling queue: active pods by priority and age, unschedulable ones until a change or the end of their backoff.
//!
//! Invariant: a pod is either active, unschedulable, or being scheduled.

use crate::cache::PodInfo;
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
pub struct SchedulingQueue {
    active: BTreeMap<Order, Key>,
    pods: HashMap<Key, Waiting>,
    /// The unschedulable ones: a cluster event does not touch the active ones.
    unschedulable: HashSet<Key>,
    arrivals: u64,
}

struct Waiting {
    info: PodInfo,
    order: Order,
    attempts: u32,
    /// Set while unschedulable: the end of the backoff, and when it becomes active.
    backoff: Option<(Instant, Instant)>,
}

impl SchedulingQueue {
    /// Adds a pod or updates it. A changed spec (a removed gate, a new toleration) makes it active.
    pub fn add(&mut self, key: Key, info: PodInfo) {
        if let Some(known) = self.pods.get_mut(&key) {
            let same =
                known.info.pod.metadata.uid == info.pod.metadata.uid && known.info.pod.spec == info.pod.spec;
            known.info = info;
            if !same && known.backoff.take().is_some() {
                self.unschedulable.remove(&key);
                self.active.insert(known.order, key);
            }
            return;
        }
        self.arrivals += 1;
        let order = (Reverse(info.pod.spec.priority.unwrap_or_default()), self.arrivals);
        self.active.insert(order, key.clone());
        self.pods.insert(key, Waiting { info, order, attempts: 0, backoff: None });
    }

    /// Removes a pod.
    pub fn remove(&mut self, key: &Key) {
        if let Some(waiting) = self.pods.remove(key) {
            self.active.remove(&waiting.order);
            self.unschedulable.remove(key);
        }
    }

    /// The next pod to schedule. It stays in the queue until [`SchedulingQueue::remove`].
    pub fn pop(&mut self) -> Option<(Key, PodInfo)> {
        let (_, key) = self.active.pop_first()?;
        let info = self.pods.get(&key)?.info.clone();
        Some((key, info))
    }

    /// Starts the backoff of a pod after a failed attempt.
    pub fn add_unschedulable(&mut self, key: &Key, now: Instant) {
        let Some(waiting) = self.pods.get_mut(key) else { return };
        let backoff = FIRST_BACKOFF.saturating_mul(1 << waiting.attempts.min(4)).min(LAST_BACKOFF);
        waiting.attempts = waiting.attempts.saturating_add(1);
        waiting.backoff = Some((now + backoff, now + FLUSH));
        self.active.remove(&waiting.order);
        self.unschedulable.insert(key.clone());
    }

    /// After a change that may help: unschedulable pods become active at the end of their backoff.
    pub fn move_all_to_active(&mut self) {
        for key in &self.unschedulable {
            if let Some((backoff, at)) = self.pods.get_mut(key).and_then(|w| w.backoff.as_mut()) {
                *at = *backoff;
            }
        }
    }

    /// Makes the unschedulable pods active that are due.
    pub fn flush_due(&mut self, now: Instant) {
        let (pods, active) = (&mut self.pods, &mut self.active);
        self.unschedulable.retain(|key| {
            let Some(waiting) = pods.get_mut(key) else { return false };
            let Some((_, at)) = waiting.backoff else { return false };
            if at <= now {
                waiting.backoff = None;
                active.insert(waiting.order, key.clone());
                return false;
            }
            true
        });
    }

    /// When the next unschedulable pod becomes active.
    pub fn next_due(&self) -> Option<Instant> {
        self.unschedulable.iter().filter_map(|key| Some(self.pods.get(key)?.backoff?.1)).min()
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
    async fn orders_by_priority_and_age_and_backs_off_after_failures() {
        let mut queue = SchedulingQueue::default();
        for (name, priority) in [("a", 0), ("b", 5), ("c", 0)] {
            let (key, info) = pod(name, priority);
            queue.add(key.clone(), info.clone());
            queue.add(key, info);
        }
        let order: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|(k, _)| k.name).collect();
        assert_eq!(order, ["b", "a", "c"]);
        let now = Instant::now();
        let (key, _) = pod("a", 0);
        queue.add_unschedulable(&key, now);
        queue.flush_due(now);
        assert_eq!(queue.next_due(), Some(now + FLUSH));
        queue.move_all_to_active();
        assert_eq!(queue.next_due(), Some(now + FIRST_BACKOFF));
        queue.flush_due(now + FIRST_BACKOFF);
        assert_eq!(queue.next_due(), None);
        assert_eq!(queue.pop().unwrap().0, key);
        queue.add_unschedulable(&key, now);
        queue.move_all_to_active();
        assert_eq!(queue.next_due(), Some(now + 2 * FIRST_BACKOFF));
    }
}

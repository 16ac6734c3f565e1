//! Counts watches by what they watch, for the estimate of a write's work.
//!
//! Source: upstream's `watch_tracker.go`.

use crate::ResourceDigest;
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
};

/// Numbers of watches by what they watch. Bounded by the number of watches.
#[derive(Default)]
pub struct WatchTracker {
    hasher: RandomState,
    /// Keyed by hash alone: a collision makes a number a little too high, which does no harm.
    counts: Mutex<HashMap<u64, u32>>,
}

/// A watch, counted until this is dropped.
pub struct WatchGuard {
    tracker: Arc<WatchTracker>,
    key: u64,
}

impl WatchTracker {
    fn key(&self, group: &str, resource: &str, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((group, resource, namespace, name))
    }

    /// Counts a watch of this target.
    pub fn register(tracker: &Arc<WatchTracker>, target: &ResourceDigest<'_>) -> WatchGuard {
        let ResourceDigest { group, resource, namespace, name, .. } = *target;
        let key = tracker.key(group, resource, namespace, name);
        *tracker.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
        WatchGuard { tracker: tracker.clone(), key }
    }

    /// The number of watches of all objects of the target's kind, of its namespace, and of the target itself.
    pub fn interested(&self, target: &ResourceDigest<'_>) -> u64 {
        let ResourceDigest { group, resource, namespace, name, .. } = *target;
        let mut keys = [Some(self.key(group, resource, "", "")), None, None];
        if !namespace.is_empty() {
            keys[1] = Some(self.key(group, resource, namespace, ""));
        }
        if !name.is_empty() {
            keys[2] = Some(self.key(group, resource, namespace, name));
        }
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().flatten().filter_map(|key| counts.get(key).copied()).map(u64::from).sum()
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let mut counts = self.tracker.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods<'a>(namespace: &'a str, name: &'a str) -> ResourceDigest<'a> {
        ResourceDigest { group: "", version: "v1", resource: "pods", subresource: "", namespace, name }
    }

    #[test]
    fn counts_watches_that_cover_a_write() {
        let tracker = Arc::new(WatchTracker::default());
        let watch = |namespace, name| WatchTracker::register(&tracker, &pods(namespace, name));
        let all = watch("", "");
        let _namespace = watch("a", "");
        let _other_namespace = watch("b", "");
        let _other_name = watch("a", "q");
        assert_eq!(tracker.interested(&pods("a", "p")), 2);
        drop(all);
        assert_eq!(tracker.interested(&pods("a", "p")), 1);
    }
}

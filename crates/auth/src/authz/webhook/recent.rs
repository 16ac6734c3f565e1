//! A cache of decisions by request, with times to live.
//!
//! Invariants: never more entries than its capacity, the least recently used is evicted; nothing outlives its time.

use jiff::Timestamp;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

struct Entry<T> {
    answer: T,
    until: Timestamp,
    /// Its place in `order`.
    used: u64,
}

/// What was answered lately.
pub struct Recent<T> {
    most: usize,
    entries: HashMap<Arc<str>, Entry<T>>,
    /// Requests by their last use.
    order: BTreeMap<u64, Arc<str>>,
    next: u64,
}

impl<T: Clone> Recent<T> {
    /// For so many entries.
    pub fn new(most: usize) -> Self {
        Recent { most, entries: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }

    /// The answer, if it is still good.
    pub fn get(&mut self, key: &str, now: Timestamp) -> Option<T> {
        let entry = self.entries.get_mut(key)?;
        let key = self.order.remove(&entry.used)?;
        if entry.until <= now {
            self.entries.remove(&key);
            return None;
        }
        entry.used = self.next;
        self.order.insert(self.next, key);
        self.next += 1;
        Some(entry.answer.clone())
    }

    /// Remembers an answer until then.
    pub fn put(&mut self, key: String, answer: T, until: Timestamp) {
        let key: Arc<str> = key.into();
        let used = self.next;
        self.next += 1;
        if let Some(old) = self.entries.insert(key.clone(), Entry { answer, until, used }) {
            self.order.remove(&old.used);
        }
        self.order.insert(used, key);
        if self.entries.len() > self.most
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn evicts_least_recently_used() {
        let mut recent = Recent::new(2);
        recent.put("a".into(), 1, at(10));
        recent.put("b".into(), 2, at(5));
        assert_eq!(recent.get("a", at(0)), Some(1));
        recent.put("c".into(), 3, at(10));
        assert_eq!(
            [recent.get("a", at(9)), recent.get("b", at(0)), recent.get("c", at(10))],
            [Some(1), None, None]
        );
        assert_eq!((recent.entries.len(), recent.order.len()), (1, 1));
    }

    proptest! {
        /// Whatever is asked and answered in whichever order: bounded, in step, and never an answer that is not the last.
        #[test]
        fn cache_is_bounded_and_consistent(steps in prop::collection::vec((0u8..6, 0i64..8, any::<bool>()), 0..60)) {
            let (mut recent, mut last) = (Recent::new(3), HashMap::new());
            for (now, (key, ttl, put)) in steps.into_iter().enumerate() {
                let (key, now) = (key.to_string(), now as i64);
                if put {
                    recent.put(key.clone(), now, at(now + ttl));
                    last.insert(key, (now, now + ttl));
                } else if let Some(answer) = recent.get(&key, at(now)) {
                    let (newest, until) = last[&key];
                    prop_assert!(answer == newest && now < until);
                }
                prop_assert!(recent.entries.len() <= 3);
                prop_assert_eq!(recent.entries.len(), recent.order.len());
            }
        }
    }
}

//! A bounded map that forgets what was used longest ago.
//!
//! Invariant: there are never more entries than its capacity.

use std::collections::{BTreeMap, HashMap};

/// Entries by key.
pub(crate) struct Lru<T> {
    most: usize,
    by_key: HashMap<String, (T, u64)>,
    by_use: BTreeMap<u64, String>,
    uses: u64,
}

impl<T> Lru<T> {
    /// For so many entries.
    pub(crate) fn new(most: usize) -> Self {
        Lru { most, by_key: HashMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// Removes an entry.
    pub(crate) fn take(&mut self, key: &str) -> Option<T> {
        let (value, used) = self.by_key.remove(key)?;
        self.by_use.remove(&used);
        Some(value)
    }

    /// Sets an entry, which counts as a use of it.
    pub(crate) fn put(&mut self, key: String, value: T) {
        self.take(&key);
        if self.by_key.len() >= self.most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.by_key.remove(&oldest);
        }
        self.uses += 1;
        self.by_use.insert(self.uses, key.clone());
        self.by_key.insert(key, (value, self.uses));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_is_forgotten() {
        let mut lru = Lru::new(2);
        lru.put("a".into(), 1);
        lru.put("b".into(), 2);
        lru.put("a".into(), 3);
        lru.put("c".into(), 4);
        assert_eq!((lru.take("b"), lru.by_key.len(), lru.by_use.len()), (None, 2, 2));
        assert_eq!((lru.take("a"), lru.take("c"), lru.by_use.len()), (Some(3), Some(4), 0));
    }
}

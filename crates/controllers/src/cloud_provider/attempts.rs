//! Calls of a provider that failed, by key, and how long to wait for the next one.

use kaji_runtime::Key;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Counts failed calls; each doubles the wait. Entries go with a success, or when the object is gone.
pub(crate) struct Attempts {
    first: Duration,
    longest: Duration,
    failed: Mutex<HashMap<Key, u32>>,
}

impl Attempts {
    /// The first wait, and the longest.
    pub fn new(first: Duration, longest: Duration) -> Attempts {
        Attempts { first, longest, failed: Mutex::default() }
    }

    /// Counts a failure; returns how long to wait.
    pub fn failed(&self, key: &Key) -> Duration {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failed.entry(key.clone()).or_default();
        *count = count.saturating_add(1);
        let factor = 1u32.checked_shl(*count - 1).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// Forgets the failures of a key.
    pub fn forget(&self, key: &Key) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let attempts = Attempts::new(Duration::from_secs(5), Duration::from_secs(300));
        let (a, b) = (Key::new("", "a"), Key::new("", "b"));
        let waits: Vec<u64> = (0..40).map(|_| attempts.failed(&a).as_secs()).collect();
        assert_eq!(waits[..8], [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!((waits[39], attempts.failed(&b).as_secs()), (300, 5));
        attempts.forget(&a);
        assert_eq!(attempts.failed(&a).as_secs(), 5);
    }
}

//! A cache of authenticated tokens, so that a busy client's signature is not verified on every request.
//!
//! Invariants: it never holds a token, only its hash; it is bounded; an entry is forgotten after its time.

use ring::digest;
use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

/// Most entries; upstream advertises five thousand nodes and ten thousand namespaces.
const MOST: usize = 32 * 1024;
/// Seconds for which a good token stays known. Source: upstream's `TokenSuccessCacheTTL`.
pub const GOOD_FOR: i64 = 10;

type Hash = [u8; digest::SHA256_OUTPUT_LEN];

/// Answers by token.
pub struct Cache<T> {
    seconds: i64,
    entries: RwLock<HashMap<Hash, (i64, T)>>,
}

impl<T: Clone> Cache<T> {
    /// One that keeps answers for so many seconds.
    pub fn new(seconds: i64) -> Self {
        Cache { seconds, entries: RwLock::default() }
    }

    /// What is known about a token.
    pub fn get(&self, token: &str, now: jiff::Timestamp) -> Option<T> {
        // Before the lock: a thread that is held up while it has that holds up others.
        let hash = hash(token);
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let (until, answer) = entries.get(&hash)?;
        (now.as_second() < *until).then(|| answer.clone())
    }

    /// Remembers an answer.
    pub fn put(&self, token: &str, answer: T, now: jiff::Timestamp) {
        let (now, hash) = (now.as_second(), hash(token));
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MOST {
            entries.retain(|_, (until, _)| now < *until);
        }
        // Full of answers that are still valid: a client that sends so many tokens loses its entries.
        if entries.len() < MOST {
            entries.insert(hash, (now.saturating_add(self.seconds), answer));
        }
    }
}

fn hash(token: &str) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_in_time_and_stays_bounded() {
        let at = |s| jiff::Timestamp::from_second(s).unwrap();
        let cache = Cache::new(10);
        cache.put("a", 1, at(0));
        assert_eq!(
            (cache.get("a", at(9)), cache.get("a", at(10)), cache.get("b", at(0))),
            (Some(1), None, None)
        );
        for i in 0..MOST + 5 {
            cache.put(&i.to_string(), 0, at(5));
        }
        assert_eq!(cache.entries.read().unwrap().len(), MOST);
        cache.put("late", 2, at(20));
        assert_eq!(cache.entries.read().unwrap().len(), 1);
    }
}

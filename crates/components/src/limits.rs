//! Limits on the rate of requests: a token bucket for each client name, as client-go has one for each client.
//!
//! Invariant: a request waits for its turn; none is refused.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Names with buckets of their own; further ones share one. Components have fewer.
const MOST_NAMES: usize = 256;

struct Bucket {
    at: Instant,
    tokens: f64,
}

/// Buckets of the same size.
pub(crate) struct Limits {
    /// Tokens a second.
    rate: f64,
    burst: f64,
    buckets: Mutex<HashMap<String, Bucket>>,
}

impl Limits {
    /// So many requests a second, and so many at once.
    pub fn new((rate, burst): (f64, u32)) -> Limits {
        Limits { rate, burst: f64::from(burst), buckets: Mutex::default() }
    }

    /// Waits until a client of this name may send a request.
    pub async fn wait(&self, name: &str) {
        let wait = self.take(name, Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes a token, and tells how long it takes until it is there.
    fn take(&self, name: &str, now: Instant) -> Duration {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let name = if buckets.len() < MOST_NAMES || buckets.contains_key(name) { name } else { "" };
        let bucket = buckets.entry(name.to_owned()).or_insert(Bucket { at: now, tokens: self.burst });
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * self.rate).min(self.burst) - 1.0;
        bucket.at = now;
        if bucket.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-bucket.tokens / self.rate)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_for_their_turn() {
        let limits = Limits::new((10.0, 2));
        let begun = Instant::now();
        let waits = |name: &str, after: u64| {
            let now = begun + Duration::from_millis(after);
            limits.take(name, now).as_millis()
        };
        let first = [waits("a", 0), waits("a", 0), waits("a", 0), waits("a", 0)];
        assert_eq!(first, [0, 0, 100, 200]);
        assert_eq!(waits("b", 0), 0);
        // 200 ms for what was taken in advance, and one token more.
        assert_eq!([waits("a", 300), waits("a", 300)], [0, 100]);
        // A pause saves up no more than the burst.
        assert_eq!([waits("a", 60_000), waits("a", 60_000), waits("a", 60_000)], [0, 0, 100]);
    }

    #[test]
    fn names_are_bounded() {
        let limits = Limits::new((1.0, 1));
        for name in 0..2 * MOST_NAMES {
            limits.take(&name.to_string(), Instant::now());
        }
        assert_eq!(limits.buckets.lock().unwrap().len(), MOST_NAMES + 1);
    }
}

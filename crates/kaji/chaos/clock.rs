//! A clock that is set forward and back, as an administrator or a time daemon does.

use kaji_meta::time::{Clock, SystemClock};
use std::sync::atomic::{AtomicI64, Ordering};

/// The machine's clock, and how far this one is ahead of it.
#[derive(Debug, Default)]
pub struct SteppedClock {
    ahead_millis: AtomicI64,
}

impl SteppedClock {
    /// Steps, by so many seconds.
    pub fn step(&self, seconds: i64) {
        self.ahead_millis.fetch_add(seconds.saturating_mul(1000), Ordering::SeqCst);
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> jiff::Timestamp {
        let ahead = jiff::SignedDuration::from_millis(self.ahead_millis.load(Ordering::SeqCst));
        SystemClock.now().checked_add(ahead).unwrap_or(jiff::Timestamp::MAX)
    }
}

impl kaji_store::Clock for SteppedClock {
    fn now_millis(&self) -> u64 {
        u64::try_from(Clock::now(self).as_millisecond()).unwrap_or(0)
    }
}

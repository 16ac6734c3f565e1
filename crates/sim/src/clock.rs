//! The clock of a simulation: tokio's, which is paused, counted from a fixed date. It can be set, as clocks of machines are; timers
//! go on as they did.
//!
//! Invariant: two runs that wait for the same things read the same times.

use jiff::{SignedDuration, Timestamp};
use kaji_meta::time::Clock;
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use tokio::time::Instant;

/// 2026-01-01T00:00:00Z
const EPOCH_SECONDS: i64 = 1_767_225_600;

/// See the module.
#[derive(Clone, Debug)]
pub struct SimulatedClock {
    started: Instant,
    /// What it was set forward by; negative for back.
    set_millis: Arc<AtomicI64>,
}

impl SimulatedClock {
    /// A clock that starts now, at the fixed date. To be made on a runtime with paused time.
    #[must_use]
    pub fn start() -> SimulatedClock {
        SimulatedClock { started: Instant::now(), set_millis: Arc::default() }
    }

    /// Sets the clock forward, or back.
    pub fn step(&self, millis: i64) {
        self.set_millis.fetch_add(millis, Ordering::Relaxed);
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn elapsed_millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.started.elapsed()).unwrap_or(SignedDuration::ZERO);
        let epoch = Timestamp::from_second(EPOCH_SECONDS).unwrap_or(Timestamp::UNIX_EPOCH);
        let set = SignedDuration::from_millis(self.set_millis.load(Ordering::Relaxed));
        epoch.saturating_add(elapsed.saturating_add(set)).unwrap_or(Timestamp::MAX)
    }
}

impl kaji_store::Clock for SimulatedClock {
    fn now_millis(&self) -> u64 {
        u64::try_from(self.now().as_millisecond()).unwrap_or(0)
    }
}

//! The clock of a simulation: tokio's, which is paused, counted from a fixed date.
//!
//! Invariant: two runs that wait for the same things read the same times.

use jiff::{SignedDuration, Timestamp};
use kaji_meta::time::Clock;
use tokio::time::Instant;

/// 2026-01-01T00:00:00Z
const EPOCH_SECONDS: i64 = 1_767_225_600;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedClock {
    started: Instant,
}

impl SimulatedClock {
    /// A clock that starts now, at the fixed date. To be made on a runtime with paused time.
    #[must_use]
    pub fn start() -> SimulatedClock {
        SimulatedClock { started: Instant::now() }
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
        epoch.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

impl kaji_store::Clock for SimulatedClock {
    fn now_millis(&self) -> u64 {
        u64::try_from(self.now().as_millisecond()).unwrap_or(0)
    }
}

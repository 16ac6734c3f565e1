//! Work that is done regularly while a server runs.

use kaji_engine::Engine;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

/// Rounds of some work. One that takes longer than the time between two delays those after it.
pub(crate) struct Rounds {
    ticks: Interval,
    engine: Weak<Engine>,
    stop: watch::Receiver<bool>,
}

impl Rounds {
    /// The first one begins at `first`.
    pub fn new(
        first: Instant,
        period: Duration,
        engine: Weak<Engine>,
        stop: watch::Receiver<bool>,
    ) -> Rounds {
        let mut ticks = interval_at(first, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Rounds { ticks, engine, stop }
    }

    /// Waits for the next round. `None` once `stop` has turned true, or the engine is gone.
    pub async fn next(&mut self) -> Option<Arc<Engine>> {
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => None,
            _ = self.ticks.tick() => self.engine.upgrade(),
        }
    }
}

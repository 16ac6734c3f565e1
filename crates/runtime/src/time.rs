//! Timers that follow a [`Clock`], and a clock that can be advanced.
//!
//! Controllers wait by the clock that they also stamp objects with. On the system clock a wait is tokio's. An advance of a
//! [`VirtualClock`] ends the waits that are due by then.
//!
//! Invariant: an advance at any moment during [`sleep_until`] is noticed.

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use kaji_meta::time::Clock;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// The present, for deadlines of [`sleep_until`].
pub fn instant(clock: &dyn Clock) -> Instant {
    Instant::now() + clock.ahead()
}

/// Waits for a point in time.
pub async fn sleep_until(clock: &dyn Clock, at: Instant) {
    loop {
        // Before the check: a jump between the two is not missed.
        let jumped = clock.jumped();
        let Some(left) = at.checked_duration_since(instant(clock)) else { return };
        tokio::select! { biased; () = tokio::time::sleep(left) => return, () = jumped => {} }
    }
}

/// Waits for so long.
pub async fn sleep(clock: &dyn Clock, time: Duration) {
    sleep_until(clock, instant(clock) + time).await;
}

/// A clock that runs as the system clock does and can be advanced.
#[derive(Debug, Default)]
pub struct VirtualClock {
    ahead: Mutex<Duration>,
    jumped: Arc<Notify>,
}

impl VirtualClock {
    /// Advances the clock, and ends the waits that are due by then.
    pub fn advance(&self, by: Duration) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        *ahead = ahead.saturating_add(by).min(FURTHEST);
        drop(ahead);
        self.jumped.notify_waiters();
    }
}

/// A thousand years: neither timestamps nor instants overflow.
const FURTHEST: Duration = Duration::from_secs(1000 * 366 * 86_400);

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let ahead = SignedDuration::try_from(self.ahead()).unwrap_or(SignedDuration::ZERO);
        Timestamp::now().saturating_add(ahead).unwrap_or(Timestamp::MAX)
    }

    fn ahead(&self) -> Duration {
        *self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jumped(&self) -> BoxFuture<'static, ()> {
        Box::pin(self.jumped.clone().notified_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use kaji_meta::time::SystemClock;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn an_advance_ends_the_waits_that_are_due() {
        let clock = VirtualClock::default();
        let before = clock.now();
        let mut short = Box::pin(sleep(&clock, HOUR));
        let mut long = Box::pin(sleep(&clock, 3 * HOUR));
        assert!((&mut short).now_or_never().is_none() && (&mut long).now_or_never().is_none());
        clock.advance(2 * HOUR);
        short.await;
        assert!((&mut long).now_or_never().is_none());
        clock.advance(HOUR);
        long.await;
        assert!(clock.now().duration_since(before) >= SignedDuration::from_hours(3));
    }

    #[tokio::test]
    async fn an_advance_before_the_first_poll_counts() {
        let clock = VirtualClock::default();
        let wait = sleep_until(&clock, instant(&clock) + HOUR);
        clock.advance(HOUR);
        wait.await;
    }

    #[tokio::test]
    async fn advances_up_to_a_maximum() {
        let clock = VirtualClock::default();
        clock.advance(Duration::MAX);
        clock.advance(Duration::MAX);
        assert!(clock.now() > Timestamp::now() && clock.now() < Timestamp::MAX);
        assert!(instant(&clock) > Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_uses_tokios_timers() {
        let began = Instant::now();
        sleep(&SystemClock, HOUR).await;
        assert_eq!(began.elapsed(), HOUR);
    }
}

//! How long a request waited for admission webhooks, which is not the server's own latency.
//!
//! Invariant: as upstream counts it, mutating webhooks run after one another and add up; of validating ones, which run at the same
//! time, the slowest counts.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The time of one request.
#[derive(Debug, Default)]
pub struct WebhookTime {
    mutating: AtomicU64,
    validating: AtomicU64,
}

impl WebhookTime {
    /// A webhook was called.
    pub fn called(&self, mutating: bool, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if mutating {
            self.mutating.fetch_add(nanos, Ordering::Relaxed);
        } else {
            self.validating.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// All of it.
    pub fn total(&self) -> Duration {
        let of = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::Relaxed));
        of(&self.mutating).saturating_add(of(&self.validating))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutating_webhooks_add_up() {
        let time = WebhookTime::default();
        for (mutating, millis) in [(true, 5), (true, 2), (false, 30), (false, 10)] {
            time.called(mutating, Duration::from_millis(millis));
        }
        assert_eq!(time.total(), Duration::from_millis(37));
    }
}

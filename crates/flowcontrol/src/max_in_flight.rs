//! The limits of requests in flight when fairness is off: two counters, no queue.
//!
//! Source: upstream's `WithMaxInFlightLimit` (`server/filters/maxinflight.go`).

use kaji_resource::UserInfo;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many requests a server serves at once. With fairness, their sum is the seats that priority levels share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `--max-requests-inflight`: requests that read. Without fairness, 0 is no limit.
    pub reading: u32,
    /// `--max-mutating-requests-inflight`: all others. Without fairness, 0 is no limit.
    pub mutating: u32,
    /// `--enable-priority-and-fairness`
    pub fair: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { reading: 400, mutating: 200, fair: true }
    }
}

impl Limits {
    /// Limits as an operator gave them.
    ///
    /// # Errors
    /// When fairness would have nothing to share.
    pub fn checked(self) -> Result<Limits, String> {
        let Limits { reading, mutating, fair } = self;
        if fair && reading == 0 && mutating == 0 {
            return Err(format!(
                "invalid configuration: MaxRequestsInFlight={reading} and MaxMutatingRequestsInFlight={mutating}; they must add up to something positive"
            ));
        }
        Ok(self)
    }
}

/// A request in flight, counted until it is dropped.
pub type InFlightPermit = OwnedSemaphorePermit;

/// Counters of requests in flight.
pub struct MaxInFlight {
    reading: Option<Arc<Semaphore>>,
    mutating: Option<Arc<Semaphore>>,
}

impl MaxInFlight {
    /// Counters with these limits.
    pub fn new(limits: Limits) -> Self {
        let count = |limit: u32| {
            let limit = (limit as usize).min(Semaphore::MAX_PERMITS);
            (limit > 0).then(|| Arc::new(Semaphore::new(limit)))
        };
        MaxInFlight { reading: count(limits.reading), mutating: count(limits.mutating) }
    }

    /// `None` when there are too many, `Some(None)` for a request that is served in any case.
    pub fn admit(&self, user: &UserInfo, mutating: bool) -> Option<Option<InFlightPermit>> {
        let Some(count) = (if mutating { &self.mutating } else { &self.reading }) else { return Some(None) };
        match count.clone().try_acquire_owned() {
            Ok(permit) => Some(Some(permit)),
            // Administrators are served in any case.
            Err(_) => user.groups.iter().any(|g| g == "system:masters").then_some(None),
        }
    }
}

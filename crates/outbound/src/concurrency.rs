//! Limits of the requests in flight to one server.
//!
//! Invariant: long-running requests leave room for regular ones, and both for the internal ones of this process; so a client
//! cannot make an extension server seem unavailable by watching it.

use crate::CallError;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The class of a request. Classes share neither limits nor connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestClass {
    /// Stays open by design: a watch, or an upgraded connection.
    LongRunning,
    /// Ends with its response.
    Regular,
    /// Sent by this process for itself: availability probes, discovery.
    Internal,
}

/// The right to one request, and to its connection if it does not share one.
#[derive(Clone, Debug)]
pub struct RequestPermit(#[allow(dead_code, reason = "held")] Arc<OwnedSemaphorePermit>);

struct ClassLimits {
    /// Requests with a connection each.
    connections: Arc<Semaphore>,
    /// Requests that share connections.
    streams: Arc<Semaphore>,
}

impl ClassLimits {
    fn new(connections: usize, streams: usize) -> ClassLimits {
        ClassLimits {
            connections: Arc::new(Semaphore::new(connections)),
            streams: Arc::new(Semaphore::new(streams)),
        }
    }
}

/// The limits of all classes.
pub(crate) struct ConcurrencyLimits {
    long_running: ClassLimits,
    regular: ClassLimits,
    internal: ClassLimits,
}

impl Default for ConcurrencyLimits {
    fn default() -> ConcurrencyLimits {
        ConcurrencyLimits {
            long_running: ClassLimits::new(512, 4096),
            regular: ClassLimits::new(512, 1024),
            internal: ClassLimits::new(16, 32),
        }
    }
}

impl ConcurrencyLimits {
    /// Acquires a permit, waiting for one if necessary.
    pub async fn acquire(&self, class: RequestClass, shared: bool) -> Result<RequestPermit, CallError> {
        let limits = match class {
            RequestClass::LongRunning => &self.long_running,
            RequestClass::Regular => &self.regular,
            RequestClass::Internal => &self.internal,
        };
        let permits = if shared { &limits.streams } else { &limits.connections };
        let permit = permits.clone().acquire_owned().await;
        permit.map(|p| RequestPermit(Arc::new(p))).map_err(|e| CallError::Transport(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn long_running_requests_leave_room_for_others() {
        let limits = ConcurrencyLimits::default();
        for shared in [false, true] {
            let acquire = |class| limits.acquire(class, shared).now_or_never();
            let all = |class| std::iter::from_fn(|| acquire(class)).map(Result::unwrap).collect::<Vec<_>>();
            let long_running = all(RequestClass::LongRunning);
            assert!(long_running.len() >= 512);
            let regular = all(RequestClass::Regular);
            assert!(regular.len() >= 512);
            assert!(acquire(RequestClass::Internal).is_some());
            drop(long_running);
            assert!(acquire(RequestClass::LongRunning).is_some());
        }
    }
}

//! How long a request may go on.
//!
//! Invariants: a write is not committed after its deadline, whatever plugins and webhooks have said; nothing that
//! other processes answer is awaited longer than the request lasts, so that its seats are free soon after its client got an answer.

use kaji_meta::Status;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// What is bounded by the same time, inside, ends first and is accounted for.
const MOMENT: Duration = Duration::from_millis(20);

/// The end of a request's time, if it has one: what stays open by design and what the server does itself has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// So much time from now on; none is set by a time that no clock can show.
    pub fn after(time: Duration) -> Deadline {
        Deadline(Instant::now().checked_add(time))
    }

    /// When.
    pub fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Whether it has passed.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// What there is of a time until then.
    pub fn bound(self, time: Duration) -> Duration {
        self.0.map_or(time, |end| time.min(end.saturating_duration_since(Instant::now())))
    }

    /// # Errors
    /// 504 when it has passed.
    pub fn check(self) -> Result<(), Status> {
        if self.is_over() { Err(Deadline::exceeded()) } else { Ok(()) }
    }

    /// The 504 for a request after its deadline.
    pub fn exceeded() -> Status {
        Status::timeout("request did not complete within the allotted timeout", 0)
    }

    /// Waits for something no longer than that. What fails too late fails for that reason.
    ///
    /// # Errors
    /// Those of `work`, or 504.
    pub async fn within<T>(self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let Some(end) = self.0 else { return work.await };
        match timeout_at(end + MOMENT, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(status)) => self.check().and(Err(status)),
            Err(_) => Err(Deadline::exceeded()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bounds_times_by_the_deadline() {
        let hour = Duration::from_secs(3600);
        let (none, over) = (Deadline::default(), Deadline::after(Duration::ZERO));
        assert_eq!((none.bound(hour), over.bound(hour)), (hour, Duration::ZERO));
        assert!(
            Deadline::after(2 * hour).bound(hour) == hour && Deadline::after(hour).bound(2 * hour) <= hour
        );
        assert_eq!(Deadline::after(Duration::MAX), none);
        assert!(none.check().is_ok() && Deadline::after(hour).check().is_ok());
        assert_eq!(over.check().unwrap_err().code, 504);
        let never = std::future::pending::<Result<(), Status>>();
        assert_eq!(over.within(never).await.unwrap_err().code, 504);
        let refused = || std::future::ready(Err::<(), _>(Status::bad_request("no")));
        assert_eq!(over.within(refused()).await.unwrap_err().code, 504);
        assert_eq!(Deadline::after(hour).within(refused()).await.unwrap_err().code, 400);
    }
}

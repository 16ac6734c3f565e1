//! When a container that has exited may run again. Upstream's `doBackOff`. Pure but for the delays, which are the caller's.

use super::backoff::Backoff;
use super::core::{Container, Pod};
use super::model;
use super::observed::ObservedContainer;
use jiff::Timestamp;
use kaji_meta::duration;
use kaji_runtime::EventRecord;
use std::time::Duration;

/// A container in its restart backoff.
#[derive(Debug, Clone, PartialEq)]
pub struct InBackoff {
    /// How long it still waits.
    pub left: Duration,
    /// Reason and message of its waiting state.
    pub waiting: (String, String),
    /// What is recorded about it.
    pub event: EventRecord,
}

/// Lets a container start, and makes its next delay longer, unless it has ended too short a time ago. `last` is its newest run that had
/// ended before the kubelet killed one for this start: what it kills for a probe or a resize is started at once, unless the run before
/// has ended too short a time ago.
///
/// # Errors
/// How long it waits.
pub fn check(
    restarts: &mut Backoff,
    pod: &Pod,
    container: &Container,
    last: Option<&ObservedContainer>,
    now: Timestamp,
) -> Result<(), Box<InBackoff>> {
    let Some(last) = last else { return Ok(()) };
    let ended = i128::from(last.status.finished_at_nanos);
    let ended = Timestamp::from_nanosecond(ended).unwrap_or(now);
    let name = &container.name;
    let key = format!("container {name} {:x}", model::container_hash(container));
    if let Some(left) = restarts.remaining(&key, ended, now) {
        let shown = model::display(pod);
        let delay = duration::format(restarts.delay(&key));
        let event = EventRecord::warning(
            model::container_reference(pod, name),
            "BackOff",
            format!("Back-off restarting failed container {name} in pod {shown}"),
        );
        let message = format!("back-off {delay} restarting failed container={name} pod={shown}");
        return Err(Box::new(InBackoff { left, waiting: ("CrashLoopBackOff".to_owned(), message), event }));
    }
    restarts.next(&key, ended, now);
    Ok(())
}

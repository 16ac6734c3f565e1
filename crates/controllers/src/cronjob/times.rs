//! The times of a cron job: which of them is due, and when to look again.
//!
//! Invariants:
//! - Of the times that were missed only the latest is due. As upstream's search for it, this one skips long gaps by the distance of
//!   the first two times; where it finds none, nothing is due.
//! - The times depend on the spec, the status and the present alone.

use jiff::{Timestamp, tz::TimeZone};
use kaji_meta::cron::Schedule;
use kaji_runtime::objects::{CronJob, CronJobStatus};
use std::time::Duration;

/// Added to a wait, so that it does not end too early.
const SLACK: Duration = Duration::from_millis(100);
/// So many missed times are worth a warning.
const MANY: i64 = 100;

/// A schedule that can be read, but has no times: the 31st of February.
#[derive(Debug, PartialEq, Eq)]
pub struct Never;

/// The time zone of a cron job.
///
/// # Errors
/// Its name is unknown.
pub fn time_zone(cron: &CronJob) -> Result<TimeZone, String> {
    kaji_meta::cron::time_zone(cron.spec.time_zone.as_deref().unwrap_or_default())
}

/// A time for which a job is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The time.
    pub at: Timestamp,
    /// Whether it is one of so many missed ones that something may be wrong.
    pub many: bool,
}

/// What was missed: the latest time, if it was found, and about how many there are.
struct Missed {
    latest: Option<Timestamp>,
    count: i64,
}

/// The times of a cron job.
pub struct Times<'a> {
    cron: &'a CronJob,
    schedule: &'a Schedule,
    zone: &'a TimeZone,
}

impl<'a> Times<'a> {
    /// Of a cron job, its schedule and its time zone.
    pub fn new(cron: &'a CronJob, schedule: &'a Schedule, zone: &'a TimeZone) -> Self {
        Times { cron, schedule, zone }
    }

    /// The latest time that was missed, no further back than the deadline for starts.
    ///
    /// # Errors
    /// The schedule has no times.
    pub fn due(&self, status: &CronJobStatus, now: Timestamp) -> Result<Option<Due>, Never> {
        let Some(mut from) = self.earliest(status) else { return Ok(None) };
        if let Some(deadline) = self.cron.spec.starting_deadline_seconds {
            let earliest = now.as_second().saturating_sub(deadline);
            from = from.max(Timestamp::from_second(earliest).unwrap_or(Timestamp::MIN));
        }
        let missed = self.missed(from, now)?;
        Ok(missed.latest.map(|at| Due { at, many: missed.count > MANY }))
    }

    /// How long it is until the next time. `@every` counts from the latest time, whenever this is asked.
    pub fn wait(&self, status: &CronJobStatus, now: Timestamp) -> Option<Duration> {
        let from = self.earliest(status).and_then(|earliest| match self.missed(earliest, now) {
            Ok(Missed { latest: None, count: 0 }) => Some(earliest),
            Ok(missed) => missed.latest,
            Err(Never) => None,
        });
        let next = self.schedule.next(from.unwrap_or(now), self.zone)?;
        Some(Duration::try_from(next.duration_since(now)).ok()? + SLACK)
    }

    /// After which time one may have been missed.
    fn earliest(&self, status: &CronJobStatus) -> Option<Timestamp> {
        status.last_schedule_time.or(self.cron.metadata.creation_timestamp)
    }

    fn missed(&self, from: Timestamp, now: Timestamp) -> Result<Missed, Never> {
        let next = |after: Timestamp| self.schedule.next(after, self.zone);
        let first = next(from).ok_or(Never)?;
        if first > now {
            return Ok(Missed { latest: None, count: 0 });
        }
        let second = next(first).ok_or(Never)?;
        if second > now {
            return Ok(Missed { latest: Some(first), count: 1 });
        }
        let distance = (second.as_second() - first.as_second()).max(1);
        let count = (now.as_second() - first.as_second()) / distance + 1;
        let near = Timestamp::from_second(first.as_second() + (count - 2).max(0) * distance);
        let (mut latest, mut time) = (None, near.ok().and_then(next));
        while let Some(at) = time.filter(|at| *at <= now) {
            latest = Some(at);
            time = next(at);
        }
        Ok(Missed { latest, count })
    }
}

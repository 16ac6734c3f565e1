//! Points in time as the API writes them, clocks, and durations for people.
//!
//! `Time` has whole seconds and prints as `2006-01-02T15:04:05Z`; `MicroTime` has microseconds and always prints six
//! digits of them. Logic that needs the time is given a [`Clock`].

mod parse;
#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::Offset};
pub use parse::ParseTimeError;
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A point in time, in whole seconds (`metav1.Time`). In UTC; up to the end of the year 9999, which no [`Timestamp`] reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(DateTime);

/// A point in time, in microseconds (`metav1.MicroTime`). As [`Time`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MicroTime(DateTime);

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// A time at a multiple of `unit` nanoseconds, a part of a second, towards the past.
fn floor(time: DateTime, unit: i32) -> DateTime {
    let nanos = time.subsec_nanosecond();
    time.with().subsec_nanosecond(nanos - nanos % unit).build().unwrap_or(time)
}

/// Seconds since the epoch, and nanoseconds from there on.
fn unix(time: DateTime) -> (i64, i32) {
    let nanos = time.subsec_nanosecond();
    let whole = floor(time, 1_000_000_000);
    (whole.duration_since(EPOCH).as_secs(), nanos)
}

fn from_unix(seconds: i64, nanos: i32) -> Option<DateTime> {
    let since = SignedDuration::from_secs(seconds).checked_add(SignedDuration::from_nanos(nanos.into()))?;
    let time = EPOCH.checked_add(since).ok()?;
    (0..=9999).contains(&time.year()).then_some(time)
}

fn timestamp(time: DateTime) -> Timestamp {
    Offset::UTC.to_timestamp(time).unwrap_or(Timestamp::MAX)
}

impl Time {
    /// Drops the fraction of a second.
    pub fn new(ts: Timestamp) -> Self {
        Self(floor(Offset::UTC.to_datetime(ts), 1_000_000_000))
    }

    /// Parses RFC 3339; a fraction of a second is accepted and dropped.
    ///
    /// # Errors
    /// Go's text for what cannot be parsed.
    pub fn parse(s: &str) -> Result<Self, ParseTimeError> {
        parse::seconds(s).map(|time| Self(floor(time, 1_000_000_000)))
    }

    /// Seconds since 1970; `None` outside of the years 0 to 9999.
    pub fn from_unix(seconds: i64) -> Option<Self> {
        from_unix(seconds, 0).map(Self)
    }

    /// Seconds since 1970.
    pub fn unix(self) -> i64 {
        unix(self.0).0
    }

    /// The instant, or the last one there is.
    pub fn timestamp(self) -> Timestamp {
        timestamp(self.0)
    }
}

impl MicroTime {
    /// Drops what is finer than a microsecond.
    pub fn new(ts: Timestamp) -> Self {
        Self(floor(Offset::UTC.to_datetime(ts), 1_000))
    }

    /// Parses RFC 3339 with exactly six digits of fraction, as the API does.
    ///
    /// # Errors
    /// Go's text for what cannot be parsed.
    pub fn parse(s: &str) -> Result<Self, ParseTimeError> {
        parse::micros(s).map(Self)
    }

    /// Seconds since 1970, and microseconds from there on; `None` outside of the years 0 to 9999.
    pub fn from_unix(seconds: i64, micros: i32) -> Option<Self> {
        from_unix(seconds, micros.checked_mul(1000)?).map(Self)
    }

    /// Seconds since 1970, and microseconds from there on.
    pub fn unix(self) -> (i64, i32) {
        let (seconds, nanos) = unix(self.0);
        (seconds, nanos / 1000)
    }

    /// The instant, or the last one there is.
    pub fn timestamp(self) -> Timestamp {
        timestamp(self.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}Z", self.0)
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}Z", self.0)
    }
}

impl From<Timestamp> for Time {
    fn from(ts: Timestamp) -> Self {
        Self::new(ts)
    }
}

impl From<Timestamp> for MicroTime {
    fn from(ts: Timestamp) -> Self {
        Self::new(ts)
    }
}

impl From<Time> for serde_json::Value {
    fn from(t: Time) -> Self {
        t.to_string().into()
    }
}

impl From<MicroTime> for serde_json::Value {
    fn from(t: MicroTime) -> Self {
        t.to_string().into()
    }
}

/// The instant at a number of seconds since 1970, or the nearest one that there is: certificates that do not expire end with the year
/// 9999 (RFC 5280).
pub fn saturating(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// What time it is.
pub trait Clock: Send + Sync {
    /// The present.
    fn now(&self) -> Timestamp;

    /// How far timers that go by this clock are ahead of the machine's. It only grows.
    fn ahead(&self) -> Duration {
        Duration::ZERO
    }

    /// Resolves when that has grown since the call: timers have to read the clock again. Never, on a clock that does not jump.
    fn jumped(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that moves only when it is set, for tests and simulation.
#[derive(Debug)]
pub struct ManualClock {
    now: Mutex<Timestamp>,
}

impl ManualClock {
    /// A clock that stands at a point in time.
    pub fn new(now: Timestamp) -> Self {
        Self { now: Mutex::new(now) }
    }

    /// Moves to a point in time.
    pub fn set(&self, now: Timestamp) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Moves on by a duration, at most to the end of time.
    pub fn advance(&self, by: SignedDuration) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = now.checked_add(by).unwrap_or(Timestamp::MAX);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn ahead(&self) -> Duration {
        (**self).ahead()
    }

    fn jumped(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        (**self).jumped()
    }
}

/// `major` units, and the rest in `minor` units unless it is zero.
fn two_units(major: i64, major_unit: char, minor: i64, minor_unit: char) -> String {
    if minor == 0 {
        format!("{major}{major_unit}")
    } else {
        format!("{major}{major_unit}{minor}{minor_unit}")
    }
}

/// A duration in seconds as kubectl's tables show it: two to three significant digits, e.g. `5m30s`, `2d3h`.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two_units(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two_units(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two_units(days, 'd', hours % 24, 'h'),
        _ if days < 365 * 2 => format!("{days}d"),
        _ if days < 365 * 8 => two_units(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

/// A duration in seconds with one unit, e.g. `5m`.
pub fn short_human_duration(seconds: i64) -> String {
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        86_400..31_536_000 => format!("{}d", seconds / 86_400),
        _ => format!("{}y", seconds / 31_536_000),
    }
}

/// The age of an RFC 3339 time (with or without fraction) for a table; `<unknown>` if there is none.
pub fn time_since(text: &str, now: Timestamp) -> String {
    match parse::seconds(text) {
        Ok(time) => human_duration(now.duration_since(timestamp(time)).as_secs()),
        Err(_) => "<unknown>".to_owned(),
    }
}

//! Points in time as the API writes them, clocks, and durations for people.
//!
//! `Time` has whole seconds and prints as `2006-01-02T15:04:05Z`; `MicroTime` has microseconds and always prints six
//! digits of them. Logic that needs the time is given a [`Clock`].

mod parse;
#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};
pub use parse::ParseTimeError;
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A point in time, in whole seconds (`metav1.Time`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(Timestamp);

/// A point in time, in microseconds (`metav1.MicroTime`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MicroTime(Timestamp);

/// A timestamp at a multiple of `unit` nanoseconds, towards the past.
fn floor(ts: Timestamp, unit: i128) -> Timestamp {
    let nanos = ts.as_nanosecond();
    Timestamp::from_nanosecond(nanos - nanos.rem_euclid(unit)).unwrap_or(Timestamp::MIN)
}

impl Time {
    /// Drops the fraction of a second.
    pub fn new(ts: Timestamp) -> Self {
        Self(floor(ts, 1_000_000_000))
    }

    /// Parses RFC 3339; a fraction of a second is accepted and dropped.
    ///
    /// # Errors
    /// Go's text for what cannot be parsed.
    pub fn parse(s: &str) -> Result<Self, ParseTimeError> {
        parse::seconds(s).map(Self::new)
    }

    /// The instant.
    pub fn timestamp(self) -> Timestamp {
        self.0
    }
}

impl MicroTime {
    /// Drops what is finer than a microsecond.
    pub fn new(ts: Timestamp) -> Self {
        Self(floor(ts, 1_000))
    }

    /// Parses RFC 3339 with exactly six digits of fraction, as the API does.
    ///
    /// # Errors
    /// Go's text for what cannot be parsed.
    pub fn parse(s: &str) -> Result<Self, ParseTimeError> {
        parse::micros(s).map(Self::new)
    }

    /// The instant.
    pub fn timestamp(self) -> Timestamp {
        self.0
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
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
pub fn time_since(timestamp: &str, now: Timestamp) -> String {
    match parse::seconds(timestamp) {
        Ok(ts) => human_duration(now.duration_since(ts).as_secs()),
        Err(_) => "<unknown>".to_owned(),
    }
}

//! A moment of a history: a time, how long ago, a resourceVersion, or the present.

use super::Revision;
use jiff::{SignedDuration, Timestamp};
use std::fmt;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A time.
    Time(Timestamp),
    /// A resourceVersion.
    Revision(u64),
    /// The last that is recorded.
    Latest,
}

impl Moment {
    /// Of RFC 3339, a duration in Go's notation (`5m`), or a number.
    ///
    /// # Errors
    /// For anything else.
    pub fn parse(text: &str, now: Timestamp) -> Result<Moment, String> {
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().map(Moment::Revision).map_err(|error| format!("{text}: {error}"));
        }
        if let Ok(time) = text.parse() {
            return Ok(Moment::Time(time));
        }
        let ago = kaji_meta::duration::parse(text).ok().filter(|nanoseconds| *nanoseconds >= 0);
        let time = ago.and_then(|ago| now.checked_sub(SignedDuration::from_nanos(ago)).ok());
        time.map(Moment::Time).ok_or_else(|| {
            format!(
                "\"{text}\" is no time (2026-01-31T12:00:00Z), no duration (5m) and no resourceVersion (1234)"
            )
        })
    }

    /// Whether a revision had been made by then.
    pub fn includes(&self, revision: &Revision) -> bool {
        match self {
            Moment::Time(time) => revision.time <= *time,
            Moment::Revision(number) => revision.revision <= *number,
            Moment::Latest => true,
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Time(time) => write!(f, "{time}"),
            Moment::Revision(number) => write!(f, "revision {number}"),
            Moment::Latest => f.write_str("the end of its history"),
        }
    }
}

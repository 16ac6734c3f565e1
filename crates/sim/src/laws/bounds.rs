//! Numbers that objects ask for, and those that they asked for lately: a loop may act on what it saw a while ago.
//!
//! Invariant: a number counts until [`WINDOW_MILLIS`] after it was replaced.

use super::WINDOW_MILLIS;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};

/// Numbers by uid of their object, with the former ones.
#[derive(Debug, Default)]
pub struct Bounds(BTreeMap<String, VecDeque<(u64, i64)>>);

impl Bounds {
    /// An object asks for this from now on.
    pub fn set(&mut self, now: u64, uid: &str, value: i64) {
        let values = self.0.entry(uid.to_owned()).or_default();
        if values.back().is_none_or(|(_, last)| *last != value) {
            values.push_back((now, value));
        }
        // The value that held when the window began stays.
        while values.get(1).is_some_and(|(since, _)| since + WINDOW_MILLIS < now) {
            values.pop_front();
        }
    }

    /// The most that an object asked for lately.
    pub fn max(&self, uid: &str) -> Option<i64> {
        self.0.get(uid)?.iter().map(|(_, value)| *value).max()
    }

    /// The least that an object asked for lately, as of `now`.
    pub fn min(&self, now: u64, uid: &str) -> Option<i64> {
        let values = self.0.get(uid)?;
        // Each value holds until the next one.
        let ends = values.iter().skip(1).map(|(since, _)| *since).chain([u64::MAX]);
        let lately = values.iter().zip(ends).filter(|(_, end)| end.saturating_add(WINDOW_MILLIS) >= now);
        lately.map(|((_, value), _)| *value).min()
    }

    /// The object is gone.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

fn share(value: &Value, whole: i64, rounding: i64) -> i64 {
    match value.as_str().and_then(|text| text.strip_suffix('%')) {
        Some(percent) => (whole * percent.parse::<i64>().unwrap_or(0) + rounding) / 100,
        None => value.as_i64().unwrap_or(0),
    }
}

/// A count, or a percentage of `whole` rounded up.
pub fn share_up(value: &Value, whole: i64) -> i64 {
    share(value, whole, 99)
}

/// A count, or a percentage of `whole` rounded down.
pub fn share_down(value: &Value, whole: i64) -> i64 {
    share(value, whole, 0)
}

//! Growing delays, as client-go's `flowcontrol.Backoff` has them: of restarts of a container that exits, and of image pulls.
//!
//! Invariant: a key that has not been used for twice the longest delay starts anew; there are at most [`MOST_KEYS`] keys.

use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// Keys that are remembered.
const MOST_KEYS: usize = 10_000;

/// The delays of many keys.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    /// Most are empty, and there is one for each simulated pod: an empty tree is half of an empty hash table.
    entries: BTreeMap<String, (Duration, Timestamp)>,
}

impl Backoff {
    /// The first delay and the longest.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, entries: BTreeMap::new() }
    }

    /// Upstream's delays, of restarts and of pulls.
    #[must_use]
    pub fn standard() -> Backoff {
        Backoff::new(Duration::from_secs(10), Duration::from_secs(300))
    }

    /// The present delay of a key; zero for a new one.
    #[must_use]
    pub fn delay(&self, key: &str) -> Duration {
        self.entries.get(key).map(|(delay, _)| *delay).unwrap_or_default()
    }

    /// How long a key has still to wait, when what is repeated ended at `ended`. `None` when it may go on.
    #[must_use]
    pub fn remaining(&self, key: &str, ended: Timestamp, now: Timestamp) -> Option<Duration> {
        let (delay, updated) = self.entries.get(key)?;
        if self.expired(ended, now) || self.expired(*updated, now) {
            return None;
        }
        let passed = since(ended, now);
        delay.checked_sub(passed).filter(|left| !left.is_zero())
    }

    /// How long a key has still to wait since its delay was set. `None` when it may go on.
    #[must_use]
    pub fn waits(&self, key: &str, now: Timestamp) -> Option<Duration> {
        let (delay, updated) = self.entries.get(key)?;
        delay.checked_sub(since(*updated, now)).filter(|left| !left.is_zero())
    }

    /// Doubles a key's delay, or starts it. `ended` is when what is repeated ended last.
    pub fn next(&mut self, key: &str, ended: Timestamp, now: Timestamp) {
        let (first, longest) = (self.first, self.longest);
        let expired = self.expired(ended, now);
        match self.entries.get_mut(key) {
            Some(entry) if !expired => *entry = ((entry.0 * 2).min(longest), now),
            _ => {
                if self.entries.len() >= MOST_KEYS {
                    self.sweep(now);
                }
                self.entries.insert(key.to_owned(), (first, now));
            }
        }
    }

    /// Forgets a key.
    pub fn reset(&mut self, key: &str) {
        self.entries.remove(key);
    }

    fn expired(&self, updated: Timestamp, now: Timestamp) -> bool {
        since(updated, now) > self.longest * 2
    }

    fn sweep(&mut self, now: Timestamp) {
        let longest = self.longest;
        self.entries.retain(|_, (_, updated)| since(*updated, now) <= longest * 2);
        if self.entries.len() >= MOST_KEYS {
            self.entries.clear();
        }
    }
}

fn since(earlier: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(earlier)).unwrap_or_default()
}

/// A duration as Go prints it: `10s`, `2m40s`, `5m0s`.
#[must_use]
pub fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_are_forgotten_after_a_long_run() {
        let mut backoff = Backoff::standard();
        let mut now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut shown = vec![];
        assert_eq!(backoff.remaining("c", now, now), None, "new");
        for _ in 0..7 {
            backoff.next("c", now, now);
            let left = backoff.remaining("c", now, now).unwrap();
            shown.push(go_duration(left));
            now += left;
            assert_eq!(backoff.remaining("c", now - left, now), None, "waited");
        }
        assert_eq!(shown.join(" "), "10s 20s 40s 1m20s 2m40s 5m0s 5m0s");
        backoff.next("c", now - Duration::from_secs(601), now);
        assert_eq!(backoff.delay("c"), Duration::from_secs(10), "it ran for long");
    }
}

//! Growing delays, as client-go's `flowcontrol.Backoff` has them: of restarts of a container that exits, and of image pulls.
//!
//! Invariants: a key starts anew when what is repeated has ended more than ten minutes, or twice the longest delay, after the delay was
//! set; there are at most [`MOST_KEYS`] keys.

use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// Keys that are remembered.
const MOST_KEYS: usize = 10_000;
/// Upstream's first delay of restarts and of pulls.
const FIRST: Duration = Duration::from_secs(10);
/// Upstream's longest one.
const LONGEST: Duration = Duration::from_secs(300);
/// A container that has run for longer starts anew, however long its delays may become.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The delays before a container that exits is started again: they double up to a longest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartDelays {
    longest: Duration,
}

impl Default for RestartDelays {
    fn default() -> Self {
        RestartDelays { longest: LONGEST }
    }
}

impl RestartDelays {
    /// Up to this delay; `None` unless it is between a second and five minutes (KEP-4603).
    #[must_use]
    pub fn up_to(longest: Duration) -> Option<RestartDelays> {
        (Duration::from_secs(1)..=LONGEST).contains(&longest).then_some(RestartDelays { longest })
    }

    /// The longest.
    #[must_use]
    pub fn longest(self) -> Duration {
        self.longest
    }

    /// For the containers of one pod.
    #[must_use]
    pub fn backoff(self) -> Backoff {
        Backoff { forgotten: FORGOTTEN, ..Backoff::new(FIRST.min(self.longest), self.longest) }
    }
}

/// The delays of many keys.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    /// A delay counts for what ends this long after it was set at most.
    forgotten: Duration,
    /// Most are empty, and there is one for each simulated pod: an empty tree is half of an empty hash table.
    entries: BTreeMap<String, (Duration, Timestamp)>,
}

impl Backoff {
    /// The first delay and the longest.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, forgotten: longest * 2, entries: BTreeMap::new() }
    }

    /// Upstream's delays, of restarts and of pulls.
    #[must_use]
    pub fn standard() -> Backoff {
        Backoff::new(FIRST, LONGEST)
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
        if since(*updated, ended) > self.forgotten {
            return None;
        }
        delay.checked_sub(since(ended, now)).filter(|left| !left.is_zero())
    }

    /// How long a key has still to wait since its delay was set. `None` when it may go on.
    #[must_use]
    pub fn waits(&self, key: &str, now: Timestamp) -> Option<Duration> {
        let (delay, updated) = self.entries.get(key)?;
        delay.checked_sub(since(*updated, now)).filter(|left| !left.is_zero())
    }

    /// Doubles a key's delay, or starts it. `ended` is when what is repeated ended last.
    pub fn next(&mut self, key: &str, ended: Timestamp, now: Timestamp) {
        let (first, longest, forgotten) = (self.first, self.longest, self.forgotten);
        match self.entries.get_mut(key) {
            Some(entry) if since(entry.1, ended) <= forgotten => {
                *entry = ((entry.0 * 2).min(longest), now);
            }
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

    fn sweep(&mut self, now: Timestamp) {
        let forgotten = self.forgotten;
        self.entries.retain(|_, (_, updated)| since(*updated, now) <= forgotten);
        if self.entries.len() >= MOST_KEYS {
            self.entries.clear();
        }
    }
}

/// Nothing for what was not earlier.
fn since(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::duration;

    #[test]
    fn delays_double_up_to_the_longest_and_are_forgotten_after_a_long_run() {
        let mut backoff = Backoff::standard();
        let mut now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut shown = vec![];
        assert_eq!(backoff.remaining("c", now, now), None, "new");
        for _ in 0..7 {
            backoff.next("c", now, now);
            let left = backoff.remaining("c", now, now).unwrap();
            shown.push(duration::format(left));
            now += left;
            assert_eq!(backoff.remaining("c", now - left, now), None, "waited");
        }
        assert_eq!(shown.join(" "), "10s 20s 40s 1m20s 2m40s 5m0s 5m0s");
        // It was started again just now, and runs for ten minutes, or for longer.
        backoff.next("c", now, now);
        let ended = now + Duration::from_secs(600);
        assert_eq!(backoff.remaining("c", ended, ended), Some(Duration::from_secs(300)));
        let ended = now + Duration::from_secs(601);
        assert_eq!(backoff.remaining("c", ended, ended), None, "it ran for long");
        backoff.next("c", ended, ended);
        assert_eq!(backoff.delay("c"), Duration::from_secs(10), "it ran for long");
        backoff.next("c", ended, ended + Duration::from_secs(700));
        assert_eq!(backoff.delay("c"), Duration::from_secs(20), "it has not run since");
    }

    #[test]
    fn a_short_longest_delay_is_the_first_one_too_and_is_not_forgotten_earlier() {
        let mut backoff = RestartDelays::up_to(Duration::from_secs(3)).unwrap().backoff();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for _ in 0..3 {
            backoff.next("c", now, now);
            assert_eq!(backoff.delay("c"), Duration::from_secs(3));
        }
        assert_eq!(backoff.remaining("c", now, now + Duration::from_secs(2)), Some(Duration::from_secs(1)));
        assert_eq!(RestartDelays::up_to(Duration::from_secs(301)), None);
    }
}

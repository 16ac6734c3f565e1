//! How long the failed pods of a node stay: a node that rejects every pod would otherwise get one after another.
//!
//! Invariants:
//! - The wait after a deletion doubles from [`FIRST`] to [`LAST`], and starts over when nothing failed for twice the latter.
//! - A change of the daemon set starts it over, too: the next template may fit.
//! - There are at most [`MOST`] entries; the one that was used longest ago is dropped first.

use jiff::{SignedDuration, Timestamp};
use std::{collections::HashMap, time::Duration};

const FIRST: SignedDuration = SignedDuration::from_secs(1);
const LAST: SignedDuration = SignedDuration::from_mins(15);
/// Entries that nothing was added to for this long are dropped.
const EXPIRES: SignedDuration = SignedDuration::from_mins(30);
const MOST: usize = 50_000;

/// A node of a daemon set at a generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BackOffKey {
    /// The daemon set.
    pub uid: String,
    /// Its observed generation.
    pub generation: i64,
    /// The node.
    pub node: String,
}

struct Wait {
    length: SignedDuration,
    began: Timestamp,
}

impl Wait {
    fn expired(&self, now: Timestamp) -> bool {
        now.duration_since(self.began) > EXPIRES
    }
}

/// The waits.
#[derive(Default)]
pub struct BackOff {
    waits: HashMap<BackOffKey, Wait>,
}

impl BackOff {
    /// How long a failed pod has still to stay. Without a wait it may go now, and the next one's wait begins.
    pub fn next(&mut self, place: BackOffKey, now: Timestamp) -> Option<Duration> {
        let mut length = FIRST;
        if let Some(wait) = self.waits.get(&place).filter(|wait| !wait.expired(now)) {
            if now.duration_since(wait.began) < wait.length {
                return Some(Duration::try_from(wait.length).unwrap_or_default());
            }
            length = wait.length.saturating_mul(2).min(LAST);
        }
        if self.waits.len() >= MOST {
            self.shrink(now);
        }
        self.waits.insert(place, Wait { length, began: now });
        None
    }

    fn shrink(&mut self, now: Timestamp) {
        self.waits.retain(|_, wait| !wait.expired(now));
        if self.waits.len() >= MOST {
            let oldest = self.waits.iter().min_by_key(|(_, wait)| wait.began).map(|(place, _)| place.clone());
            oldest.and_then(|place| self.waits.remove(&place));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn place(node: &str) -> BackOffKey {
        BackOffKey { uid: "d".into(), generation: 1, node: node.into() }
    }

    #[test]
    fn waits_double_by_node() {
        let mut waits = BackOff::default();
        let mut now = 0;
        let mut lengths = vec![];
        for _ in 0..12 {
            assert_eq!(waits.next(place("a"), at(now)), None);
            let wait = waits.next(place("a"), at(now)).unwrap().as_secs();
            lengths.push(wait);
            now += i64::try_from(wait).unwrap();
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]);
        assert_eq!(waits.next(place("b"), at(now)), None);
        let next = BackOffKey { generation: 2, ..place("a") };
        assert_eq!(waits.next(next, at(now)), None);
        // After half an hour without a failure it starts over.
        assert_eq!(waits.next(place("a"), at(now + 1900)), None);
        assert_eq!(waits.next(place("a"), at(now + 1900)).unwrap().as_secs(), 1);
    }

    #[test]
    fn entries_are_bounded() {
        let mut waits = BackOff::default();
        for (second, node) in (0..=MOST).enumerate() {
            waits.next(place(&node.to_string()), at(i64::try_from(second / 1000).unwrap()));
        }
        assert_eq!(waits.waits.len(), MOST);
    }
}

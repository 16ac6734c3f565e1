//! Events that happen while pods are being scheduled or bound.
//!
//! Invariant: an event is kept as long as an attempt is in flight that began before it, unless [`EVENTS`] are kept already.

use crate::framework::Event;
use std::collections::{BTreeMap, VecDeque};

/// Events that are kept.
pub const EVENTS: usize = 4096;

/// The events.
#[derive(Default)]
pub struct InFlightEvents {
    /// By their numbers, from `first` on.
    kept: VecDeque<Event>,
    /// The number of the first kept event.
    first: u64,
    /// Attempts by the number of the event that will come next when they begin.
    attempts: BTreeMap<u64, usize>,
    /// Events before this number were dropped though an attempt needed them.
    dropped: u64,
}

impl InFlightEvents {
    fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Whether any attempt is in flight.
    pub fn wanted(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// An attempt begins; it ends with the number that this returns.
    pub fn begin(&mut self) -> u64 {
        let next = self.next();
        *self.attempts.entry(next).or_default() += 1;
        next
    }

    /// An event.
    pub fn push(&mut self, event: Event) {
        if self.kept.len() >= EVENTS {
            self.kept.pop_front();
            self.first += 1;
            self.dropped = self.first;
        }
        self.kept.push_back(event);
    }

    /// Whether an event since the beginning of an attempt is of a kind; true if one of them was dropped.
    pub fn any_since(&self, began: u64, of_kind: impl Fn(&Event) -> bool) -> bool {
        let skip = usize::try_from(began.saturating_sub(self.first)).unwrap_or(usize::MAX);
        began < self.dropped || self.kept.iter().skip(skip).any(of_kind)
    }

    /// An attempt ends.
    pub fn end(&mut self, began: u64) {
        if let Some(attempts) = self.attempts.get_mut(&began) {
            *attempts -= 1;
            if *attempts == 0 {
                self.attempts.remove(&began);
            }
        }
        let needed = self.attempts.first_key_value().map_or(self.next(), |(began, _)| *began);
        while self.first < needed && self.kept.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// Drops all events: every attempt in flight counts as helped.
    pub fn drop_all(&mut self) {
        self.first = self.next() + 1;
        self.dropped = self.first;
        self.kept.clear();
    }
}

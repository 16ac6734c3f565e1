//! Events that happen while pods are being scheduled or bound.
//!
//! Invariant: an event is kept as long as an attempt is in flight that began before it, unless [`EVENTS`] are kept already.

use crate::framework::{Event, EventName};
use std::collections::{BTreeMap, VecDeque};

/// Among the events, a pod in flight.
const POPPED: EventName = EventName { resource: "PodPopped", action: "" };

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
    /// How many there are of each name, and how many attempts.
    counts: BTreeMap<EventName, i64>,
}

impl InFlightEvents {
    fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// How many there are of each name, and how many attempts.
    pub fn counts(&self) -> &BTreeMap<EventName, i64> {
        &self.counts
    }

    fn count(&mut self, name: EventName, more: i64) {
        *self.counts.entry(name).or_default() += more;
    }

    /// Forgets the first event.
    fn forget_first(&mut self) -> bool {
        let Some(event) = self.kept.pop_front() else { return false };
        self.count(event.name(), -1);
        self.first += 1;
        true
    }

    /// Whether any attempt is in flight.
    pub fn wanted(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// An attempt begins; it ends with the number that this returns.
    pub fn begin(&mut self) -> u64 {
        let next = self.next();
        *self.attempts.entry(next).or_default() += 1;
        self.count(POPPED, 1);
        next
    }

    /// An event.
    pub fn push(&mut self, event: Event) {
        if self.kept.len() >= EVENTS {
            self.forget_first();
            self.dropped = self.first;
        }
        self.count(event.name(), 1);
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
            self.count(POPPED, -1);
        }
        let needed = self.attempts.first_key_value().map_or(self.next(), |(began, _)| *began);
        while self.first < needed && self.forget_first() {}
    }

    /// Drops all events: every attempt in flight counts as helped.
    pub fn drop_all(&mut self) {
        self.first = self.next() + 1;
        self.dropped = self.first;
        self.kept.clear();
        self.counts.iter_mut().filter(|(name, _)| **name != POPPED).for_each(|(_, count)| *count = 0);
    }
}

//! When loops ended and began anew: a successor does not know of what its predecessor did at the end, as upstream's do not.
//!
//! Invariant: restarts are kept as long as one of them may excuse something.

use super::WINDOW_MILLIS;
use std::collections::VecDeque;

/// For so long before a restart of the loops a write of the former ones may have been sent, and for so long after it may be carried
/// out: the longest call.
const IN_FLIGHT_MILLIS: u64 = 10_000;
/// A scheduler that has begun anew has seen all bindings of its predecessor within this time.
const SEEN_BINDINGS_MILLIS: u64 = 60_000;

/// The restarts of lately, in milliseconds since the start.
#[derive(Debug, Default)]
pub struct Restarts {
    /// Of one loop, or of all.
    loops: VecDeque<u64>,
    /// Of the scheduler.
    scheduler: Option<u64>,
}

impl Restarts {
    /// One loop, which is not the scheduler.
    pub fn add(&mut self, now: u64) {
        self.loops.push_back(now);
        while self.loops.front().is_some_and(|at| at + WINDOW_MILLIS < now) {
            self.loops.pop_front();
        }
    }

    /// All loops.
    pub fn add_all(&mut self, now: u64) {
        self.add(now);
        self.scheduler = Some(now);
    }

    /// Whether what a loop did then may be unknown to its successor now.
    pub fn may_be_unseen(&self, now: u64, at: u64) -> bool {
        let mut lately = self.loops.iter().filter(|restart| now <= *restart + WINDOW_MILLIS);
        lately.any(|restart| at.abs_diff(*restart) <= IN_FLIGHT_MILLIS)
    }

    /// Whether the scheduler may not know of all bindings.
    pub fn may_miss_bindings(&self, now: u64) -> bool {
        self.scheduler.is_some_and(|at| now <= at + SEEN_BINDINGS_MILLIS)
    }
}

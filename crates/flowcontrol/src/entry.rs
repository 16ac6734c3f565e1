//! The state of one request and of one queue in a priority level.

use crate::{Nanos, detail::Detail, estimate::Estimate, metrics::SchemaMetrics};
use std::{collections::VecDeque, sync::Arc};

/// Seat-nanoseconds.
pub type Work = i128;

/// What a request is taken to need until it is known better.
pub(crate) const GUESS: Nanos = 3_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Executing,
    Lingering,
}

pub(crate) struct Entry<T> {
    pub(crate) state: State,
    /// `None` when it was admitted without a queue.
    pub(crate) queue: Option<usize>,
    pub(crate) estimate: Estimate,
    pub(crate) arrival: Nanos,
    pub(crate) started: Nanos,
    pub(crate) metrics: Arc<SchemaMetrics>,
    pub(crate) detail: Option<Box<Detail>>,
    pub(crate) busy: bool,
    pub(crate) arrival_r: Work,
    pub(crate) number: u64,
    pub(crate) token: Option<T>,
}

/// What is left of a request that has ended. To be dropped when no lock is held: that frees memory.
pub struct Ended<T> {
    /// When its seats come back, if they do so later.
    pub later: Option<Nanos>,
    #[expect(dead_code, reason = "kept to be dropped with this")]
    pub(crate) remains: Option<Entry<T>>,
}

impl<T> Default for Ended<T> {
    fn default() -> Self {
        Ended { later: None, remains: None }
    }
}

impl<T> Entry<T> {
    pub(crate) fn seats(&self) -> u32 {
        self.estimate.seats()
    }

    pub(crate) fn work(&self) -> Work {
        Work::from(self.estimate.initial) * Work::from(GUESS)
            + Work::from(self.estimate.last) * Work::from(self.estimate.linger)
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<u32>,
    pub(crate) executing: u32,
    pub(crate) seats_in_use: u32,
    pub(crate) next_dispatch_r: Work,
    pub(crate) initial_seats: u64,
    pub(crate) max_seats: u64,
    pub(crate) work: Work,
}

impl Queue {
    pub(crate) fn active(&self) -> bool {
        !self.waiting.is_empty() || self.executing > 0
    }
}

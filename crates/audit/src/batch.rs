//! Batches and their pace. Time is what the caller says it is: the span since some fixed moment.
//!
//! Invariants: a batch is never larger than it may be, and none waits longer than it may.

use std::time::Duration;

/// Collects items until there are enough of them, or the first has waited long enough.
#[derive(Debug)]
pub struct Batcher<T> {
    most: usize,
    wait: Duration,
    items: Vec<T>,
    due: Option<Duration>,
}

impl<T> Batcher<T> {
    /// Batches of at most `most` items; the first item of one waits for `wait` at most.
    pub fn new(most: usize, wait: Duration) -> Self {
        Batcher { most: most.max(1), wait, items: vec![], due: None }
    }

    /// Adds an item; a batch when it is full.
    pub fn push(&mut self, item: T, now: Duration) -> Option<Vec<T>> {
        self.due.get_or_insert(now.saturating_add(self.wait));
        self.items.push(item);
        if self.items.len() >= self.most { self.take() } else { None }
    }

    /// When the current batch is to go at the latest; `None` while there is none.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// What there is.
    pub fn take(&mut self) -> Option<Vec<T>> {
        self.due = None;
        (!self.items.is_empty()).then(|| std::mem::take(&mut self.items))
    }
}

/// A token bucket: so many a second, and a few more at once after a pause.
#[derive(Debug)]
pub struct Throttle {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Duration,
}

impl Throttle {
    /// A full bucket. `rate` is tokens a second and positive.
    pub fn new(rate: f64, burst: u32) -> Self {
        let burst = f64::from(burst);
        Throttle { rate, burst, tokens: burst, at: Duration::ZERO }
    }

    /// Takes a token; how long to wait until it is there.
    pub fn take(&mut self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.tokens = (self.tokens + passed * self.rate).min(self.burst) - 1.0;
        // Half a day is longer than any wait for a token.
        let wait = (-self.tokens / self.rate).clamp(0.0, 43_200.0);
        Duration::from_secs_f64(wait)
    }
}

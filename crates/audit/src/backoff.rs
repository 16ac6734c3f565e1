//! The waits between tries. Source: upstream's `DefaultRetryBackoffWithInitialDelay`.

use kaji_meta::random::{Random, fraction};
use std::time::Duration;

const STEPS: u32 = 5;
const FACTOR: f64 = 1.5;
const JITTER: f64 = 0.2;
/// The longest delay before a retry.
const MOST: f64 = 3600.0;

/// The waits before the second and every further try: each half as long again as the one before, and up to a fifth more
/// by chance. When it ends, nothing is tried any more.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: f64,
    left: u32,
}

impl Backoff {
    /// The first wait.
    pub fn new(initial: Duration) -> Self {
        Backoff { next: initial.as_secs_f64(), left: STEPS - 1 }
    }

    /// The next wait; `None` when it has been tried often enough.
    pub fn next(&mut self, random: &dyn Random) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let wait = self.next * (1.0 + fraction(random) * JITTER);
        self.next *= FACTOR;
        Some(Duration::from_secs_f64(wait.min(MOST)))
    }
}

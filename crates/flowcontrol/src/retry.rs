//! What `Retry-After` tells clients that were turned away: it doubles while many are, and shrinks again second by second.

use std::collections::VecDeque;

/// Seconds.
const LONGEST: u64 = 32;

/// The recent rejections of one priority level.
#[derive(Debug)]
pub struct Dropped {
    /// Second and number of rejections in it, oldest first; the last is the running second.
    history: VecDeque<(u64, u64)>,
    retry_after: u64,
    raised_at: u64,
}

impl Default for Dropped {
    fn default() -> Self {
        Dropped { history: VecDeque::new(), retry_after: 1, raised_at: 0 }
    }
}

impl Dropped {
    /// Notes a rejection in this second and answers how many seconds its client should wait.
    pub fn record(&mut self, second: u64) -> u64 {
        match self.history.back_mut() {
            Some((last, count)) if *last == second => *count += 1,
            _ => {
                self.adjust(second);
                let keep = (2 * self.retry_after).min(LONGEST);
                while self.history.front().is_some_and(|(s, _)| second.saturating_sub(*s) > keep) {
                    self.history.pop_front();
                }
                self.history.push_back((second, 1));
            }
        }
        self.retry_after
    }

    fn adjust(&mut self, second: u64) {
        let wait = self.retry_after;
        let recent: u64 = self
            .history
            .iter()
            .filter(|(s, _)| *s < second && second - s <= wait)
            .map(|(_, count)| count)
            .sum();
        if second.saturating_sub(self.raised_at) >= wait && recent >= 3 * wait {
            self.retry_after = (wait * 2).min(LONGEST);
            self.raised_at = second;
        } else if recent < wait && wait > 1 {
            self.retry_after -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_under_load_and_shrinks_after() {
        let mut dropped = Dropped::default();
        let mut busy = vec![];
        for second in 100..120 {
            for _ in 0..20 {
                dropped.record(second);
            }
            busy.push(dropped.retry_after);
        }
        assert_eq!(busy, [1, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 16, 16, 16, 16, 16]);
        let calm: Vec<u64> = (0..8).map(|i| dropped.record(200 + 40 * i)).collect();
        assert_eq!(calm, [15, 14, 13, 12, 11, 10, 9, 8]);
    }
}

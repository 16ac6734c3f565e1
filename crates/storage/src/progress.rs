//! What work on all objects of a cluster says of itself while it goes on, and the line of a terminal that shows it: it is written again
//! and again, and removed at the end.
//!
//! Invariants: amounts of one work only grow. Where standard error is no terminal nothing is written.

use std::{
    io::{IsTerminal, Write},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How often the line is written, at most.
const INTERVAL: Duration = Duration::from_millis(100);

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Bytes of a snapshot.
    Bytes(u64),
    /// Objects.
    Objects(u64),
}

/// Called after each piece of work.
pub type Progress<'a> = &'a (dyn Fn(Amount) + Send + Sync);

/// For work that nothing shows.
pub fn silent(_: Amount) {}

/// A line of a terminal.
pub struct ProgressLine {
    what: &'static str,
    is_terminal: bool,
    shown: Mutex<Option<Instant>>,
}

impl ProgressLine {
    /// Nothing is written yet; `what` is the work: `Saving`.
    pub fn new(what: &'static str) -> ProgressLine {
        ProgressLine { what, is_terminal: std::io::stderr().is_terminal(), shown: Mutex::new(None) }
    }

    /// Shows how much is done.
    pub fn show(&self, amount: Amount) {
        if !self.is_terminal {
            return;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        *shown = Some(Instant::now());
        // Standard error may be closed.
        let _ = write!(std::io::stderr(), "\r\x1b[K{}", line(self.what, amount));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown.get_mut().is_ok_and(|shown| shown.is_some()) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, amount: Amount) -> String {
    match amount {
        Amount::Bytes(bytes) => format!("{what}: {}.{} MiB …", bytes >> 20, ((bytes % (1 << 20)) * 10) >> 20),
        Amount::Objects(objects) => format!("{what}: {objects} objects …"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_at_a_glance() {
        let lines = [
            line("Saving", Amount::Bytes(0)),
            line("Saving", Amount::Bytes((5 << 20) + (1 << 19))),
            line("Restoring", Amount::Objects(1234)),
        ];
        assert_eq!(lines, ["Saving: 0.0 MiB …", "Saving: 5.5 MiB …", "Restoring: 1234 objects …"]);
    }
}

//! Rates of processor time, for runtimes that show only its sum.
//!
//! Invariant: as many readings are kept as there are containers and sandboxes, those that were not read for a while left out.

use kaji_containers::CpuUsage;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Nanoseconds over which a rate is taken at least.
const WINDOW: i64 = 1_000_000_000;
/// Nanoseconds after which a reading is forgotten.
const AGE: i64 = 600 * 1_000_000_000;
/// Readings that are kept.
const MOST: usize = 4096;

/// The readings before the present ones, by id.
#[derive(Default)]
pub struct Rates(Mutex<HashMap<String, CpuUsage>>);

impl Rates {
    /// Sets the rate of a reading that has none, if there was one before it.
    pub fn complete(&self, id: &str, usage: &mut CpuUsage) {
        if usage.nano_cores.is_some() || usage.at_nanos == 0 {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(id).copied();
        let elapsed = before.map_or(0, |before| usage.at_nanos.saturating_sub(before.at_nanos));
        match before {
            // Too near: the rate of that reading still counts.
            Some(before) if elapsed < WINDOW => {
                usage.nano_cores = before.nano_cores;
                return;
            }
            Some(before) => {
                let used = u128::from(usage.core_nanos.saturating_sub(before.core_nanos));
                let rate = used * 1_000_000_000 / u128::from(elapsed.unsigned_abs());
                usage.nano_cores = u64::try_from(rate).ok();
            }
            None => {}
        }
        if known.len() >= MOST {
            known.retain(|_, kept| usage.at_nanos.saturating_sub(kept.at_nanos) < AGE);
        }
        if known.len() < MOST || known.contains_key(id) {
            known.insert(id.to_owned(), *usage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_there_from_the_second_reading_on() {
        let rates = Rates::default();
        let rate = |seconds: f64, core_nanos: u64| {
            let at_nanos = (seconds * 1e9) as i64;
            let mut usage = CpuUsage { at_nanos, core_nanos, ..Default::default() };
            rates.complete("a", &mut usage);
            usage.nano_cores
        };
        assert_eq!(rate(10.0, 1_000), None);
        assert_eq!(rate(12.0, 1_000_001_000), Some(500_000_000));
        assert_eq!(rate(12.5, 1_400_000_000), Some(500_000_000));
        assert_eq!(rate(14.0, 1_000_001_000), Some(0));
    }
}

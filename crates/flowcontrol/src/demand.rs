//! How many seats a priority level could have used: integrated over time, condensed every adjustment period.
//! Source: KEP-1040, "Dispatching", borrowing.

use crate::Nanos;

/// Half-life of five minutes at one update every ten seconds.
const SMOOTHING: f64 = 0.977;

/// The integral of a level's demand since it was last read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Integrator {
    since: Nanos,
    value: f64,
    seconds: f64,
    sum: f64,
    squares: f64,
    most: f64,
}

/// What an [`Integrator`] saw.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Seconds it covers.
    pub seconds: f64,
    /// Average over time.
    pub average: f64,
    /// Standard deviation over time.
    pub deviation: f64,
    /// The highest value.
    pub most: f64,
}

impl Integrator {
    /// Begins at `now` with no demand.
    pub fn new(now: Nanos) -> Self {
        Integrator { since: now, ..Integrator::default() }
    }

    fn advance(&mut self, now: Nanos) {
        let seconds = now.saturating_sub(self.since) as f64 / 1e9;
        self.since = self.since.max(now);
        self.seconds += seconds;
        self.sum += self.value * seconds;
        self.squares += self.value * self.value * seconds;
    }

    /// The demand is this from now on.
    pub fn set(&mut self, now: Nanos, value: f64) {
        self.advance(now);
        self.value = value;
        self.most = self.most.max(value);
    }

    /// Reads and begins anew.
    pub fn take(&mut self, now: Nanos) -> Observed {
        self.advance(now);
        let mut observed = Observed { seconds: self.seconds, most: self.most, ..Observed::default() };
        if self.seconds > 0.0 {
            observed.average = self.sum / self.seconds;
            observed.deviation =
                (self.squares / self.seconds - observed.average * observed.average).max(0.0).sqrt();
        }
        *self = Integrator { most: self.value, value: self.value, ..Integrator::new(self.since) };
        observed
    }
}

/// A level's demand as the allocation of seats sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Of the last period.
    pub average: f64,
    /// Of the last period.
    pub deviation: f64,
    /// Seats, of the last period.
    pub high: i64,
    /// Rises at once with average plus deviation, falls slowly.
    pub smoothed: f64,
}

impl Demand {
    /// Takes in one period.
    pub fn update(&mut self, observed: Observed) {
        self.high = observed.most.round() as i64;
        if observed.seconds <= 0.0 {
            return;
        }
        self.average = observed.average;
        self.deviation = observed.deviation;
        let envelope = observed.average + observed.deviation;
        self.smoothed = envelope.max(SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_weighed_by_time() {
        let mut integrator = Integrator::new(0);
        integrator.set(0, 10.0);
        integrator.set(1_000_000_000, 0.0);
        let observed = integrator.take(4_000_000_000);
        assert_eq!((observed.seconds, observed.average, observed.most), (4.0, 2.5, 10.0));
        assert!((observed.deviation - 18.75_f64.sqrt()).abs() < 1e-9);
        // What is there when a period begins is part of it.
        integrator.set(5_000_000_000, 3.0);
        let _ = integrator.take(6_000_000_000);
        assert_eq!(integrator.take(7_000_000_000).most, 3.0);
    }

    #[test]
    fn smoothed_demand_rises_at_once_and_falls_slowly() {
        let mut demand = Demand::default();
        demand.update(Observed { seconds: 10.0, average: 50.0, deviation: 0.0, most: 60.0 });
        assert_eq!((demand.smoothed, demand.high), (50.0, 60));
        demand.update(Observed { seconds: 10.0, average: 0.0, deviation: 0.0, most: 0.0 });
        assert!((demand.smoothed - 48.85).abs() < 1e-9);
    }
}

//! How ratios were spread over time: upstream's histograms "at the end of every nanosecond", in which each nanosecond is
//! an observation. A change costs a few additions; nothing runs in between.

use crate::Nanos;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Registry,
};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

const SEATS: &[f64] = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
const REQUESTS: &[f64] = &[0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
const DEMAND: &[f64] = &[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];

/// One ratio over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    edges: &'static [f64],
    /// Nanoseconds in each bucket; one more than edges.
    buckets: Vec<u64>,
    /// Of ratio times nanoseconds.
    sum: f64,
    value: u64,
    denominator: u64,
    since: Nanos,
}

impl Timeline {
    fn new(edges: &'static [f64], now: Nanos) -> Self {
        Timeline { edges, buckets: vec![0; edges.len() + 1], sum: 0.0, value: 0, denominator: 1, since: now }
    }

    fn advance(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.since);
        self.since = self.since.max(now);
        let ratio = self.value as f64 / self.denominator as f64;
        self.buckets[self.edges.partition_point(|edge| *edge < ratio)] += passed;
        self.sum += ratio * passed as f64;
    }

    fn set(&mut self, now: Nanos, value: u64) {
        if value != self.value {
            self.advance(now);
            self.value = value;
        }
    }

    fn divide_by(&mut self, now: Nanos, denominator: u64) {
        let denominator = denominator.max(1);
        if denominator != self.denominator {
            self.advance(now);
            self.denominator = denominator;
        }
    }

    fn encode(&self, family: &mut MetricEncoder<'_>, labels: &[(&str, &str)]) -> fmt::Result {
        let edges = self.edges.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = edges.zip(self.buckets.iter().copied()).collect();
        let count = self.buckets.iter().sum();
        family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(self.sum, count, &buckets, None)
    }
}

/// What is measured of a priority level.
#[derive(Clone, Debug)]
pub struct Utilization {
    seats: Timeline,
    executing: Timeline,
    waiting: Timeline,
    demand: Timeline,
}

/// The numbers of one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    /// Seats taken.
    pub seats: u64,
    /// Requests that run.
    pub executing: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// Seats taken and waited for.
    pub demand: u64,
}

impl Utilization {
    /// Begins at `now` with nothing.
    pub fn new(now: Nanos) -> Self {
        let [seats, executing, waiting, demand] =
            [SEATS, REQUESTS, REQUESTS, DEMAND].map(|edges| Timeline::new(edges, now));
        Utilization { seats, executing, waiting, demand }
    }

    /// From now on it is so.
    pub fn set(&mut self, now: Nanos, numbers: Numbers) {
        self.seats.set(now, numbers.seats);
        self.executing.set(now, numbers.executing);
        self.waiting.set(now, numbers.waiting);
        self.demand.set(now, numbers.demand);
    }

    /// From now on so many seats, and so many places to wait, are all there are.
    pub fn divide_by(&mut self, now: Nanos, seats: u64, places: u64) {
        self.waiting.divide_by(now, places);
        for line in [&mut self.seats, &mut self.executing, &mut self.demand] {
            line.divide_by(now, seats);
        }
    }

    /// Up to now.
    pub fn snapshot(&mut self, now: Nanos) -> Utilization {
        for line in [&mut self.seats, &mut self.executing, &mut self.waiting, &mut self.demand] {
            line.advance(now);
        }
        self.clone()
    }
}

/// The values of the metrics page, updated when it is read.
#[derive(Clone, Debug, Default)]
pub struct Page(Arc<Mutex<Vec<(String, Utilization)>>>);

impl Page {
    /// Puts new numbers on the page.
    pub fn set(&self, levels: Vec<(String, Utilization)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = levels;
    }

    /// Makes it part of a registry's.
    pub fn register(&self, registry: &mut Registry) {
        for which in [Which::Seats, Which::Requests, Which::Demand] {
            registry.register_collector(Box::new(Histogram { which, page: self.clone() }));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Which {
    Seats,
    Requests,
    Demand,
}

#[derive(Debug)]
struct Histogram {
    which: Which,
    page: Page,
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Which::Seats => "priority_level_seat_utilization",
            Which::Requests => "priority_level_request_utilization",
            Which::Demand => "demand_seats",
        }
    }

    fn help(self) -> &'static str {
        match self {
            Which::Seats => {
                "EXPERIMENTAL: [ALPHA] Observations, at the end of every nanosecond, of utilization of seats for any stage of execution (but only initial stage for WATCHes)"
            }
            Which::Requests => {
                "EXPERIMENTAL: [ALPHA] Observations, at the end of every nanosecond, of number of requests (as a fraction of the relevant limit) waiting or in any stage of execution (but only initial stage for WATCHes)"
            }
            Which::Demand => {
                "EXPERIMENTAL: [ALPHA] Observations, at the end of every nanosecond, of (the number of seats each priority level could use) / (nominal number of seats for that level)"
            }
        }
    }
}

impl Collector for Histogram {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let (name, help) = (self.which.name(), self.which.help());
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (level, seen) in self.page.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let level = ("priority_level", level.as_str());
            let (executing, waiting) = (("phase", "executing"), ("phase", "waiting"));
            match self.which {
                Which::Seats => seen.seats.encode(&mut family, &[executing, level])?,
                Which::Requests => {
                    seen.waiting.encode(&mut family, &[waiting, level])?;
                    seen.executing.encode(&mut family, &[executing, level])?;
                }
                Which::Demand => seen.demand.encode(&mut family, &[level])?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nanosecond_counts_where_the_ratio_was() {
        let mut seen = Utilization::new(0);
        seen.divide_by(0, 4, 10);
        seen.set(100, Numbers { seats: 2, executing: 1, waiting: 0, demand: 2 });
        seen.set(110, Numbers { seats: 4, executing: 2, waiting: 5, demand: 9 });
        seen.divide_by(140, 8, 10);
        let page = Page::default();
        page.set(vec![("system".into(), seen.snapshot(200))]);
        let mut registry = Registry::default();
        page.register(&mut registry);
        let text = kaji_exposition::encode(&registry);
        let samples: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        let short: Vec<String> = samples
            .iter()
            .filter(|l| !l.contains("_bucket"))
            .map(|l| l.replace(r#"priority_level="system""#, "system"))
            .collect();
        expect_test::expect![[r#"
            demand_seats_sum{system} 140
            demand_seats_count{system} 200
            priority_level_request_utilization_sum{phase="executing",system} 32.5
            priority_level_request_utilization_count{phase="executing",system} 200
            priority_level_request_utilization_sum{phase="waiting",system} 45
            priority_level_request_utilization_count{phase="waiting",system} 200
            priority_level_seat_utilization_sum{phase="executing",system} 65
            priority_level_seat_utilization_count{phase="executing",system} 200"#]]
        .assert_eq(&short.join("\n"));
        let bucket = |name: &str, edge: &str| {
            let found = samples.iter().find(|l| {
                l.starts_with(name)
                    && l.contains(r#"phase="executing""#)
                    && l.contains(&format!(r#"le="{edge}""#))
            });
            found.unwrap_or_else(|| panic!("{edge}: {text}")).rsplit_once(' ').unwrap().1.to_owned()
        };
        let seats = ["0", "0.4", "0.5", "0.99", "1", "+Inf"]
            .map(|edge| bucket("priority_level_seat_utilization_bucket", edge));
        // 100 ns idle, half of 4 for 10 ns, all for 30 ns, half of 8 for 60 ns.
        assert_eq!(seats, ["100", "100", "170", "170", "200", "200"]);
    }
}

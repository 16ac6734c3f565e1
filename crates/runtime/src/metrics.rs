//! What controllers measure of their work beside their queues: definitions, which are constants in the controllers' files, and samples.
//!
//! Invariants:
//! - A sample is data: a reconcile that is pure stays so. The worker counts what its plan observes at the moment that the plan names.
//! - Gauges are read from the informers' snapshots when a page of metrics is asked for; nothing runs for them meanwhile.
//! - Of a metric at most [`MAX_SERIES`] series are counted, whatever the values of its labels are.

mod observed;
mod observing;

pub use observed::{ControllerMetrics, Gauges, MAX_SERIES};
pub(crate) use observing::Observing;

use crate::client::Target;
use std::borrow::Cow;

/// The value of a label.
pub type Label = Cow<'static, str>;

/// The upper bounds of a histogram's buckets; the last one, which has no bound, is not among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Buckets {
    /// So many bounds, each `factor` times the one before.
    Exponential {
        /// The first bound.
        first: f64,
        /// What a bound is multiplied by.
        factor: f64,
        /// How many there are.
        count: usize,
    },
    /// These bounds, in order.
    Bounds(&'static [f64]),
}

impl Buckets {
    /// Those of client_golang's `DefBuckets`.
    pub const DEFAULT: Buckets =
        Buckets::Bounds(&[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]);

    /// Those of upstream's `ExponentialBuckets`.
    #[must_use]
    pub const fn exponential(first: f64, factor: f64, count: usize) -> Buckets {
        Buckets::Exponential { first, factor, count }
    }

    /// The bounds. Their texts are labels, so they are computed as Go computes them.
    fn bounds(self) -> Vec<f64> {
        match self {
            Buckets::Exponential { first, factor, count } => {
                std::iter::successors(Some(first), |bound| Some(bound * factor)).take(count).collect()
            }
            Buckets::Bounds(bounds) => bounds.to_vec(),
        }
    }
}

/// How the samples of a metric become one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// Their sum.
    Counter,
    /// The last one.
    Gauge,
    /// How many are in each bucket.
    Histogram(Buckets),
}

/// A metric of a controller.
#[derive(Debug, PartialEq)]
pub struct Metric {
    /// Its whole name.
    pub name: &'static str,
    /// Its text of help, after its stability: `[ALPHA] Number of endpoints desired`.
    pub help: &'static str,
    /// How samples become one value.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

impl Metric {
    /// A counter.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Metric {
        Metric { name, help, kind: MetricKind::Counter, labels }
    }

    /// A gauge.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Metric {
        Metric { name, help, kind: MetricKind::Gauge, labels }
    }

    /// A histogram.
    #[must_use]
    pub const fn histogram(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        buckets: Buckets,
    ) -> Metric {
        Metric { name, help, kind: MetricKind::Histogram(buckets), labels }
    }

    /// A sample; the values of labels are in the order of their names.
    pub fn sample<const N: usize>(&'static self, labels: [Label; N], value: f64) -> Sample {
        debug_assert_eq!(N, self.labels.len(), "{}", self.name);
        Sample { metric: self, labels: labels.into(), value }
    }

    /// A sample of one.
    pub fn one<const N: usize>(&'static self, labels: [Label; N]) -> Sample {
        self.sample(labels, 1.0)
    }

    /// A sample of a number of things.
    pub fn count<const N: usize>(&'static self, labels: [Label; N], number: usize) -> Sample {
        self.sample(labels, number as f64)
    }
}

/// A value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric.
    pub metric: &'static Metric,
    /// The values of its labels, in the order of their names.
    pub labels: Vec<Label>,
    /// What a counter grows by, what a gauge is, or what a histogram is given.
    pub value: f64,
}

/// When a sample of a plan counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Moment {
    /// Before its writes, whatever becomes of them.
    Decided,
    /// Once all of its writes have succeeded.
    Succeeded,
    /// Once a write has failed.
    Failed,
    /// For each write to this target that has succeeded.
    Written(Target),
    /// For each write to this target that has failed.
    NotWritten(Target),
}

/// A sample that counts once a plan has come to a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The moment.
    pub moment: Moment,
    /// What counts.
    pub sample: Sample,
    /// Whether the time since the work on the key has begun is added to the sample's value, in seconds.
    pub elapsed: bool,
}

#[cfg(test)]
mod tests;

//! What the framework costs: how long extension points take, and how often plugins are asked.
//!
//! Invariant: there are as many series as profiles, points and codes; an attempt looks none of them up by labels.
//!
//! Source: upstream's `pkg/scheduler/metrics`, `framework/runtime/framework.go` and `instrumented_plugins.go`.

use crate::framework::{Code, Outcome};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::sync::OnceLock;
use tokio::time::Instant;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PointLabels {
    extension_point: &'static str,
    status: &'static str,
    profile: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EvaluationLabels {
    plugin: &'static str,
    extension_point: &'static str,
    profile: String,
}

/// An extension point that is measured as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Whether a pod may enter the queue.
    PreEnqueue,
    /// Before nodes are filtered.
    PreFilter,
    /// The filters of all nodes of an attempt.
    Filter,
    /// Making room.
    PostFilter,
    /// Before nodes are scored.
    PreScore,
    /// The scores of all nodes of an attempt.
    Score,
    /// Reserving for a pod.
    Reserve,
    /// Giving that back.
    Unreserve,
    /// Asking for permits.
    Permit,
    /// Before the binding.
    PreBind,
    /// The binding.
    Bind,
    /// After the binding.
    PostBind,
}

/// Upstream's names, in the order of the enumeration.
const POINTS: [&str; 12] = [
    "PreEnqueue",
    "PreFilter",
    "Filter",
    "PostFilter",
    "PreScore",
    "Score",
    "Reserve",
    "Unreserve",
    "Permit",
    "PreBind",
    "Bind",
    "PostBind",
];

/// How the plugins of a point ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All succeeded.
    Success,
    /// A pod has to wait for a permit.
    Wait,
    /// One did not succeed.
    Failure(Code),
}

/// Upstream's names of endings, by [`Ending::place`].
const ENDINGS: [&str; 6] =
    ["Success", "Wait", "Unschedulable", "UnschedulableAndUnresolvable", "Pending", "Error"];

impl Ending {
    fn place(self) -> usize {
        match self {
            Ending::Success => 0,
            Ending::Wait => 1,
            Ending::Failure(Code::Unschedulable) => 2,
            Ending::Failure(Code::UnschedulableAndUnresolvable) => 3,
            Ending::Failure(Code::Pending) => 4,
            Ending::Failure(Code::Error) => 5,
        }
    }
}

impl<T> From<&Outcome<T>> for Ending {
    fn from(outcome: &Outcome<T>) -> Self {
        outcome.as_ref().map_or_else(|status| Ending::Failure(status.code), |_| Ending::Success)
    }
}

/// The metrics of all profiles. Clones share the numbers.
#[derive(Clone)]
pub struct FrameworkMetrics {
    durations: Family<PointLabels, Histogram, fn() -> Histogram>,
    evaluations: Family<EvaluationLabels, Counter>,
}

/// Upstream's exponential buckets from 0.1 ms to 0.2 s.
fn seconds() -> Histogram {
    Histogram::new((0..12).map(|power| 0.0001 * f64::from(1_u32 << power)))
}

impl Default for FrameworkMetrics {
    fn default() -> Self {
        FrameworkMetrics {
            durations: Family::new_with_constructor(seconds as fn() -> Histogram),
            evaluations: Family::default(),
        }
    }
}

impl FrameworkMetrics {
    /// Adds the metrics to a registry that has the prefix already.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "framework_extension_point_duration_seconds",
            "[STABLE] Latency for running all plugins of a specific extension point.",
            self.durations.clone(),
        );
        registry.register(
            "plugin_evaluation_total",
            "[BETA] Number of attempts to schedule pods by each plugin and the extension point (available only in PreFilter, Filter, PreScore, and Score).",
            self.evaluations.clone(),
        );
    }

    /// How often a plugin was asked at a point.
    pub fn asked(&self, plugin: &'static str, point: Point, profile: &str) -> Counter {
        let labels =
            EvaluationLabels { plugin, extension_point: POINTS[point as usize], profile: profile.to_owned() };
        self.evaluations.get_or_create_owned(&labels)
    }
}

/// The durations of one profile.
#[derive(Default)]
pub struct PointMeter {
    metrics: FrameworkMetrics,
    profile: String,
    /// Made by the first attempt that ends so.
    histograms: [[OnceLock<Histogram>; ENDINGS.len()]; POINTS.len()],
}

impl PointMeter {
    /// Of a profile.
    pub fn new(metrics: FrameworkMetrics, profile: &str) -> Self {
        PointMeter { metrics, profile: profile.to_owned(), histograms: Default::default() }
    }

    /// A point has ended.
    pub fn observe(&self, point: Point, ending: Ending, since: Instant) {
        let (point, ending) = (point as usize, ending.place());
        let histogram = self.histograms[point][ending].get_or_init(|| {
            self.metrics.durations.get_or_create_owned(&PointLabels {
                extension_point: POINTS[point],
                status: ENDINGS[ending],
                profile: self.profile.clone(),
            })
        });
        histogram.observe(since.elapsed().as_secs_f64());
    }

    /// Runs a point.
    pub fn timed<T>(&self, point: Point, plugins: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let since = Instant::now();
        let outcome = plugins();
        self.observe(point, Ending::from(&outcome), since);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Status;

    #[test]
    fn points_are_measured_by_their_ending() {
        let metrics = FrameworkMetrics::default();
        let meter = PointMeter::new(metrics.clone(), "default-scheduler");
        assert_eq!(meter.timed(Point::Reserve, || Ok(7)), Ok(7));
        assert!(meter.timed(Point::PreEnqueue, || Err::<(), _>(Status::unresolvable("gated"))).is_err());
        assert!(meter.timed(Point::PostBind, || Err::<(), _>(Status::error("x"))).is_err());
        meter.observe(Point::Permit, Ending::Wait, Instant::now());
        metrics.asked("NodeName", Point::Filter, "default-scheduler").inc();
        metrics.asked("NodeName", Point::PreFilter, "default-scheduler");
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        let shown = page.lines().filter(|line| !line.contains("_bucket") && !line.contains("_sum"));
        let shown: Vec<&str> = shown.filter(|line| !line.starts_with('#')).collect();
        expect_test::expect![[r#"
            framework_extension_point_duration_seconds_count{extension_point="Permit",profile="default-scheduler",status="Wait"} 1
            framework_extension_point_duration_seconds_count{extension_point="PostBind",profile="default-scheduler",status="Error"} 1
            framework_extension_point_duration_seconds_count{extension_point="PreEnqueue",profile="default-scheduler",status="UnschedulableAndUnresolvable"} 1
            framework_extension_point_duration_seconds_count{extension_point="Reserve",profile="default-scheduler",status="Success"} 1
            plugin_evaluation_total{extension_point="Filter",plugin="NodeName",profile="default-scheduler"} 1
            plugin_evaluation_total{extension_point="PreFilter",plugin="NodeName",profile="default-scheduler"} 0"#]]
        .assert_eq(&shown.join("\n"));
    }
}

//! What the framework costs: how long extension points take, and how often plugins are asked.
//!
//! Invariant: there are as many series as profiles, points and codes; an attempt looks none of them up by labels.
//!
//! Source: upstream's `pkg/scheduler/metrics`, `framework/runtime/framework.go` and `instrumented_plugins.go`.

use crate::framework::{Binding, Code, Event, EventName, Hint, Outcome, Permission, PreFiltered, PreScored};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::{
    fmt::{self, Write as _},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};
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

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ExecutionLabels {
    plugin: &'static str,
    extension_point: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HintLabels {
    plugin: &'static str,
    event: EventName,
    hint: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PermitLabels {
    result: &'static str,
}

impl EncodeLabelValue for EventName {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        write!(encoder, "{self}")
    }
}

/// Upstream's names of extension points where the time of single plugins is taken.
pub mod extension {
    /// Whether a pod may enter the queue.
    pub const PRE_ENQUEUE: &str = "PreEnqueue";
    /// Before nodes are filtered.
    pub const PRE_FILTER: &str = "PreFilter";
    /// One node.
    pub const FILTER: &str = "Filter";
    /// Making room.
    pub const POST_FILTER: &str = "PostFilter";
    /// Before nodes are scored.
    pub const PRE_SCORE: &str = "PreScore";
    /// One node.
    pub const SCORE: &str = "Score";
    /// The scores of all nodes.
    pub const NORMALIZE: &str = "ScoreExtensionNormalize";
    /// Reserving.
    pub const RESERVE: &str = "Reserve";
    /// Giving that back.
    pub const UNRESERVE: &str = "Unreserve";
    /// Asking for a permit.
    pub const PERMIT: &str = "Permit";
    /// Whether there is something to do before the binding.
    pub const PRE_BIND_PRE_FLIGHT: &str = "PreBindPreFlight";
    /// Before the binding.
    pub const PRE_BIND: &str = "PreBind";
    /// The binding.
    pub const BIND: &str = "Bind";
    /// After the binding.
    pub const POST_BIND: &str = "PostBind";
}

/// One attempt of so many has the time of each plugin taken; upstream samples ten of a hundred.
const SAMPLED: u64 = 10;

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
    /// Whether there is something to do before the binding.
    PreBindPreFlight,
    /// Before the binding.
    PreBind,
    /// The binding.
    Bind,
    /// After the binding.
    PostBind,
}

/// Upstream's names, in the order of the enumeration.
const POINTS: [&str; 13] = [
    "PreEnqueue",
    "PreFilter",
    "Filter",
    "PostFilter",
    "PreScore",
    "Score",
    "Reserve",
    "Unreserve",
    "Permit",
    "PreBindPreFlight",
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
    /// A plugin has nothing to do.
    Skip,
    /// One did not succeed.
    Failure(Code),
}

/// Upstream's names of endings, by [`Ending::place`].
const ENDINGS: [&str; 7] =
    ["Success", "Wait", "Unschedulable", "UnschedulableAndUnresolvable", "Pending", "Error", "Skip"];

impl Ending {
    fn place(self) -> usize {
        match self {
            Ending::Success => 0,
            Ending::Wait => 1,
            Ending::Failure(Code::Unschedulable) => 2,
            Ending::Failure(Code::UnschedulableAndUnresolvable) => 3,
            Ending::Failure(Code::Pending) => 4,
            Ending::Failure(Code::Error) => 5,
            Ending::Skip => 6,
        }
    }

    /// Of any outcome.
    pub fn of<T>(outcome: &Outcome<T>) -> Ending {
        Ending::from(outcome)
    }

    fn skip_if<T>(outcome: &Outcome<T>, skips: impl Fn(&T) -> bool) -> Ending {
        match outcome {
            Ok(said) if skips(said) => Ending::Skip,
            other => Ending::from(other),
        }
    }
}

impl PreFiltered {
    /// How a pre-filter ended.
    pub fn ending(outcome: &Outcome<PreFiltered>) -> Ending {
        Ending::skip_if(outcome, |said| *said == PreFiltered::Skip)
    }
}

impl PreScored {
    /// How a pre-score ended.
    pub fn ending(outcome: &Outcome<PreScored>) -> Ending {
        Ending::skip_if(outcome, |said| *said == PreScored::Skip)
    }
}

impl Binding {
    /// How a bind plugin ended.
    pub fn ending(outcome: &Outcome<Binding>) -> Ending {
        Ending::skip_if(outcome, |said| *said == Binding::Skip)
    }
}

impl Permission {
    /// How a permit plugin ended.
    pub fn ending(outcome: &Outcome<Permission>) -> Ending {
        match outcome {
            Ok(Permission::Wait(_)) => Ending::Wait,
            other => Ending::from(other),
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
    executions: Family<ExecutionLabels, Histogram, fn() -> Histogram>,
    hints: Family<HintLabels, Histogram, fn() -> Histogram>,
    permits: Family<PermitLabels, Histogram, fn() -> Histogram>,
}

/// Upstream's exponential buckets from 0.1 ms to 0.2 s.
fn seconds() -> Histogram {
    Histogram::new((0..12).map(|power| 0.0001 * f64::from(1_u32 << power)))
}

/// Upstream's exponential buckets from 0.01 ms to 22 ms.
fn short_seconds() -> Histogram {
    Histogram::new((0..20).map(|power| 0.00001 * 1.5_f64.powi(power)))
}

/// Upstream's exponential buckets from 1 ms to 16 s.
fn long_seconds() -> Histogram {
    Histogram::new((0..15).map(|power| 0.001 * f64::from(1_u32 << power)))
}

impl Default for FrameworkMetrics {
    fn default() -> Self {
        FrameworkMetrics {
            durations: Family::new_with_constructor(seconds as fn() -> Histogram),
            evaluations: Family::default(),
            executions: Family::new_with_constructor(short_seconds as fn() -> Histogram),
            hints: Family::new_with_constructor(short_seconds as fn() -> Histogram),
            permits: Family::new_with_constructor(long_seconds as fn() -> Histogram),
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
        registry.register(
            "plugin_execution_duration_seconds",
            "[ALPHA] Duration for running a plugin at a specific extension point.",
            self.executions.clone(),
        );
        registry.register(
            "queueing_hint_execution_duration_seconds",
            "[ALPHA] Duration for running a queueing hint function of a plugin.",
            self.hints.clone(),
        );
        registry.register(
            "permit_wait_duration_seconds",
            "[BETA] Duration of waiting on permit.",
            self.permits.clone(),
        );
    }

    /// Runs a plugin at an extension point, and takes its time if that is wanted.
    pub fn plugin<T>(
        &self,
        timed: bool,
        at: (&'static str, &'static str),
        ending: impl FnOnce(&T) -> Ending,
        run: impl FnOnce() -> T,
    ) -> T {
        if !timed {
            return run();
        }
        let since = Instant::now();
        let said = run();
        self.executed(at, ending(&said), since);
        said
    }

    fn executed(
        &self,
        (plugin, extension_point): (&'static str, &'static str),
        ending: Ending,
        since: Instant,
    ) {
        let labels = ExecutionLabels { plugin, extension_point, status: ENDINGS[ending.place()] };
        self.executions.get_or_create(&labels).observe(since.elapsed().as_secs_f64());
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
    /// So many attempts, of which one in [`SAMPLED`] is sampled.
    attempts: AtomicU64,
    /// The same of pods that come into the queue.
    queued: AtomicU64,
    /// Made by the first attempt that ends so.
    histograms: [[OnceLock<Histogram>; ENDINGS.len()]; POINTS.len()],
}

impl PointMeter {
    /// Of a profile.
    pub fn new(metrics: FrameworkMetrics, profile: &str) -> Self {
        PointMeter { metrics, profile: profile.to_owned(), ..PointMeter::default() }
    }

    /// Whether the time of each plugin is taken in the attempt that begins.
    pub fn samples_attempt(&self) -> bool {
        self.attempts.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED)
    }

    /// Whether the time of each plugin is taken that lets the next pod into the queue.
    pub fn samples_queued(&self) -> bool {
        self.queued.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED)
    }

    /// Runs a plugin. See [`FrameworkMetrics::plugin`].
    pub fn plugin<T>(
        &self,
        timed: bool,
        at: (&'static str, &'static str),
        ending: impl FnOnce(&T) -> Ending,
        run: impl FnOnce() -> T,
    ) -> T {
        self.metrics.plugin(timed, at, ending, run)
    }

    /// A plugin of which the time is taken has ended.
    pub fn executed(&self, at: (&'static str, &'static str), ending: Ending, since: Instant) {
        self.metrics.executed(at, ending, since);
    }

    /// Runs the hint of a plugin for an event.
    pub fn hint(&self, plugin: &'static str, event: &Event, hint: impl FnOnce() -> Hint) -> Hint {
        let since = Instant::now();
        let said = hint();
        let name = if said == Hint::Queue { "Queue" } else { "QueueSkip" };
        let labels = HintLabels { plugin, event: event.name(), hint: name };
        self.metrics.hints.get_or_create(&labels).observe(since.elapsed().as_secs_f64());
        said
    }

    /// A pod has waited for its permits.
    pub fn permit_waited(&self, ending: Ending, since: Instant) {
        let labels = PermitLabels { result: ENDINGS[ending.place()] };
        self.metrics.permits.get_or_create(&labels).observe(since.elapsed().as_secs_f64());
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

    #[test]
    fn plugins_of_one_attempt_in_ten_hints_and_permits_are_timed() {
        let metrics = FrameworkMetrics::default();
        let meter = PointMeter::new(metrics.clone(), "default-scheduler");
        let sampled: Vec<bool> = (0..20).map(|_| meter.samples_attempt()).collect();
        assert_eq!(sampled.iter().filter(|sampled| **sampled).count(), 2);
        for timed in [false, true] {
            let at = ("NodeName", extension::PRE_FILTER);
            let skip = meter.plugin(timed, at, PreFiltered::ending, || Ok(PreFiltered::Skip));
            assert_eq!(skip, Ok(PreFiltered::Skip));
            let at = ("NodeName", extension::FILTER);
            let no = meter.plugin(timed, at, Ending::of, || Err::<(), _>(Status::unschedulable("no")));
            assert!(no.is_err());
        }
        let node = std::sync::Arc::default();
        let event = Event::of_node(None, Some(node)).unwrap();
        assert_eq!(meter.hint("NodeName", &event, || Hint::Skip), Hint::Skip);
        meter.permit_waited(Ending::Failure(Code::Unschedulable), Instant::now());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        let shown: Vec<&str> = page.lines().filter(|line| line.contains("_count{")).collect();
        expect_test::expect![[r#"
            permit_wait_duration_seconds_count{result="Unschedulable"} 1
            plugin_execution_duration_seconds_count{extension_point="Filter",plugin="NodeName",status="Unschedulable"} 1
            plugin_execution_duration_seconds_count{extension_point="PreFilter",plugin="NodeName",status="Skip"} 1
            queueing_hint_execution_duration_seconds_count{event="NodeAdd",hint="QueueSkip",plugin="NodeName"} 1"#]]
        .assert_eq(&shown.join("\n"));
    }
}

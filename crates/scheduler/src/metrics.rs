//! `scheduler_*` metrics, with upstream's names.

mod devices;
mod framework;
mod queue;

pub use devices::{BindingConditionsResult, DeviceMetrics};
pub use framework::{Ending, FrameworkMetrics, Point, PointMeter, extension};
pub use queue::{Queue, QueueMetrics};

use crate::scheduling_queue::Pending;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AttemptLabels {
    result: &'static str,
    profile: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct QueueLabels {
    queue: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    r#type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PodLabels {
    attempts: String,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// A node was chosen.
    Scheduled,
    /// No node fits.
    Unschedulable,
    /// A plugin or a call failed.
    Error,
}

impl AttemptResult {
    fn name(self) -> &'static str {
        match self {
            AttemptResult::Scheduled => "scheduled",
            AttemptResult::Unschedulable => "unschedulable",
            AttemptResult::Error => "error",
        }
    }
}

/// The metrics. Clones share the numbers.
#[derive(Clone)]
pub struct Metrics {
    attempts: Family<AttemptLabels, Counter>,
    duration: Family<AttemptLabels, Histogram, fn() -> Histogram>,
    algorithm: Histogram,
    pod_duration: Family<PodLabels, Histogram, fn() -> Histogram>,
    pod_attempts: Histogram,
    pending: Family<QueueLabels, Gauge>,
    cache: Family<KindLabels, Gauge>,
    preemption_attempts: Counter,
    preemption_victims: Histogram,
    preemption_tasks: Family<ResultLabels, Counter>,
    preemption_task_duration: Family<ResultLabels, Histogram, fn() -> Histogram>,
    tasks: Family<OperationLabels, Gauge>,
    after_flush: Counter,
    group_attempts: Family<AttemptLabels, Counter>,
    group_algorithm: Histogram,
    group_duration: Family<AttemptLabels, Histogram, fn() -> Histogram>,
    /// Of dynamic resource allocation.
    pub devices: DeviceMetrics,
    /// Of extension points and plugins.
    pub framework: FrameworkMetrics,
    /// Of the scheduling queue.
    pub queue: QueueMetrics,
}

/// Upstream's exponential buckets from 1 ms to 16 s.
fn seconds() -> Histogram {
    Histogram::new((0..15).map(|power| 0.001 * f64::from(1_u32 << power)))
}

/// Upstream's exponential buckets from 10 ms to an hour and a half.
fn pod_seconds() -> Histogram {
    Histogram::new((0..20).map(|power| 0.01 * f64::from(1_u32 << power)))
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            attempts: Family::default(),
            duration: Family::new_with_constructor(seconds as fn() -> Histogram),
            algorithm: seconds(),
            pod_duration: Family::new_with_constructor(pod_seconds as fn() -> Histogram),
            pod_attempts: Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0]),
            pending: Family::default(),
            cache: Family::default(),
            preemption_attempts: Counter::default(),
            preemption_victims: Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
            preemption_tasks: Family::default(),
            preemption_task_duration: Family::new_with_constructor(pod_seconds as fn() -> Histogram),
            tasks: Family::default(),
            after_flush: Counter::default(),
            group_attempts: Family::default(),
            group_algorithm: seconds(),
            group_duration: Family::new_with_constructor(seconds as fn() -> Histogram),
            devices: DeviceMetrics::default(),
            framework: FrameworkMetrics::default(),
            queue: QueueMetrics::default(),
        }
    }
}

impl Metrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let all = registry.sub_registry_with_prefix("scheduler");
        all.register(
            "schedule_attempts_total",
            "[STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.",
            self.attempts.clone(),
        );
        all.register(
            "scheduling_attempt_duration_seconds",
            "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)",
            self.duration.clone(),
        );
        all.register(
            "scheduling_algorithm_duration_seconds",
            "[ALPHA] Scheduling algorithm latency in seconds",
            self.algorithm.clone(),
        );
        all.register(
            "pod_scheduling_sli_duration_seconds",
            "[BETA] E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling attempts.",
            self.pod_duration.clone(),
        );
        all.register(
            "pod_scheduling_attempts",
            "[STABLE] Number of attempts to successfully schedule a pod.",
            self.pod_attempts.clone(),
        );
        all.register("pending_pods", "[STABLE] Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never attempted to schedule because they are gated.", self.pending.clone());
        all.register(
            "cache_size",
            "[ALPHA] Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
            self.cache.clone(),
        );
        self.register_preemption_and_groups(all);
        self.devices.register(all);
        self.framework.register(all);
        self.queue.register(all);
    }

    fn register_preemption_and_groups(&self, all: &mut Registry) {
        all.register(
            "preemption_attempts_total",
            "[STABLE] Total preemption attempts in the cluster till now",
            self.preemption_attempts.clone(),
        );
        all.register(
            "preemption_victims",
            "[STABLE] Number of selected preemption victims",
            self.preemption_victims.clone(),
        );
        all.register(
            "preemption_goroutines_execution_total",
            "[ALPHA] Number of preemption goroutines executed.",
            self.preemption_tasks.clone(),
        );
        all.register(
            "preemption_goroutines_duration_seconds",
            "[ALPHA] Duration in seconds for running goroutines for the preemption.",
            self.preemption_task_duration.clone(),
        );
        all.register(
            "goroutines",
            "[BETA] Number of running goroutines split by the work they do such as binding.",
            self.tasks.clone(),
        );
        all.register(
            "pod_scheduled_after_flush_total",
            "[ALPHA] Number of pods that were successfully scheduled after being flushed from unschedulablePods due to timeout. This metric helps detect potential queueing hint misconfigurations or event handling issues.",
            self.after_flush.clone(),
        );
        all.register(
            "podgroup_schedule_attempts_total",
            "[ALPHA] Number of attempts to schedule pod group, by the result. 'unschedulable' means a pod group could not be scheduled, while 'error' means an internal scheduler problem.",
            self.group_attempts.clone(),
        );
        all.register(
            "podgroup_scheduling_algorithm_duration_seconds",
            "[ALPHA] Pod group scheduling algorithm latency in seconds",
            self.group_algorithm.clone(),
        );
        all.register(
            "podgroup_scheduling_attempt_duration_seconds",
            "[ALPHA] Pod group scheduling attempt latency in seconds (scheduling algorithm + binding)",
            self.group_duration.clone(),
        );
    }

    /// An attempt to schedule a group has ended: with `scheduled`, `unschedulable`, `waiting_on_preemption` or `error`.
    pub fn group_attempt(&self, result: &'static str, profile: &str, took: Duration) {
        let labels = AttemptLabels { result, profile: profile.to_owned() };
        self.group_attempts.get_or_create(&labels).inc();
        self.group_duration.get_or_create(&labels).observe(took.as_secs_f64());
        self.group_algorithm.observe(took.as_secs_f64());
    }

    /// An attempt has ended: the decision, and the binding if there was one.
    pub fn attempt(&self, result: AttemptResult, profile: &str, took: Duration) {
        let labels = AttemptLabels { result: result.name(), profile: profile.to_owned() };
        self.attempts.get_or_create(&labels).inc();
        self.duration.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// A decision was made.
    pub fn decided(&self, took: Duration) {
        self.algorithm.observe(took.as_secs_f64());
    }

    /// A pod was scheduled, so long after it came, with so many attempts; the last one perhaps for lack of any event.
    pub fn scheduled(&self, took: Duration, attempts: u32, flushed: bool) {
        self.after_flush.inc_by(u64::from(flushed));
        // As many series as upstream has.
        let attempts_label = if attempts >= 15 { "15+".to_owned() } else { attempts.to_string() };
        let labels = PodLabels { attempts: attempts_label };
        self.pod_duration.get_or_create(&labels).observe(took.as_secs_f64());
        self.pod_attempts.observe(f64::from(attempts));
    }

    /// Preemption was tried, and found so many victims.
    pub fn preemption(&self, victims: usize) {
        self.preemption_attempts.inc();
        if victims > 0 {
            self.preemption_victims.observe(f64::from(u32::try_from(victims).unwrap_or(u32::MAX)));
        }
    }

    /// The victims of a preemption are deleted, or could not be.
    pub fn preempted(&self, done: bool, took: Duration) {
        let labels = ResultLabels { result: if done { "success" } else { "error" } };
        self.preemption_tasks.get_or_create(&labels).inc();
        self.preemption_task_duration.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// So many bindings are in flight.
    pub fn bindings(&self, tasks: usize) {
        let labels = OperationLabels { operation: "binding" };
        self.tasks.get_or_create(&labels).set(i64::try_from(tasks).unwrap_or(i64::MAX));
    }

    /// What queue and cache hold.
    pub fn sizes(&self, pending: Pending, nodes: usize, pods: usize, assumed: usize) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let queues = [
            ("active", pending.active),
            ("backoff", pending.backoff),
            ("unschedulable", pending.unschedulable),
            ("gated", pending.gated),
        ];
        for (queue, pods) in queues {
            self.pending.get_or_create(&QueueLabels { queue }).set(number(pods));
        }
        for (kind, count) in [("nodes", nodes), ("pods", pods), ("assumed_pods", assumed)] {
            self.cache.get_or_create(&KindLabels { r#type: kind }).set(number(count));
        }
    }
}

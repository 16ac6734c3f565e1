//! `workqueue_*` metrics of the queues of a process, with upstream's names and labels.
//!
//! Invariants:
//! - A key that is queued already is not counted again.
//! - What is in progress is read from the queues when the metrics are asked for: nothing runs for it meanwhile.
//!
//! Source: client-go's `util/workqueue/metrics.go`, component-base's `metrics/prometheus/workqueue`.

use super::State;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};
use tokio::time::Instant;

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct QueueLabels {
    name: String,
}

/// Upstream's buckets: 10 ns, ten times more in each of ten. Their texts are labels, so they are computed as Go computes them.
fn seconds() -> Histogram {
    Histogram::new(std::iter::successors(Some(10e-9), |bound| Some(bound * 10.0)).take(10))
}

/// What is measured of one queue.
#[derive(Debug)]
pub(super) struct Meter {
    pub depth: Gauge,
    pub adds: Counter,
    pub latency: Histogram,
    pub work: Histogram,
    pub retries: Counter,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            depth: Gauge::default(),
            adds: Counter::default(),
            latency: seconds(),
            work: seconds(),
            retries: Counter::default(),
        }
    }
}

/// A queue that was there, by the name of its metrics.
type Followed = (QueueLabels, Weak<Mutex<State>>);

type Histograms = Family<QueueLabels, Histogram, fn() -> Histogram>;

/// The metrics of the work queues of a process. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    depth: Family<QueueLabels, Gauge>,
    adds: Family<QueueLabels, Counter>,
    latency: Histograms,
    work: Histograms,
    retries: Family<QueueLabels, Counter>,
    queues: Arc<Mutex<Vec<Followed>>>,
}

impl Default for QueueMetrics {
    fn default() -> QueueMetrics {
        QueueMetrics {
            depth: Family::default(),
            adds: Family::default(),
            latency: Family::new_with_constructor(seconds as fn() -> Histogram),
            work: Family::new_with_constructor(seconds as fn() -> Histogram),
            retries: Family::default(),
            queues: Arc::default(),
        }
    }
}

impl QueueMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let all = registry.sub_registry_with_prefix("workqueue");
        all.register("depth", "[BETA] Current depth of workqueue", self.depth.clone());
        all.register("adds_total", "[BETA] Total number of adds handled by workqueue", self.adds.clone());
        let text = "[BETA] How long in seconds an item stays in workqueue before being requested.";
        all.register("queue_duration_seconds", text, self.latency.clone());
        let text = "[BETA] How long in seconds processing an item from workqueue takes.";
        all.register("work_duration_seconds", text, self.work.clone());
        all.register(
            "retries_total",
            "[BETA] Total number of retries handled by workqueue",
            self.retries.clone(),
        );
        registry.register_collector(Box::new(self.clone()));
    }

    /// What is measured of a queue of this name.
    pub(super) fn meter(&self, name: &str) -> Meter {
        let labels = QueueLabels { name: name.to_owned() };
        Meter {
            depth: self.depth.get_or_create(&labels).clone(),
            adds: self.adds.get_or_create(&labels).clone(),
            latency: self.latency.get_or_create(&labels).clone(),
            work: self.work.get_or_create(&labels).clone(),
            retries: self.retries.get_or_create(&labels).clone(),
        }
    }

    /// Reads what is in progress of a queue as long as it exists.
    pub(super) fn follow(&self, name: &str, state: Weak<Mutex<State>>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|(_, state)| state.strong_count() > 0);
        queues.push((QueueLabels { name: name.to_owned() }, state));
    }

    /// Seconds of work in progress by queue: their sum, and the most.
    fn in_progress(&self) -> BTreeMap<QueueLabels, (f64, f64)> {
        let (mut found, now) = (BTreeMap::<QueueLabels, (f64, f64)>::new(), Instant::now());
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (labels, state) in queues {
            let Some(state) = state.upgrade() else { continue };
            let (sum, most) = found.entry(labels).or_default();
            let state = state.lock().unwrap_or_else(PoisonError::into_inner);
            for began in state.active.values().flatten() {
                let passed = now.saturating_duration_since(*began).as_secs_f64();
                (*sum, *most) = (*sum + passed, most.max(passed));
            }
        }
        found
    }
}

impl Collector for QueueMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let unfinished = "[BETA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.";
        let longest = "[BETA] How many seconds has the longest running processor for workqueue been running.";
        let found = self.in_progress();
        for (name, text, longest) in [
            ("workqueue_unfinished_work_seconds", unfinished, false),
            ("workqueue_longest_running_processor_seconds", longest, true),
        ] {
            // Pages take off the full stop that the library adds to texts which are registered; to these it adds none.
            let text = format!("{text}.");
            let mut family = encoder.encode_descriptor(name, &text, None, MetricType::Gauge)?;
            for (labels, (sum, most)) in &found {
                let value = if longest { *most } else { *sum };
                ConstGauge::new(value).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, queue::Queue};
    use kaji_meta::time::SystemClock;
    use std::time::Duration;

    #[tokio::test]
    async fn texts_of_help_are_those_of_client_go() {
        let metrics = QueueMetrics::default();
        let _queue = Queue::named("loop", Arc::new(SystemClock), &metrics);
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        let texts: String = page
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP workqueue_"))
            .fold(String::new(), |all, line| all + line + "\n");
        expect_test::expect![[r#"
            adds_total [BETA] Total number of adds handled by workqueue
            depth [BETA] Current depth of workqueue
            longest_running_processor_seconds [BETA] How many seconds has the longest running processor for workqueue been running.
            queue_duration_seconds [BETA] How long in seconds an item stays in workqueue before being requested.
            retries_total [BETA] Total number of retries handled by workqueue
            unfinished_work_seconds [BETA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.
            work_duration_seconds [BETA] How long in seconds processing an item from workqueue takes.
        "#]]
        .assert_eq(&texts);
    }

    #[tokio::test(start_paused = true)]
    async fn counts_as_client_go_does() {
        let metrics = QueueMetrics::default();
        let queue = Queue::named("loop", Arc::new(SystemClock), &metrics);
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let page = || {
            let page = kaji_exposition::encode(&registry);
            let wanted =
                |l: &&str| l.contains("name=\"loop\"") && !l.contains("_bucket") && !l.contains("_sum");
            let lines = page
                .lines()
                .filter(wanted)
                .map(|l| l.replace("workqueue_", "").replace("{name=\"loop\"}", ""));
            lines.collect::<Vec<_>>().join(", ")
        };
        let key = |name: &str| Key::new("", name);
        for name in ["a", "a", "b"] {
            queue.add(key(name));
        }
        let a = queue.next().await.unwrap();
        // Added while it is processed: it counts, once.
        queue.add(a.clone());
        queue.add(a.clone());
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(
            page(),
            "adds_total 3, depth 2, longest_running_processor_seconds 3, queue_duration_seconds_count 1, \
             retries_total 0, unfinished_work_seconds 3, work_duration_seconds_count 0"
        );
        queue.done_after(&a, Duration::from_secs(1));
        queue.retry(key("c"));
        queue.add_after(key("d"), Duration::from_secs(9));
        assert_eq!(
            page(),
            "adds_total 3, depth 2, longest_running_processor_seconds 0, queue_duration_seconds_count 1, \
             retries_total 2, unfinished_work_seconds 0, work_duration_seconds_count 1"
        );
        for _ in 0..3 {
            let next = queue.next().await.unwrap();
            queue.done(&next);
        }
        let last = page();
        for wanted in
            ["adds_total 4, depth 0, ", "queue_duration_seconds_count 4", "work_duration_seconds_count 4"]
        {
            assert!(last.contains(wanted), "{last}");
        }
        drop(queue);
        assert!(!page().contains("unfinished"));
    }
}

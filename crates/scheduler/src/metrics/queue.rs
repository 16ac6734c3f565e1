//! The scheduling queue: which queue pods come into and because of what, what keeps unschedulable ones out, and what is kept of events.
//!
//! Invariant: a pod counts as unschedulable for a plugin from its rejection until it is tried again or is gone, once.
//!
//! Source: upstream's `backend/queue`, `framework/events.go`, `eventhandlers.go`.

use crate::framework::EventName;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::{collections::BTreeMap, time::Duration};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    queue: &'static str,
    event: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PluginLabels {
    plugin: &'static str,
    profile: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EventLabels {
    event: EventName,
}

/// A queue of pods, by upstream's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// To be scheduled.
    Active,
    /// To be scheduled after a while.
    Backoff,
    /// To be scheduled after an event; those that a plugin keeps out of the queue, too.
    Unschedulable,
}

/// The metrics. Clones share the numbers.
#[derive(Clone)]
pub struct QueueMetrics {
    incoming: Family<Labels, Counter>,
    unschedulable: Family<PluginLabels, Gauge>,
    in_flight: Family<EventLabels, Gauge>,
    handling: Family<EventLabels, Histogram, fn() -> Histogram>,
}

/// Upstream's exponential buckets from 0.1 ms to 0.2 s.
fn seconds() -> Histogram {
    Histogram::new((0..12).map(|power| 0.0001 * f64::from(1_u32 << power)))
}

impl Default for QueueMetrics {
    fn default() -> Self {
        QueueMetrics {
            incoming: Family::default(),
            unschedulable: Family::default(),
            in_flight: Family::default(),
            handling: Family::new_with_constructor(seconds as fn() -> Histogram),
        }
    }
}

impl QueueMetrics {
    /// Adds them to a registry that has the prefix already.
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "[STABLE] Number of pods added to scheduling queues by event and queue type.";
        registry.register("queue_incoming_pods_total", help, self.incoming.clone());
        let help = "[BETA] The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins that caused it to not schedule and so this metric have meaning only when broken down by plugin.";
        registry.register("unschedulable_pods", help, self.unschedulable.clone());
        let help = "[ALPHA] Number of events currently tracked in the scheduling queue.";
        registry.register("inflight_events", help, self.in_flight.clone());
        let help = "[ALPHA] Event handling latency in seconds.";
        registry.register("event_handling_duration_seconds", help, self.handling.clone());
    }

    /// A queue begins: it holds nothing of what a former one held.
    pub fn begin(&self) {
        self.unschedulable.clear();
        self.in_flight.clear();
    }

    /// A pod came into a queue.
    pub fn count(&self, queue: Queue, event: &str) {
        let queue = match queue {
            Queue::Active => "active",
            Queue::Backoff => "backoff",
            Queue::Unschedulable => "unschedulable",
        };
        self.incoming.get_or_create(&Labels { queue, event: event.to_owned() }).inc();
    }

    /// A plugin keeps so many pods more, or less, from being scheduled.
    pub fn rejected_by(&self, plugin: &'static str, profile: &str, pods: i64) {
        let labels = PluginLabels { plugin, profile: profile.to_owned() };
        self.unschedulable.get_or_create(&labels).inc_by(pods);
    }

    /// So many events are kept for pods in flight.
    pub fn in_flight(&self, events: &BTreeMap<EventName, i64>) {
        for (event, count) in events {
            self.in_flight.get_or_create(&EventLabels { event: *event }).set(*count);
        }
    }

    /// An event was handled: cache and queue know of it.
    pub fn handled(&self, event: EventName, took: Duration) {
        self.handling.get_or_create(&EventLabels { event }).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
impl QueueMetrics {
    /// The series of a family as text.
    pub fn shown(&self, family: &str) -> String {
        let mut registry = Registry::default();
        self.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        let lines = page.lines().filter_map(|line| line.strip_prefix(family));
        lines.collect::<Vec<_>>().join("\n")
    }
}

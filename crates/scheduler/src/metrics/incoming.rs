//! Which queue pods come into, and because of what.
//!
//! Source: upstream's `backend/queue`, `framework/events.go`.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    queue: &'static str,
    event: String,
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

/// The metric. Clones share the numbers.
#[derive(Clone, Default)]
pub struct IncomingPods(Family<Labels, Counter>);

impl IncomingPods {
    /// Adds it to a registry that has the prefix already.
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "[STABLE] Number of pods added to scheduling queues by event and queue type.";
        registry.register("queue_incoming_pods_total", help, self.0.clone());
    }

    /// A pod came into a queue.
    pub fn count(&self, queue: Queue, event: &str) {
        let queue = match queue {
            Queue::Active => "active",
            Queue::Backoff => "backoff",
            Queue::Unschedulable => "unschedulable",
        };
        self.0.get_or_create(&Labels { queue, event: event.to_owned() }).inc();
    }
}

#[cfg(test)]
impl IncomingPods {
    /// The series as text.
    pub fn shown(&self) -> String {
        let mut registry = Registry::default();
        self.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        let lines = page.lines().filter_map(|line| line.strip_prefix("queue_incoming_pods_total"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

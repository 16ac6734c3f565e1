//! How many pods of a set each node has, kept up to date pod by pod.
//!
//! Spreading and affinity ask for the same sets again and again: a count over all pods is made when a set is first asked for,
//! then each added or removed pod changes one number.
//!
//! Invariant: a counter equals the number of matching pods of each node, by the node's slot. At most [`COUNTERS`] are kept; the
//! one that was asked for the longest ago is dropped first.

use crate::{matcher::PodMatcher, pod_info::PodInfo};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// Counters that are kept.
const COUNTERS: usize = 256;

/// Numbers of pods by the slot of their node. Slots beyond the end have none.
pub type Counts = Arc<Vec<u32>>;

struct Counter {
    namespaces: Option<BTreeSet<String>>,
    counts: Counts,
    used: u64,
}

/// The counters.
#[derive(Default)]
pub struct Counters {
    counters: HashMap<PodMatcher, Counter>,
    requests: u64,
}

impl Counters {
    /// The counts of a set, made by `count` if it is not among the counters.
    pub fn get(&mut self, matcher: &PodMatcher, count: impl FnOnce() -> Vec<u32>) -> Counts {
        self.requests += 1;
        if let Some(counter) = self.counters.get_mut(matcher) {
            counter.used = self.requests;
            return counter.counts.clone();
        }
        if self.counters.len() >= COUNTERS {
            let oldest = self.counters.iter().min_by_key(|(_, c)| c.used).map(|(m, _)| m.clone());
            oldest.map(|oldest| self.counters.remove(&oldest));
        }
        let counts = Arc::new(count());
        let counter =
            Counter { namespaces: matcher.namespaces(), counts: counts.clone(), used: self.requests };
        self.counters.insert(matcher.clone(), counter);
        counts
    }

    /// A pod came to a node.
    pub fn add(&mut self, pod: &PodInfo, slot: usize) {
        self.change(pod, |counts| {
            if counts.len() <= slot {
                counts.resize(slot + 1, 0);
            }
            counts[slot] += 1;
        });
    }

    /// A pod left a node.
    pub fn remove(&mut self, pod: &PodInfo, slot: usize) {
        self.change(pod, |counts| {
            if let Some(count) = counts.get_mut(slot) {
                *count = count.saturating_sub(1);
            }
        });
    }

    fn change(&mut self, pod: &PodInfo, change: impl Fn(&mut Vec<u32>)) {
        for (matcher, counter) in &mut self.counters {
            let concerned = counter.namespaces.as_ref().is_none_or(|n| n.contains(pod.namespace()));
            if concerned && matcher.matches(&pod.pod) {
                change(Arc::make_mut(&mut counter.counts));
            }
        }
    }
}

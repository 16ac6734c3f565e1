//! The order of candidates (nodes with their victims), the order of pods by importance, and pods divided by disruption budgets.

use crate::{pod_info::PodInfo, snapshot::NodeInfo};
use jiff::Timestamp;
use kaji_runtime::{ObjectSnapshot as Objects, objects::PodDisruptionBudget};
use std::{
    cmp::{Ordering, Reverse},
    collections::HashMap,
    sync::Arc,
};

/// A node, and the pods to delete on it, the most important first.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The node.
    pub node: Arc<NodeInfo>,
    /// The victims; at least one.
    pub victims: Vec<Arc<PodInfo>>,
    /// How many of them violate a budget.
    pub violations: usize,
}

/// When a pod began to run; one that has not begun began last.
fn started(pod: &PodInfo) -> Timestamp {
    pod.pod.status.start_time.unwrap_or(Timestamp::MAX)
}

/// Higher priority first, then the longer time of running.
pub fn more_important(a: &PodInfo, b: &PodInfo) -> Ordering {
    b.priority().cmp(&a.priority()).then(started(a).cmp(&started(b)))
}

/// The candidate with the fewest violations of budgets, then the lowest priority of its first victim, the lowest sum of
/// priorities, the fewest victims, the shortest time of running of the most important victims.
pub fn best(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(|candidate| {
        let victims = &candidate.victims;
        let highest = victims.iter().map(|v| v.priority()).max().unwrap_or_default();
        // Above all priorities: several victims with negative ones are not better than one.
        let sum: i64 = victims.iter().map(|v| v.priority() + (1_i64 << 31)).sum();
        let earliest = victims.iter().filter(|v| v.priority() == highest).map(|v| started(v)).min();
        (candidate.violations, highest, sum, victims.len(), Reverse(earliest))
    })
}

/// Divides pods, in order, into those of which the deletion violates a budget and the others.
pub fn split_by_budgets(
    pods: Vec<Arc<PodInfo>>,
    budgets: &Objects<PodDisruptionBudget>,
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut left: HashMap<(String, String), i64> = HashMap::new();
    let violates = |pod: &Arc<PodInfo>| {
        let meta = &pod.pod.metadata;
        if meta.labels.is_empty() {
            return false;
        }
        for budget in budgets.in_namespace(&meta.namespace) {
            let selector = &budget.spec.selector;
            let selected = !selector.parsed.is_everything() && selector.matches(&meta.labels);
            // The API server has counted those already that it has allowed to evict.
            if !selected || budget.status.disrupted_pods.contains_key(&meta.name) {
                continue;
            }
            let key = (meta.namespace.clone(), budget.metadata.name.clone());
            let allowed = left.entry(key).or_insert(budget.status.disruptions_allowed);
            *allowed -= 1;
            // The first violation says enough, and takes nothing from other budgets.
            if *allowed < 0 {
                return true;
            }
        }
        false
    };
    pods.into_iter().partition({
        let mut violates = violates;
        move |pod| violates(pod)
    })
}

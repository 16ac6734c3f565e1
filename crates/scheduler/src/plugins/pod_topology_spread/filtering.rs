//! `DoNotSchedule`: a node is rejected if its domain would have more pods than the least of all domains by more than the skew.
//!
//! Source: KEP-895; upstream's criterion is: matching pods + 1 if the pod counts itself - global minimum <= maxSkew.

use super::{Constraint, PodTopologySpread};
use crate::{
    framework::{Cycle, CycleState, Filter, Outcome, PreFilter, PreFiltered, Status},
    pod_info::PodInfo,
    snapshot::{Domains, NodeInfo},
};
use std::sync::Arc;

const SKEW: &str = "node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

/// A constraint with the numbers of pods in its domains.
#[derive(Clone)]
struct Counted {
    constraint: Constraint,
    domains: Arc<Domains>,
    /// By domain; `None` where no node takes part.
    counts: Vec<Option<i64>>,
    /// Whether the pod counts itself.
    itself: i64,
    /// The least count of all domains, 0 with too few domains.
    least: i64,
}

impl Counted {
    fn update_least(&mut self) {
        let taking_part = self.counts.iter().flatten();
        let enough = taking_part.clone().count() >= self.constraint.spread.min_domains;
        self.least = match enough {
            true => taking_part.min().copied().unwrap_or(i64::MAX / 2),
            false => 0,
        };
    }
}

/// What pre-filtering leaves to filtering.
#[derive(Clone)]
struct Counts(Vec<Counted>);

impl Counts {
    fn change(&mut self, cycle: &Cycle<'_>, changed: &PodInfo, node: &NodeInfo, by: i64) {
        if changed.namespace() != cycle.pod.namespace()
            || self.0.iter().any(|counted| counted.domains.of(node.slot).is_none())
        {
            return;
        }
        for counted in &mut self.0 {
            if !counted.constraint.matcher(&cycle.pod.pod).matches(&changed.pod)
                || !counted.constraint.includes(cycle.pod, node)
            {
                continue;
            }
            let domain = counted.domains.of(node.slot);
            if let Some(count) = domain.and_then(|domain| counted.counts.get_mut(domain)) {
                *count = Some(count.unwrap_or_default() + by);
            }
            counted.update_least();
        }
    }
}

/// The pods in each domain in which some node takes part.
fn counts(
    cycle: &Cycle<'_>,
    constraint: &Constraint,
    domains: &Domains,
    columns: &[Arc<Domains>],
) -> Vec<Option<i64>> {
    let numbers = cycle.snapshot.count(&constraint.matcher(&cycle.pod.pod));
    let all = constraint.includes_all(cycle.pod);
    if all && columns.iter().all(|column| column.is_complete()) {
        return domains.sum(&numbers).into_iter().map(Some).collect();
    }
    let mut counts: Vec<Option<i64>> = vec![None; domains.len()];
    for slot in 0..domains.by_slot().len() {
        let Some(domain) = domains.of(slot) else { continue };
        let included = || {
            let node = cycle.snapshot.by_slot(slot);
            node.is_some_and(|node| constraint.includes(cycle.pod, node))
        };
        if columns.iter().all(|column| column.of(slot).is_some()) && (all || included()) {
            let pods = i64::from(numbers.get(slot).copied().unwrap_or_default());
            *counts[domain].get_or_insert_default() += pods;
        }
    }
    counts
}

impl PreFilter for PodTopologySpread {
    fn pre_filter(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<PreFiltered> {
        let constraints = self.constraints(cycle, true);
        if constraints.is_empty() {
            return Ok(PreFiltered::Skip);
        }
        let columns: Vec<Arc<Domains>> =
            constraints.iter().map(|c| cycle.snapshot.domains(&c.spread.topology_key)).collect();
        let counted = constraints.into_iter().zip(&columns).map(|(constraint, domains)| {
            let counts = counts(cycle, &constraint, domains, &columns);
            let itself = i64::from(constraint.selects(&cycle.pod.pod));
            let mut counted = Counted { constraint, domains: domains.clone(), counts, itself, least: 0 };
            counted.update_least();
            counted
        });
        state.put(Counts(counted.collect()));
        Ok(PreFiltered::AllNodes)
    }

    fn add_pod(&self, cycle: &Cycle<'_>, state: &mut CycleState, added: &PodInfo, node: &NodeInfo) {
        if let Some(counts) = state.get_mut::<Counts>() {
            counts.change(cycle, added, node, 1);
        }
    }

    fn remove_pod(&self, cycle: &Cycle<'_>, state: &mut CycleState, removed: &PodInfo, node: &NodeInfo) {
        if let Some(counts) = state.get_mut::<Counts>() {
            counts.change(cycle, removed, node, -1);
        }
    }
}

impl Filter for PodTopologySpread {
    fn filter(&self, _cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        let counts = state.get::<Counts>().ok_or_else(Status::missing_state)?;
        for counted in &counts.0 {
            let Some(domain) = counted.domains.of(node.slot) else {
                return Err(Status::unresolvable(NO_LABEL));
            };
            let pods = counted.counts.get(domain).copied().flatten().unwrap_or_default();
            if pods + counted.itself - counted.least > counted.constraint.spread.max_skew {
                return Err(Status::unschedulable(SKEW));
            }
        }
        Ok(())
    }
}

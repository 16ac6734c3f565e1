//! Required terms: those of the pod, and the anti-affinity of pods that are placed already.
//!
//! Invariant: a pod that would be the first of those that its affinity selects, itself among them, is not held up by it.

use super::{ByDomain, InterPodAffinity, matcher, namespace_labels};
use crate::{
    framework::{Cycle, CycleState, Filter, Outcome, PreFilter, PreFiltered, Status},
    matcher::PodMatcher,
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use kaji_runtime::objects::Namespace;
use std::{collections::BTreeMap, sync::Arc};

const EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";
const AFFINITY: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";

/// Numbers of pods by domain.
#[derive(Clone)]
struct Terms {
    namespace: Arc<Namespace>,
    /// By topology key: placed pods with anti-affinity to the pod.
    existing: BTreeMap<Box<str>, ByDomain>,
    /// By each term of the pod's affinity: the pods that all of its terms select.
    affinity: Vec<ByDomain>,
    affinity_pods: PodMatcher,
    /// By each term of the pod's anti-affinity.
    anti: Vec<(PodMatcher, ByDomain)>,
}

impl Terms {
    fn change(&mut self, cycle: &Cycle<'_>, changed: &PodInfo, node: &NodeInfo, by: i64) {
        let labels = &self.namespace.metadata.labels;
        for term in changed.affinity.iter().flat_map(|a| &a.required_anti) {
            if term.matches(&cycle.pod.pod, labels) {
                let key = term.topology_key.clone();
                let new = || ByDomain::new(cycle.snapshot, &term.topology_key);
                self.existing.entry(key).or_insert_with(new).add(node.slot, by);
            }
        }
        if self.affinity_pods.matches(&changed.pod) {
            self.affinity.iter_mut().for_each(|term| term.add(node.slot, by));
        }
        for (pods, term) in &mut self.anti {
            if pods.matches(&changed.pod) {
                term.add(node.slot, by);
            }
        }
    }

    fn satisfies_affinity(&self, cycle: &Cycle<'_>, node: &NodeInfo) -> bool {
        let mut pods_there = true;
        for term in &self.affinity {
            match term.of(node.slot) {
                None => return false,
                Some(pods) => pods_there &= pods > 0,
            }
        }
        pods_there
            || (self.affinity.iter().all(ByDomain::is_zero) && self.affinity_pods.matches(&cycle.pod.pod))
    }
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<PreFiltered> {
        let own = cycle.pod.affinity.as_deref();
        let required = own.map_or(&[][..], |a| &a.required);
        let required_anti = own.map_or(&[][..], |a| &a.required_anti);
        let mut groups =
            cycle.snapshot.affinity_groups().filter(|g| !g.affinity.required_anti.is_empty()).peekable();
        if required.is_empty() && required_anti.is_empty() && groups.peek().is_none() {
            return Ok(PreFiltered::Skip);
        }
        let namespace = namespace_labels(cycle);
        let mut existing: BTreeMap<Box<str>, ByDomain> = BTreeMap::new();
        for group in groups {
            for term in &group.affinity.required_anti {
                if term.matches(&cycle.pod.pod, &namespace.metadata.labels) {
                    let new = || ByDomain::new(cycle.snapshot, &term.topology_key);
                    existing.entry(term.topology_key.clone()).or_insert_with(new).add_all(&group.counts, 1);
                }
            }
        }
        if existing.is_empty() && required.is_empty() && required_anti.is_empty() {
            return Ok(PreFiltered::Skip);
        }
        let count = |pods: &PodMatcher, key: &str| {
            let mut numbers = ByDomain::new(cycle.snapshot, key);
            numbers.add_all(&cycle.snapshot.count(pods), 1);
            numbers
        };
        let affinity_pods = matcher(cycle, required.iter());
        let affinity = required.iter().map(|term| count(&affinity_pods, &term.topology_key)).collect();
        let anti = required_anti.iter().map(|term| {
            let pods = matcher(cycle, std::iter::once(term));
            let numbers = count(&pods, &term.topology_key);
            (pods, numbers)
        });
        let anti = anti.collect();
        state.put(Terms { namespace, existing, affinity, affinity_pods, anti });
        Ok(PreFiltered::AllNodes)
    }

    fn add_pod(&self, cycle: &Cycle<'_>, state: &mut CycleState, added: &PodInfo, node: &NodeInfo) {
        if let Some(terms) = state.get_mut::<Terms>() {
            terms.change(cycle, added, node, 1);
        }
    }

    fn remove_pod(&self, cycle: &Cycle<'_>, state: &mut CycleState, removed: &PodInfo, node: &NodeInfo) {
        if let Some(terms) = state.get_mut::<Terms>() {
            terms.change(cycle, removed, node, -1);
        }
    }
}

impl Filter for InterPodAffinity {
    fn filter(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        let terms = state.get::<Terms>().ok_or_else(Status::missing_state)?;
        let any = |numbers: &ByDomain| numbers.of(node.slot).is_some_and(|pods| pods > 0);
        if !terms.affinity.is_empty() && !terms.satisfies_affinity(cycle, node) {
            return Err(Status::unresolvable(AFFINITY));
        }
        if terms.anti.iter().any(|(_, numbers)| any(numbers)) {
            return Err(Status::unschedulable(ANTI_AFFINITY));
        }
        if terms.existing.values().any(any) {
            return Err(Status::unschedulable(EXISTING));
        }
        Ok(())
    }
}

//! Preferred terms: those of the pod, and those of pods that are placed already; and required affinity of those.

use super::{ByDomain, InterPodAffinity, matcher, namespace_labels};
use crate::{
    affinity::AffinityTerm,
    framework::{Cycle, CycleState, Outcome, PreScore, PreScored, Score, points::MAX_SCORE},
    snapshot::NodeInfo,
};
use std::{collections::BTreeMap, sync::Arc};

/// Sums of weights by topology key and domain.
#[derive(Clone, Default)]
struct Weights(BTreeMap<Box<str>, ByDomain>);

impl Weights {
    fn add(&mut self, cycle: &Cycle<'_>, term: &AffinityTerm, counts: &[u32], weight: i64) {
        if weight == 0 || counts.iter().all(|count| *count == 0) {
            return;
        }
        let new = || ByDomain::new(cycle.snapshot, &term.topology_key);
        self.0.entry(term.topology_key.clone()).or_insert_with(new).add_all(counts, weight);
    }
}

impl PreScore for InterPodAffinity {
    fn pre_score(
        &self,
        cycle: &Cycle<'_>,
        state: &mut CycleState,
        _nodes: &[Arc<NodeInfo>],
    ) -> Outcome<PreScored> {
        let own = cycle.pod.affinity.as_deref();
        let preferred = own.map_or(&[][..], |a| &a.preferred);
        let preferred_anti = own.map_or(&[][..], |a| &a.preferred_anti);
        let none = preferred.is_empty() && preferred_anti.is_empty();
        let mut groups = cycle.snapshot.affinity_groups().peekable();
        if none && (self.ignore_preferred_of_others || groups.peek().is_none()) {
            return Ok(PreScored::Skip);
        }
        let mut weights = Weights::default();
        let own = preferred.iter().map(|(weight, term)| (*weight, term));
        let own = own.chain(preferred_anti.iter().map(|(weight, term)| (-weight, term)));
        for (weight, term) in own {
            let counts = cycle.snapshot.count(&matcher(cycle, std::iter::once(term)));
            weights.add(cycle, term, &counts, weight);
        }
        let namespace = namespace_labels(cycle);
        for group in groups {
            let affinity = &group.affinity;
            let required = affinity.required.iter().map(|term| (self.hard_weight, term));
            let preferred = affinity.preferred.iter().map(|(weight, term)| (*weight, term));
            let anti = affinity.preferred_anti.iter().map(|(weight, term)| (-weight, term));
            for (weight, term) in required.chain(preferred).chain(anti) {
                if term.matches(&cycle.pod.pod, &namespace.metadata.labels) {
                    weights.add(cycle, term, &group.counts, weight);
                }
            }
        }
        if weights.0.is_empty() {
            return Ok(PreScored::Skip);
        }
        state.put(weights);
        Ok(PreScored::Scored)
    }
}

impl Score for InterPodAffinity {
    fn score(&self, _cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> i64 {
        let weights = state.get::<Weights>().into_iter().flat_map(|weights| weights.0.values());
        weights.filter_map(|by_domain| by_domain.of(node.slot)).sum()
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "sums of weights are small, and shares of them are rounded as upstream's"
    )]
    fn normalize(
        &self,
        _cycle: &Cycle<'_>,
        _state: &CycleState,
        _nodes: &[Arc<NodeInfo>],
        scores: &mut [i64],
    ) {
        let (least, most) = (
            scores.iter().min().copied().unwrap_or_default(),
            scores.iter().max().copied().unwrap_or_default(),
        );
        for score in scores {
            *score = match most - least {
                0 => 0,
                range => (MAX_SCORE as f64 * ((*score - least) as f64 / range as f64)) as i64,
            };
        }
    }
}

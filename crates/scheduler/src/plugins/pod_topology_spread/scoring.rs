//! `ScheduleAnyway`: nodes in domains with fewer pods are better. A key with more domains weighs more, so that the small counts
//! of many nodes are not drowned by the large ones of few zones.

use super::{Constraint, HOSTNAME, PodTopologySpread};
use crate::{
    framework::{Cycle, CycleState, Outcome, PreScore, PreScored, Score, points::MAX_SCORE},
    snapshot::{Counts, Domains, NodeInfo},
};
use std::{collections::HashSet, sync::Arc};

#[derive(Clone)]
enum Numbers {
    /// By the slots of nodes: the node is its own domain.
    Nodes(Counts),
    /// By domain.
    Domains(Arc<Vec<i64>>),
}

#[derive(Clone)]
struct Counted {
    domains: Arc<Domains>,
    numbers: Numbers,
    max_skew: i64,
    weight: f64,
}

/// What pre-scoring leaves to scoring.
#[derive(Clone)]
struct Spread {
    counted: Vec<Counted>,
    /// Nodes that lack a topology key, by slot.
    ignored: HashSet<usize>,
}

impl PodTopologySpread {
    fn counted(
        &self,
        cycle: &Cycle<'_>,
        constraint: &Constraint,
        columns: Option<&[Arc<Domains>]>,
        scored: &[&Arc<NodeInfo>],
    ) -> Counted {
        let domains = cycle.snapshot.domains(&constraint.spread.topology_key);
        let counts = cycle.snapshot.count(&constraint.matcher(&cycle.pod.pod));
        let (numbers, size) = if &*constraint.spread.topology_key == HOSTNAME {
            (Numbers::Nodes(counts), scored.len())
        } else {
            let all = constraint.includes_all(cycle.pod);
            let complete = columns.is_none_or(|columns| columns.iter().all(|column| column.is_complete()));
            let sums = if all && complete {
                domains.sum(&counts)
            } else {
                let mut sums = vec![0; domains.len()];
                for node in cycle.snapshot.nodes() {
                    let Some(domain) = domains.of(node.slot) else { continue };
                    let complete = columns.is_none_or(|c| c.iter().all(|c| c.of(node.slot).is_some()));
                    if complete && (all || constraint.includes(cycle.pod, node)) {
                        sums[domain] += i64::from(counts.get(node.slot).copied().unwrap_or_default());
                    }
                }
                sums
            };
            // Nodes without the label count as one more domain, as upstream has it.
            let mut seen = vec![false; domains.len() + 1];
            scored.iter().for_each(|node| seen[domains.of(node.slot).unwrap_or(domains.len())] = true);
            (Numbers::Domains(Arc::new(sums)), seen.into_iter().filter(|seen| *seen).count())
        };
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        Counted {
            domains,
            numbers,
            max_skew: constraint.spread.max_skew,
            weight: (f64::from(size) + 2.0).ln(),
        }
    }
}

impl PreScore for PodTopologySpread {
    fn pre_score(
        &self,
        cycle: &Cycle<'_>,
        state: &mut CycleState,
        nodes: &[Arc<NodeInfo>],
    ) -> Outcome<PreScored> {
        let constraints = self.constraints(cycle, false);
        if constraints.is_empty() {
            return Ok(PreScored::Skip);
        }
        let require_all = !cycle.pod.spread.is_empty() || !self.system_defaults;
        let columns: Option<Vec<Arc<Domains>>> = require_all
            .then(|| constraints.iter().map(|c| cycle.snapshot.domains(&c.spread.topology_key)).collect());
        let complete = |node: &Arc<NodeInfo>| {
            columns.as_ref().is_none_or(|columns| columns.iter().all(|c| c.of(node.slot).is_some()))
        };
        let (scored, ignored): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| complete(node));
        let counted = constraints.iter().map(|c| self.counted(cycle, c, columns.as_deref(), &scored));
        let counted = counted.collect();
        state.put(Spread { counted, ignored: ignored.into_iter().map(|node| node.slot).collect() });
        Ok(PreScored::Scored)
    }
}

impl Score for PodTopologySpread {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "numbers of pods are small"
    )]
    fn score(&self, _cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> i64 {
        let Some(spread) = state.get::<Spread>().filter(|s| !s.ignored.contains(&node.slot)) else {
            return 0;
        };
        let mut score = 0.0;
        for counted in &spread.counted {
            let Some(domain) = counted.domains.of(node.slot) else { continue };
            let pods = match &counted.numbers {
                Numbers::Nodes(counts) => i64::from(counts.get(node.slot).copied().unwrap_or_default()),
                Numbers::Domains(sums) => sums.get(domain).copied().unwrap_or_default(),
            };
            score += pods as f64 * counted.weight + (counted.max_skew - 1) as f64;
        }
        score.round() as i64
    }

    fn normalize(&self, _cycle: &Cycle<'_>, state: &CycleState, nodes: &[Arc<NodeInfo>], scores: &mut [i64]) {
        let Some(spread) = state.get::<Spread>() else { return };
        let ignored = |node: &NodeInfo| spread.ignored.contains(&node.slot);
        let counted = || nodes.iter().zip(scores.iter()).filter(|(node, _)| !ignored(node)).map(|(_, s)| *s);
        let (least, most) = (counted().min().unwrap_or_default(), counted().max().unwrap_or_default());
        for (score, node) in scores.iter_mut().zip(nodes) {
            *score = match most {
                _ if ignored(node) => 0,
                0 => MAX_SCORE,
                most => MAX_SCORE * (most + least - *score) / most,
            };
        }
    }
}

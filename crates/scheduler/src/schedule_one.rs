//! One scheduling decision: filter the nodes that a pod can run on, score them, choose the best; make room if there is none.
//! Wording is upstream's (`FitError`).
//!
//! Invariant: the decision is pure; it depends on the cycle, the profile and the place to start from alone. What is remembered of
//! former decisions makes it faster, not another one.

use crate::{
    framework::{
        Code, Cycle, CycleState, NodeStatuses, Nomination, Outcome, Profile, Status, profile::Prepared,
    },
    memory::{Class, Memory},
    metrics::Point,
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use kaji_decisions::Rejection;
use kaji_runtime::Write;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// No node at all.
pub const NO_NODES: &str = "no nodes available to schedule pods";

/// The outcome for a pod.
pub enum Decision {
    /// Bind it to this node.
    Bind(Chosen),
    /// No node fits.
    Unschedulable(Unschedulable),
    /// A plugin failed.
    Failed(Status),
}

/// The chosen node.
pub struct Chosen {
    /// Its name.
    pub node: String,
    /// What plugins keep for binding.
    pub state: CycleState,
    /// Nodes that were filtered.
    pub evaluated: usize,
}

/// Why no node fits.
#[derive(Debug)]
pub struct Unschedulable {
    /// Upstream's sentence.
    pub message: String,
    /// What nodes were rejected for.
    pub rejections: Vec<Rejection>,
    /// The plugins that rejected nodes, or the pod.
    pub plugins: BTreeSet<&'static str>,
    /// Those of them that wait for something.
    pub pending: BTreeSet<&'static str>,
    /// What becomes of the pod's nominated node.
    pub nomination: Nomination,
    /// Pods that are to be deleted to make room.
    pub victims: Vec<Arc<PodInfo>>,
    /// What is to be written, in order, before the pod is tried again.
    pub writes: Vec<Write>,
}

impl Unschedulable {
    /// With a message only.
    pub fn new(message: impl Into<String>) -> Self {
        Unschedulable {
            message: message.into(),
            rejections: vec![],
            plugins: BTreeSet::new(),
            pending: BTreeSet::new(),
            nomination: Nomination::Keep,
            victims: vec![],
            writes: vec![],
        }
    }

    fn note(&mut self, status: &Status) {
        if status.plugin.is_empty() {
            return;
        }
        let set = if status.code == Code::Pending { &mut self.pending } else { &mut self.plugins };
        set.insert(status.plugin);
    }
}

/// Decides, with what former decisions have left.
pub fn schedule_pod(profile: &Profile, cycle: &Cycle<'_>, memory: &mut Memory) -> Decision {
    if cycle.snapshot.is_empty() {
        return Decision::Unschedulable(Unschedulable::new(NO_NODES));
    }
    let mut state = CycleState::default();
    let prepared = match profile.pre_filter(cycle, &mut state) {
        Ok(prepared) => prepared,
        Err(status) if status.is_rejection() => return rejected(profile, cycle, &state, status),
        Err(status) => return Decision::Failed(status),
    };
    let mut statuses = NodeStatuses::of_all(prepared.others());
    let (class, start) = memory.of(cycle.pod);
    let filtered = profile.meter.timed(Point::Filter, || {
        feasible_nodes(profile, cycle, &state, &prepared, &mut statuses, (&mut *class, start))
    });
    let (feasible, evaluated) = match filtered {
        Ok(found) => found,
        Err(status) => return Decision::Failed(status),
    };
    match feasible.as_slice() {
        [] => no_fit(profile, cycle, &state, statuses, &prepared.plugins),
        [only] => {
            let node = only.name().to_owned();
            Decision::Bind(Chosen { node, state, evaluated })
        }
        _ => match profile.score(cycle, &mut state, &feasible, class) {
            Ok(scores) => {
                let scored: Vec<_> = scores.into_iter().zip(feasible).collect();
                let node = best(cycle, &scored).map_or_else(String::new, |n| n.name().to_owned());
                Decision::Bind(Chosen { node, state, evaluated })
            }
            Err(status) => Decision::Failed(status),
        },
    }
}

/// The node with the highest score; the n-th equal one replaces the others with probability 1/n.
fn best<'a>(cycle: &Cycle<'_>, scored: &'a [(i64, Arc<NodeInfo>)]) -> Option<&'a Arc<NodeInfo>> {
    let highest = scored.iter().map(|(score, _)| *score).max()?;
    let mut equals = 0;
    let mut best = None;
    for (_, node) in scored.iter().filter(|(score, _)| *score == highest) {
        equals += 1;
        if equals == 1 || cycle.random.u64().is_multiple_of(equals) {
            best = Some(node);
        }
    }
    best
}

/// The nodes that pass the filters: the nominated one alone if it does, else enough of all. And how many were filtered.
fn feasible_nodes(
    profile: &Profile,
    cycle: &Cycle<'_>,
    state: &CycleState,
    prepared: &Prepared,
    statuses: &mut NodeStatuses,
    (class, start): (&mut Class, &mut usize),
) -> Outcome<(Vec<Arc<NodeInfo>>, usize)> {
    let nominated = cycle.pod.pod.status.nominated_node_name.as_str();
    let nominated = cycle.nominator.node_of(cycle.pod.uid()).unwrap_or(nominated);
    if !nominated.is_empty()
        && let Some(node) = cycle.snapshot.node(nominated)
        && prepared.nodes.as_ref().is_none_or(|names| names.contains(nominated))
        && profile.filter_with_nominated(cycle, state, node).is_ok()
    {
        return Ok((vec![node.clone()], 1));
    }
    let candidates = prepared.candidates(cycle.snapshot, *start);
    let enough = profile.nodes_to_find(candidates.len());
    let (mut feasible, mut rejected) = (Vec::with_capacity(enough), 0);
    for place in 0..candidates.len() {
        let Some(node) = candidates.nth(place) else { continue };
        match profile.filter_known(cycle, state, node, class) {
            Ok(()) => feasible.push(node.clone()),
            Err(status) if status.is_rejection() => {
                rejected += 1;
                // Why other nodes do not fit is of no interest once one does.
                if feasible.is_empty() {
                    statuses.set(node.slot, status);
                }
            }
            Err(status) => return Err(status),
        }
        if feasible.len() >= enough {
            break;
        }
    }
    let evaluated = feasible.len() + rejected;
    *start = (*start + evaluated) % cycle.snapshot.len();
    Ok((feasible, evaluated))
}

/// A pre-filter rejected the pod: every node has its status.
fn rejected(profile: &Profile, cycle: &Cycle<'_>, state: &CycleState, status: Status) -> Decision {
    let nodes = cycle.snapshot.len();
    let message = format!("0/{nodes} nodes are available: {}.", status.message());
    let mut result = Unschedulable::new(message);
    result.note(&status);
    result.rejections = status.reasons.iter().map(|reason| of_all(&status, reason, nodes)).collect();
    let statuses = NodeStatuses::of_all(Some(status));
    make_room(profile, cycle, state, &statuses, result)
}

/// Every node was rejected.
fn no_fit(
    profile: &Profile,
    cycle: &Cycle<'_>,
    state: &CycleState,
    statuses: NodeStatuses,
    pre_filters: &BTreeSet<&'static str>,
) -> Decision {
    let mut result = Unschedulable::new(statuses.message(cycle.snapshot.len()));
    result.plugins.extend(pre_filters);
    statuses.named().iter().for_each(|(_, status)| result.note(status));
    result.rejections = rejections(cycle, &statuses);
    make_room(profile, cycle, state, &statuses, result)
}

/// Nodes that are named for one reason.
const NAMED: usize = 5;

/// Every node was rejected for a reason.
fn of_all(status: &Status, reason: &str, nodes: usize) -> Rejection {
    let (plugin, reason) = (status.plugin.to_owned(), reason.to_owned());
    Rejection { plugin, reason, count: nodes, nodes: vec![] }
}

/// What the nodes were rejected for, by plugin and reason.
fn rejections(cycle: &Cycle<'_>, statuses: &NodeStatuses) -> Vec<Rejection> {
    let mut by_reason: BTreeMap<(&str, &str), (usize, Vec<&str>)> = BTreeMap::new();
    for (slot, status) in statuses.named() {
        for reason in status.reasons.iter() {
            let (count, nodes) = by_reason.entry((status.plugin, reason)).or_default();
            *count += 1;
            if nodes.len() < NAMED {
                nodes.extend(cycle.snapshot.by_slot(*slot).map(|node| node.name()));
            }
        }
    }
    let named = by_reason.into_iter().map(|((plugin, reason), (count, mut nodes))| {
        nodes.sort_unstable();
        let nodes = nodes.into_iter().map(str::to_owned).collect();
        Rejection { plugin: plugin.to_owned(), reason: reason.to_owned(), count, nodes }
    });
    let mut all: Vec<Rejection> = named.collect();
    let others = cycle.snapshot.len().saturating_sub(statuses.named().len());
    if let Some(status) = statuses.absent.as_ref().filter(|_| others > 0) {
        all.extend(status.reasons.iter().map(|reason| of_all(status, reason, others)));
    }
    all
}

fn make_room(
    profile: &Profile,
    cycle: &Cycle<'_>,
    state: &CycleState,
    statuses: &NodeStatuses,
    mut result: Unschedulable,
) -> Decision {
    let Some(made) = profile.post_filter(cycle, state, statuses) else {
        return Decision::Unschedulable(result);
    };
    match made.status {
        Err(status) if !status.is_rejection() => tracing::warn!(%status, "a post-filter failed"),
        Err(status) if status.reasons.is_empty() => {}
        Err(status) => result.message = format!("{} {}", result.message, status.message()),
        Ok(()) => {}
    }
    result.nomination = made.nomination;
    result.victims = made.victims;
    result.writes = made.writes;
    Decision::Unschedulable(result)
}

//! One scheduling decision: filter the nodes that a pod can run on, score them, choose the best; make room if there is none.
//! Wording is upstream's (`FitError`).
//!
//! A decision has two parts, [`find`] and [`choose`]: extenders, which are called over the network, have their say in between.
//!
//! Invariant: both parts are pure; they depend on the cycle, the profile, the place to start from and what extenders said alone.
//! What is remembered of former decisions makes them faster, not others.

use crate::{
    framework::{
        Code, Cycle, CycleState, NodeStatuses, Nomination, Outcome, Profile, Status, profile::Prepared,
    },
    memory::{Class, Memory},
    metrics::Point,
    plugins::Candidate,
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use kaji_decisions::Rejection;
use kaji_runtime::Write;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::ControlFlow,
    sync::Arc,
};

/// What rejected a pod when an extender did, as upstream calls it among plugins.
pub const EXTENDER: &str = "Extender";

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
    /// The nodes that room could be made on, if extenders have a say in it.
    pub candidates: Vec<Candidate>,
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
            candidates: vec![],
            writes: vec![],
        }
    }

    /// The message says where room is made, if it is made.
    pub fn tell_placement(&mut self) {
        if let Nomination::Node(node) = &self.nomination {
            let victims = self.victims.len();
            self.message = format!(
                "{} preemption: found a potential placement for pod on node {node}, preempting {victims} victims",
                self.message
            );
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

/// The nodes that a pod can run on, before one is chosen.
pub struct Found {
    /// The nodes.
    pub feasible: Vec<Arc<NodeInfo>>,
    /// Why the others do not fit.
    pub statuses: NodeStatuses,
    /// Only the node was looked at that the pod is nominated for.
    pub only_nominated: bool,
    /// Extenders have rejected nodes.
    pub by_extenders: bool,
    state: CycleState,
    prepared: Prepared,
    evaluated: usize,
}

/// The scores that extenders gave, by the nodes' names.
pub type ExtenderScores = HashMap<String, i64>;

/// Decides, with what former decisions have left and without extenders.
pub fn schedule_pod(profile: &Profile, cycle: &Cycle<'_>, memory: &mut Memory) -> Decision {
    match find(profile, cycle, memory) {
        ControlFlow::Continue(found) => choose(profile, cycle, memory, found, &ExtenderScores::new()),
        ControlFlow::Break(decision) => decision,
    }
}

/// Filters the nodes.
pub fn find(profile: &Profile, cycle: &Cycle<'_>, memory: &mut Memory) -> ControlFlow<Decision, Found> {
    if cycle.snapshot.is_empty() {
        let why = Unschedulable { nomination: Nomination::Clear, ..Unschedulable::new(NO_NODES) };
        return ControlFlow::Break(Decision::Unschedulable(why));
    }
    let mut state = CycleState::new(profile.meter.samples_attempt());
    let prepared = match profile.pre_filter(cycle, &mut state) {
        Ok(prepared) => prepared,
        Err(status) if status.is_rejection() => {
            return ControlFlow::Break(rejected(profile, cycle, &state, status));
        }
        Err(status) => return ControlFlow::Break(Decision::Failed(status)),
    };
    let mut found = Found {
        feasible: vec![],
        statuses: NodeStatuses::default(),
        only_nominated: false,
        by_extenders: false,
        state,
        prepared,
        evaluated: 0,
    };
    if let Some(node) = nominated_node(profile, cycle, &found) {
        (found.feasible, found.only_nominated, found.evaluated) = (vec![node], true, 1);
        return ControlFlow::Continue(found);
    }
    match find_all(profile, cycle, memory, &mut found) {
        Ok(()) => ControlFlow::Continue(found),
        Err(status) => ControlFlow::Break(Decision::Failed(status)),
    }
}

/// Filters as many nodes as are enough, whatever node the pod is nominated for.
///
/// # Errors
/// The failure of a plugin.
pub fn find_all(profile: &Profile, cycle: &Cycle<'_>, memory: &mut Memory, found: &mut Found) -> Outcome {
    found.statuses = NodeStatuses::of_all(found.prepared.others());
    (found.only_nominated, found.by_extenders) = (false, false);
    let (class, start) = memory.of(cycle.pod);
    let filtered =
        profile.meter.timed(Point::Filter, || feasible_nodes(profile, cycle, found, (&mut *class, start)));
    (found.feasible, found.evaluated) = filtered?;
    Ok(())
}

/// Scores the nodes that were found and chooses one of them; makes room if there is none.
pub fn choose(
    profile: &Profile,
    cycle: &Cycle<'_>,
    memory: &mut Memory,
    found: Found,
    extra: &ExtenderScores,
) -> Decision {
    let Found { feasible, statuses, by_extenders, mut state, prepared, evaluated, .. } = found;
    match feasible.as_slice() {
        [] => no_fit(profile, cycle, &state, statuses, (&prepared.plugins, by_extenders)),
        [only] => {
            let node = only.name().to_owned();
            Decision::Bind(Chosen { node, state, evaluated })
        }
        _ => {
            let (class, _) = memory.of(cycle.pod);
            match profile.score(cycle, &mut state, &feasible, class) {
                Ok(scores) => {
                    let with_extra = |(score, node): (i64, Arc<NodeInfo>)| {
                        let more = extra.get(node.name()).copied().unwrap_or_default();
                        (score.saturating_add(more), node)
                    };
                    let scored: Vec<_> = scores.into_iter().zip(feasible).map(with_extra).collect();
                    let node = best(cycle, &scored).map_or_else(String::new, |n| n.name().to_owned());
                    Decision::Bind(Chosen { node, state, evaluated })
                }
                Err(status) => Decision::Failed(status),
            }
        }
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

/// The node that a pod is nominated for, if it passes the filters.
fn nominated_node(profile: &Profile, cycle: &Cycle<'_>, found: &Found) -> Option<Arc<NodeInfo>> {
    let nominated = cycle.pod.pod.status.nominated_node_name.as_str();
    let nominated = cycle.nominator.node_of(cycle.pod.uid()).unwrap_or(nominated);
    if nominated.is_empty() {
        return None;
    }
    let node = cycle.snapshot.node(nominated)?;
    let worth = found.prepared.nodes.as_ref().is_none_or(|names| names.contains(nominated));
    let fits = worth && profile.filter_with_nominated(cycle, &found.state, node).is_ok();
    fits.then(|| node.clone())
}

/// The nodes that pass the filters, as many as are enough, and how many were filtered.
fn feasible_nodes(
    profile: &Profile,
    cycle: &Cycle<'_>,
    found: &mut Found,
    (class, start): (&mut Class, &mut usize),
) -> Outcome<(Vec<Arc<NodeInfo>>, usize)> {
    let candidates = found.prepared.candidates(cycle.snapshot, *start);
    let enough = profile.nodes_to_find(candidates.len());
    let (mut feasible, mut rejected) = (Vec::with_capacity(enough), 0);
    for place in 0..candidates.len() {
        let Some(node) = candidates.nth(place) else { continue };
        match profile.filter_known(cycle, &found.state, node, class) {
            Ok(()) => feasible.push(node.clone()),
            Err(status) if status.is_rejection() => {
                rejected += 1;
                // Why other nodes do not fit is of no interest once one does, unless an extender may reject that one.
                if feasible.is_empty() || profile.is_extended() {
                    found.statuses.set(node.slot, status);
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
    (pre_filters, by_extenders): (&BTreeSet<&'static str>, bool),
) -> Decision {
    let mut result = Unschedulable::new(statuses.message(cycle.snapshot.len()));
    result.plugins.extend(pre_filters);
    result.plugins.extend(by_extenders.then_some(EXTENDER));
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
        // Nothing could have made room on the node that the pod is nominated for.
        result.nomination = Nomination::Clear;
        return Decision::Unschedulable(result);
    };
    if let Err(status) = made.status {
        if !status.is_rejection() {
            tracing::warn!(%status, "a post-filter failed");
        }
        if !status.reasons.is_empty() {
            result.message = format!("{} {status}", result.message);
        }
    }
    result.nomination = made.nomination;
    result.victims = made.victims;
    result.candidates = made.candidates;
    result.writes = made.writes;
    // Extenders may choose another node.
    if !profile.is_extended() {
        result.tell_placement();
    }
    Decision::Unschedulable(result)
}

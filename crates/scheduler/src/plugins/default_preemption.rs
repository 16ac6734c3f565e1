//! DefaultPreemption: makes room for a pod that fits nowhere, by deleting pods of lower priority on one node.
//!
//! Invariants:
//! - A victim's priority is lower than the pod's; without the victims, and not without fewer of them, the pod fits.
//! - Budgets for disruption are violated only where no other choice is left.
//!
//! Source: Kubernetes, "Pod Priority and Preemption".

mod candidates;
#[cfg(test)]
mod tests;

use super::{
    Entry,
    arguments::{Arguments, number},
};
use crate::{
    framework::{
        Actions, Code, Cycle, CycleState, Event, EventInterest, Hint, NodeStatuses, Nomination, Outcome,
        Plugin, Points, PostFilter, PostFiltered, Profile, Reads, Resource, Status,
    },
    pod_info::PodInfo,
    snapshot::NodeInfo,
    strict::Kind,
};
pub use candidates::{Candidate, best};
use candidates::{more_important, split_by_budgets};
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_runtime::{ObjectSnapshot as Objects, objects::PodDisruptionBudget};
use serde_json::Value;
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "DefaultPreemption",
    weight: 0,
    arguments: Some(Arguments { fields: &[(PERCENTAGE, Kind::Int32), (ABSOLUTE, Kind::Int32)], validate }),
    build: |args| {
        let plugin = Arc::new(DefaultPreemption::new(args));
        Points::of(&plugin).post_filter(&plugin)
    },
};

/// Fields of the arguments.
const PERCENTAGE: &str = "minCandidateNodesPercentage";
const ABSOLUTE: &str = "minCandidateNodesAbsolute";

const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

struct DefaultPreemption {
    /// Nodes to try before the best is taken, in percent of those that may help, and at least.
    percentage: usize,
    absolute: usize,
}

/// How many nodes are tried before the best is taken: in percent, and at least.
fn candidates_of(args: &Value) -> (i64, i64) {
    (number(args, PERCENTAGE, 10), number(args, ABSOLUTE, 100))
}

fn validate(args: &Value, path: &Path) -> ErrorList {
    let (percentage, absolute) = candidates_of(args);
    let (percentage_path, absolute_path) = (path.child(PERCENTAGE), path.child(ABSOLUTE));
    let mut errors = vec![];
    if !(0..=100).contains(&percentage) {
        errors.push(Error::invalid(&percentage_path, percentage, "not in valid range [0, 100]"));
    }
    if absolute < 0 {
        errors.push(Error::invalid(&absolute_path, absolute, "not in valid range [0, inf)"));
    }
    if percentage == 0 && absolute == 0 {
        let zero = |other: &str| format!("cannot be zero at the same time as {other}");
        errors.push(Error::invalid(&percentage_path, percentage, zero(ABSOLUTE)));
        errors.push(Error::invalid(&absolute_path, absolute, zero(PERCENTAGE)));
    }
    errors
}

impl DefaultPreemption {
    fn new(args: &Value) -> Self {
        let (percentage, absolute) = candidates_of(args);
        let valid = |number: i64| usize::try_from(number).unwrap_or_default();
        DefaultPreemption { percentage: valid(percentage), absolute: valid(absolute) }
    }
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn reads(&self, reads: &mut Reads<'_>) {
        reads.read::<PodDisruptionBudget>();
    }

    fn events(&self) -> Vec<EventInterest> {
        // Pods that wait for their victims' deletion are woken by the plugins that rejected them, and when it is done.
        let never = |_: &PodInfo, _: &Event| Hint::Skip;
        vec![EventInterest::hinted(Resource::AssignedPod, Actions::DELETE, never)]
    }
}

impl PostFilter for DefaultPreemption {
    fn post_filter(
        &self,
        profile: &Profile,
        cycle: &Cycle<'_>,
        state: &CycleState,
        statuses: &NodeStatuses,
    ) -> PostFiltered {
        let none = |nomination: Nomination, text: String| PostFiltered {
            nomination,
            victims: vec![],
            candidates: vec![],
            writes: vec![],
            status: Err(Status::unschedulable(format!("preemption: {text}"))),
        };
        if let Err(reason) = eligible(cycle, statuses) {
            return none(Nomination::Keep, reason.to_owned());
        }
        let potential: Vec<&Arc<NodeInfo>> = cycle
            .snapshot
            .nodes()
            .filter(|node| statuses.get(node.slot).is_some_and(|status| status.code == Code::Unschedulable))
            .collect();
        let mut rejected = NodeStatuses::of_all(Some(Status::unresolvable(NOT_HELPFUL)));
        let candidates = self.candidates(profile, cycle, state, &potential, &mut rejected);
        let kept = if profile.is_extended() { candidates.clone() } else { vec![] };
        match best(candidates) {
            None => none(Nomination::Clear, rejected.message(cycle.snapshot.len())),
            Some(candidate) => PostFiltered {
                nomination: Nomination::Node(candidate.node.name().to_owned()),
                victims: candidate.victims,
                candidates: kept,
                writes: vec![],
                status: Ok(()),
            },
        }
    }
}

/// Whether a pod may preempt others at all, now.
fn eligible(cycle: &Cycle<'_>, statuses: &NodeStatuses) -> Result<(), &'static str> {
    if cycle.pod.pod.spec.preemption_policy.as_deref() == Some("Never") {
        return Err("not eligible due to preemptionPolicy=Never.");
    }
    let nominated = cycle.pod.pod.status.nominated_node_name.as_str();
    let nominated = cycle.nominator.node_of(cycle.pod.uid()).unwrap_or(nominated);
    let Some(node) = cycle.snapshot.node(nominated) else { return Ok(()) };
    if statuses.get(node.slot).is_some_and(|status| status.code == Code::UnschedulableAndUnresolvable) {
        return Ok(());
    }
    let leaving = |victim: &Arc<PodInfo>| {
        victim.priority() < cycle.pod.priority()
            && victim.pod.metadata.deleting()
            && victim
                .pod
                .condition("DisruptionTarget")
                .is_some_and(|c| c.status == "True" && c.reason == "PreemptionByScheduler")
    };
    match node.pods().any(leaving) {
        true => Err("not eligible due to a terminating pod on the nominated node."),
        false => Ok(()),
    }
}

impl DefaultPreemption {
    /// Tries nodes, from a random one on, until there are enough candidates. Why the others are none is added to `rejected`.
    fn candidates(
        &self,
        profile: &Profile,
        cycle: &Cycle<'_>,
        state: &CycleState,
        potential: &[&Arc<NodeInfo>],
        rejected: &mut NodeStatuses,
    ) -> Vec<Candidate> {
        if potential.is_empty() {
            return vec![];
        }
        let budgets = cycle.listers.get::<PodDisruptionBudget>();
        let enough = (potential.len() * self.percentage / 100).max(self.absolute).min(potential.len());
        let offset = usize::try_from(cycle.random.u64() % potential.len() as u64).unwrap_or_default();
        let (mut kind, mut violating) = (vec![], vec![]);
        for place in 0..potential.len() {
            let node = potential[(offset + place) % potential.len()];
            match candidate(profile, cycle, state.clone(), node, &budgets) {
                Ok(candidate) if candidate.violations == 0 => kind.push(candidate),
                Ok(candidate) => violating.push(candidate),
                Err(status) => rejected.set(node.slot, status),
            }
            if !kind.is_empty() && kind.len() + violating.len() >= enough {
                break;
            }
        }
        kind.append(&mut violating);
        kind
    }
}

/// The pods to delete on a node: those of lower priority, less those that can stay, the more important first.
fn candidate(
    profile: &Profile,
    cycle: &Cycle<'_>,
    mut state: CycleState,
    node: &Arc<NodeInfo>,
    budgets: &Objects<PodDisruptionBudget>,
) -> Outcome<Candidate> {
    let mut trial = NodeInfo::clone(node);
    let lower = |pod: &&Arc<PodInfo>| pod.priority() < cycle.pod.priority();
    let mut potential: Vec<Arc<PodInfo>> = node.pods().filter(lower).cloned().collect();
    if potential.is_empty() {
        return Err(Status::unresolvable(NO_VICTIMS));
    }
    for pod in &potential {
        trial.remove_pod(pod.uid());
        profile.remove_pod(cycle, &mut state, pod, &trial);
    }
    profile.filter_with_nominated(cycle, &state, &trial)?;
    potential.sort_by(|a, b| more_important(a, b));
    let (violating, others) = split_by_budgets(potential, budgets);
    let (mut victims, mut violations) = (vec![], 0);
    let violating = violating.into_iter().map(|pod| (pod, true));
    for (pod, violates) in violating.chain(others.into_iter().map(|pod| (pod, false))) {
        trial.add_pod(&pod);
        profile.add_pod(cycle, &mut state, &pod, &trial);
        if profile.filter_with_nominated(cycle, &state, &trial).is_err() {
            trial.remove_pod(pod.uid());
            profile.remove_pod(cycle, &mut state, &pod, &trial);
            violations += usize::from(violates);
            victims.push(pod);
        }
    }
    if victims.is_empty() {
        // It fits after all: what rejected the node before is gone, or was not of this node.
        return Err(Status::unresolvable(NO_VICTIMS));
    }
    victims.sort_by(|a, b| more_important(a, b));
    Ok(Candidate { node: node.clone(), victims, violations })
}

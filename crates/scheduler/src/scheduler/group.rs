//! The scheduling cycle of a group of pods: all of its pods that wait are decided on one after the other, each seeing where the
//! former ones go; then as many are bound as the group needs together, or none.
//!
//! Invariants:
//! - No pod of a gang is bound, and no pod is deleted for it, unless that makes `minCount` of its pods scheduled.
//! - What a cycle counts, reserves or takes away to try something is undone before it ends, unless it is bound.
//!
//! Source: Kubernetes, KEP-4671, as of 1.37.

mod members;
mod status;
#[cfg(test)]
pub(super) mod tests;

use super::{PodVerdict, Scheduler};
use crate::{
    cache::RemovedPod,
    framework::{CycleState, Nomination, PermitWait, Profile, Status},
    metrics::AttemptResult,
    schedule_one::{Chosen, Decision, Unschedulable},
    scheduling_queue::Popped,
};
use kaji_runtime::{Key, objects::PodGroup};
use std::{collections::VecDeque, sync::Arc};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

/// What is condition of the pods of a group that could not be scheduled, and of the group, if nothing more is known.
const UNSCHEDULABLE: &str = "pod group is unschedulable";
/// What is condition while victims are being deleted for a group.
const WAITING: &str = "pod group is waiting for preemption to complete";
/// The plugin without which pods of a group are scheduled one by one.
pub(super) const PLUGIN: &str = "GangScheduling";

/// A pod that is counted on the node that was chosen.
struct Placed {
    popped: Popped,
    node: String,
    state: CycleState,
    waits: Vec<PermitWait>,
    /// The node that it was nominated for before.
    nominated: Option<String>,
}

/// A pod that fits no node.
struct Rejected {
    popped: Popped,
    why: Unschedulable,
}

/// How one pod of a group fared.
enum Attempt {
    Placed(Placed),
    Rejected(Rejected),
    Failed(Popped, Status),
}

/// How all of them fared.
#[derive(Default)]
struct Outcome {
    placed: Vec<Placed>,
    rejected: Vec<Rejected>,
    failed: Option<(Popped, Status)>,
    /// The pods that were not looked at any more.
    rest: VecDeque<Popped>,
}

/// What a group needs.
#[derive(Clone, Copy)]
struct Quorum {
    /// Pods that are scheduled together.
    needed: usize,
    /// Pods that are scheduled already.
    scheduled: usize,
}

impl Quorum {
    /// Whether so many new pods are enough: one at least.
    fn reached(self, new: usize) -> bool {
        new > 0 && self.scheduled + new >= self.needed
    }

    /// Why not, with so many pods that were not looked at.
    fn message(self, new: usize, remaining: usize) -> String {
        let scheduled = self.scheduled + new;
        match scheduled + remaining < self.needed {
            true => format!(
                "minCount ({}) cannot be satisfied: {scheduled} scheduled, {remaining} remaining",
                self.needed
            ),
            false => UNSCHEDULABLE.to_owned(),
        }
    }
}

/// A pod for which others have to go.
struct Room {
    place: usize,
    why: Unschedulable,
}

/// What was changed to try how room can be made.
#[derive(Default)]
struct Trial {
    counted: Vec<(Key, String)>,
    taken: Vec<RemovedPod>,
}

impl Scheduler {
    /// Schedules the pods of a group that wait, of which `first` was next.
    pub(super) async fn schedule_group(&mut self, first: Popped, key: &Key, permit: OwnedSemaphorePermit) {
        let began = Instant::now();
        let members = self.members(first, key);
        let Some(profile) = members.first().map(|popped| popped.profile) else { return };
        if members.iter().any(|popped| self.preempting.contains(popped.info.uid())) {
            let now = self.now();
            for popped in members {
                self.queue.put_back(&popped.key, "DefaultPreemption", now);
            }
            return;
        }
        let groups = self.listers.get::<PodGroup>();
        let Some(group) = groups.by_key(key) else {
            let text = format!("waiting for pods's pod group {:?} to appear in scheduling queue", key.name);
            let status = Status::unresolvable(text).by(PLUGIN);
            members.iter().for_each(|popped| self.reject(popped, &status, began));
            return;
        };
        let profiles = self.profiles.clone();
        let Some(profile) = profiles.get(profile) else { return };
        if let Err(error) = self.same_for_all(group, &members) {
            return self.group_failed(
                group,
                profile,
                Outcome::of_rest(members),
                &Status::error(error),
                began,
            );
        }
        let quorum = Quorum { needed: group.min_count(), scheduled: self.scheduled_of(key) };
        let mut outcome = self.place_all(profile, members, quorum).await;
        if let Some((popped, status)) = outcome.failed.take() {
            self.reject(&popped, &status, began);
            let status = Status::error(format!("failed to schedule other pod from a pod group: {status}"));
            return self.group_failed(group, profile, outcome, &status, began);
        }
        if quorum.reached(outcome.placed.len()) {
            return self.bind_group(group, profile, outcome, permit, began);
        }
        match self.make_room_for_group(profile, &outcome, quorum).await {
            Some(room) => self.group_waits(group, profile, outcome, room, began),
            None => {
                let text = quorum.message(outcome.placed.len(), outcome.rest.len());
                self.group_unschedulable(group, profile, outcome, &text, began);
            }
        }
    }

    /// Decides on one pod after the other, as long as there can be enough of them.
    async fn place_all(&mut self, profile: &Profile, members: Vec<Popped>, quorum: Quorum) -> Outcome {
        let mut outcome = Outcome::of_rest(members);
        while let Some(popped) = outcome.rest.pop_front() {
            match self.place(profile, popped).await {
                Attempt::Placed(placed) => outcome.placed.push(placed),
                Attempt::Rejected(rejected) => outcome.rejected.push(rejected),
                Attempt::Failed(popped, status) => {
                    outcome.failed = Some((popped, status));
                    break;
                }
            }
            let helped = outcome.rejected.iter().filter(|rejected| rejected.can_be_helped()).count();
            let most = quorum.scheduled + outcome.placed.len() + helped + outcome.rest.len();
            if most < quorum.needed {
                break;
            }
        }
        outcome
    }

    async fn place(&mut self, profile: &Profile, popped: Popped) -> Attempt {
        match self.decide(profile, &popped).await {
            Decision::Bind(Chosen { node, state, .. }) => {
                let nominated = self.nominator.node_of(popped.info.uid()).map(str::to_owned);
                match self.assume(profile, &popped, &node, state) {
                    Ok((state, waits)) => Attempt::Placed(Placed { popped, node, state, waits, nominated }),
                    Err(status) if status.is_rejection() => {
                        let mut why = Unschedulable::new(status.message());
                        why.plugins.insert(status.plugin);
                        Attempt::Rejected(Rejected { popped, why })
                    }
                    Err(status) => Attempt::Failed(popped, status),
                }
            }
            Decision::Unschedulable(why) => Attempt::Rejected(Rejected { popped, why }),
            Decision::Failed(status) => Attempt::Failed(popped, status),
        }
    }

    /// Takes back what was done for pods that are not bound.
    fn undo(&mut self, profile: &Profile, placed: &mut [Placed]) {
        for pod in placed.iter_mut().rev() {
            profile.unreserve(&pod.popped.info, &mut pod.state, &pod.node);
            self.cache.forget(&pod.popped.key, pod.popped.info.uid());
            if let Some(node) = &pod.nominated {
                self.nominator.nominate(&pod.popped.info, node);
            }
        }
    }

    /// Tries to make room for as many of the rejected pods as are missing. What it would take; nothing is changed.
    async fn make_room_for_group(
        &mut self,
        profile: &Profile,
        outcome: &Outcome,
        quorum: Quorum,
    ) -> Option<Vec<Room>> {
        let (mut room, mut trial) = (vec![], Trial::default());
        let mut placed = outcome.placed.len();
        for (place, rejected) in outcome.rejected.iter().enumerate() {
            if quorum.reached(placed) {
                break;
            }
            if !rejected.can_be_helped() {
                continue;
            }
            let popped = &rejected.popped;
            match self.decide(profile, popped).await {
                Decision::Unschedulable(why) if !why.victims.is_empty() => {
                    let Nomination::Node(node) = &why.nomination else { continue };
                    trial
                        .taken
                        .extend(why.victims.iter().filter_map(|victim| self.cache.take(&victim.key())));
                    trial.counted.push((popped.key.clone(), popped.info.uid().to_owned()));
                    self.cache.assume(&popped.info, node);
                    room.push(Room { place, why });
                    placed += 1;
                }
                // On the room that was made for another one.
                Decision::Bind(chosen) => {
                    trial.counted.push((popped.key.clone(), popped.info.uid().to_owned()));
                    self.cache.assume(&popped.info, &chosen.node);
                    placed += 1;
                }
                _ => {}
            }
        }
        trial.counted.iter().for_each(|(key, uid)| self.cache.forget(key, uid));
        trial.taken.into_iter().for_each(|pod| self.cache.put_back(pod));
        (quorum.reached(placed) && !room.is_empty()).then_some(room)
    }

    /// There are enough pods: those with a node are bound, each of the others waits, or has room made, for itself.
    fn bind_group(
        &mut self,
        group: &Arc<PodGroup>,
        profile: &Profile,
        outcome: Outcome,
        permit: OwnedSemaphorePermit,
        began: Instant,
    ) {
        let mut permit = Some(permit);
        for Placed { popped, node, state, waits, .. } in outcome.placed {
            let cycle = self.binding_cycle(&popped, node, state, waits);
            self.start_binding(popped, cycle, permit.take());
        }
        for Rejected { popped, why } in outcome.rejected {
            self.unschedulable(&popped, why, began);
        }
        self.report_group(group, ("True", "Scheduled", ""));
        self.metrics.group_attempt("scheduled", &profile.config.scheduler_name, began.elapsed());
    }

    /// There are not enough pods, and there cannot be: none is bound, and none is deleted for them.
    fn group_unschedulable(
        &mut self,
        group: &Arc<PodGroup>,
        profile: &Profile,
        mut outcome: Outcome,
        text: &str,
        began: Instant,
    ) {
        self.undo(profile, &mut outcome.placed);
        let placed = outcome.placed.into_iter().map(|placed| placed.popped);
        for popped in placed.chain(outcome.rest) {
            self.held_back(&popped, text, None, began);
        }
        for Rejected { popped, mut why } in outcome.rejected {
            why.victims.clear();
            why.nomination = Nomination::Keep;
            self.unschedulable(&popped, why, began);
        }
        self.report_group(group, ("False", "Unschedulable", text));
        self.metrics.group_attempt("unschedulable", &profile.config.scheduler_name, began.elapsed());
    }

    /// There are enough pods once victims are gone: all of them keep their places until then.
    fn group_waits(
        &mut self,
        group: &Arc<PodGroup>,
        profile: &Profile,
        mut outcome: Outcome,
        room: Vec<Room>,
        began: Instant,
    ) {
        self.undo(profile, &mut outcome.placed);
        for Placed { popped, node, .. } in outcome.placed {
            self.nominator.nominate(&popped.info, &node);
            self.held_back(&popped, WAITING, Some(&node), began);
        }
        let mut room = room.into_iter().peekable();
        for (place, Rejected { popped, mut why }) in outcome.rejected.into_iter().enumerate() {
            match room.next_if(|room| room.place == place) {
                Some(found) => {
                    why = found.why;
                    why.message = WAITING.to_owned();
                }
                None => {
                    why.victims.clear();
                    why.nomination = Nomination::Keep;
                }
            }
            self.unschedulable(&popped, why, began);
        }
        for popped in outcome.rest {
            self.held_back(&popped, WAITING, None, began);
        }
        self.report_group(group, ("False", "Unschedulable", WAITING));
        self.metrics.group_attempt("waiting_on_preemption", &profile.config.scheduler_name, began.elapsed());
    }

    /// Something failed: all pods are tried again.
    fn group_failed(
        &mut self,
        group: &Arc<PodGroup>,
        profile: &Profile,
        mut outcome: Outcome,
        status: &Status,
        began: Instant,
    ) {
        self.undo(profile, &mut outcome.placed);
        let placed = outcome.placed.into_iter().map(|placed| placed.popped);
        let rejected = outcome.rejected.into_iter().map(|rejected| rejected.popped);
        for popped in placed.chain(rejected).chain(outcome.rest) {
            self.reject(&popped, status, began);
        }
        self.report_group(group, ("False", "SchedulerError", &status.message()));
        self.metrics.group_attempt("error", &profile.config.scheduler_name, began.elapsed());
    }

    /// A pod waits for others of its group.
    fn held_back(&mut self, popped: &Popped, text: &str, nominated: Option<&str>, began: Instant) {
        let verdict = PodVerdict::unschedulable(text);
        self.report(popped, verdict, nominated, AttemptResult::Unschedulable, began);
        let now = self.now();
        self.queue.rejected(&popped.key, [PLUGIN].into(), [].into(), now);
    }
}

impl Rejected {
    /// Whether other pods could go for it.
    fn can_be_helped(&self) -> bool {
        !self.why.victims.is_empty() && matches!(self.why.nomination, Nomination::Node(_))
    }
}

impl Outcome {
    fn of_rest(rest: Vec<Popped>) -> Self {
        Outcome { rest: rest.into(), ..Outcome::default() }
    }
}

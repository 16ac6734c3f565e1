//! A decision that extenders have a say in.
//!
//! Invariant: the parts of the decision are pure; the calls are between them, and nothing else is decided meanwhile.

#[cfg(test)]
mod tests;

use super::Scheduler;
use crate::{
    framework::{Cycle, Profile},
    schedule_one::{Decision, ExtenderScores, choose, find, find_all},
    scheduling_queue::Popped,
};
use std::ops::ControlFlow;

impl Scheduler {
    /// Decides on a pod.
    pub(super) async fn decide_with_extenders(&mut self, profile: &Profile, popped: &Popped) -> Decision {
        let Scheduler { cache, listers, nominator, shared, memory, extenders, .. } = self;
        let cycle = Cycle {
            pod: &popped.info,
            snapshot: cache.snapshot(),
            listers,
            nominator,
            random: &*shared.random,
            now: shared.clock.now(),
        };
        let (pod, snapshot) = (&*popped.info, cycle.snapshot);
        let mut decision = match find(profile, &cycle, memory) {
            ControlFlow::Break(decision) => decision,
            ControlFlow::Continue(mut found) => {
                let mut filtered = extenders.filter(pod, snapshot, &mut found).await;
                if found.only_nominated && (filtered.is_err() || found.feasible.is_empty()) {
                    if let Err(status) = &filtered {
                        tracing::warn!(pod = %popped.key, %status, "the nominated node could not be evaluated");
                    }
                    filtered = match find_all(profile, &cycle, memory, &mut found) {
                        Ok(()) => extenders.filter(pod, snapshot, &mut found).await,
                        Err(status) => Err(status),
                    };
                }
                if let Err(status) = filtered {
                    return Decision::Failed(status);
                }
                let scores = match found.feasible.len() {
                    0 | 1 => ExtenderScores::new(),
                    _ => extenders.prioritize(pod, &found.feasible).await,
                };
                choose(profile, &cycle, memory, found, &scores)
            }
        };
        if let Decision::Unschedulable(why) = &mut decision {
            extenders.preempt(pod, snapshot, why).await;
        }
        decision
    }
}

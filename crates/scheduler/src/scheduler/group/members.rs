//! Which pods a group has: those that wait, those that are scheduled, and what all of them have to have in common.

use super::super::Scheduler;
use crate::{pod_info::PodInfo, scheduling_queue::Popped};
use kaji_runtime::{
    Key,
    objects::{Pod, PodGroup},
};
use std::{collections::HashSet, sync::Arc};

impl Scheduler {
    /// Takes all pods of a group out of the queue, whatever they wait for: the most important first, then the oldest.
    pub(super) fn members(&mut self, first: Popped, group: &Key) -> Vec<Popped> {
        let mut members = vec![];
        for pod in self.listers.pod_groups().pods(group) {
            let key = pod.metadata.key();
            if pod.spec.node_name.is_empty() && key != first.key {
                members.extend(self.queue.pop_specific(&key));
            }
        }
        members.push(first);
        members.sort_by(|a, b| {
            let order = |popped: &Popped| (-popped.info.priority(), popped.arrived);
            order(a).cmp(&order(b)).then_with(|| a.key.cmp(&b.key))
        });
        let (leaving, members): (Vec<Popped>, Vec<Popped>) =
            members.into_iter().partition(|popped| popped.info.pod.metadata.deleting());
        leaving.iter().for_each(|popped| self.queue.remove(&popped.key));
        members
    }

    fn is_scheduled(&self, pod: &Pod) -> bool {
        !pod.spec.node_name.is_empty() || self.cache.is_assumed(&pod.metadata.key(), &pod.metadata.uid)
    }

    /// How many pods of a group have a node, or are on their way to it.
    pub(super) fn scheduled_of(&self, group: &Key) -> usize {
        self.listers.pod_groups().pods(group).iter().filter(|pod| self.is_scheduled(pod)).count()
    }

    /// What makes a group one: its pods have one scheduler, its priority, and preempt alike.
    ///
    /// # Errors
    /// Upstream's sentence about the first pod that differs.
    pub(super) fn same_for_all(&self, group: &PodGroup, members: &[Popped]) -> Result<(), String> {
        let Some(first) = members.first().map(|popped| &popped.info.pod) else { return Ok(()) };
        let priority = group.spec.priority.unwrap_or_default();
        let policy = |pod: &Pod| match pod.spec.preemption_policy.as_deref() {
            None | Some("") => "PreemptLowerPriority".to_owned(),
            Some(policy) => policy.to_owned(),
        };
        let pods = self.listers.pod_groups().pods(&group.metadata.key());
        let scheduled = pods.iter().filter(|pod| self.is_scheduled(pod));
        for pod in members.iter().map(|popped| &popped.info.pod).chain(scheduled) {
            let (name, expected) = (&pod.spec.scheduler_name, &first.spec.scheduler_name);
            if name != expected {
                return Err(format!(
                    "all pods in a single pod group should have the same .spec.schedulerName set, got: {name:?} and {expected:?}"
                ));
            }
            let own = pod.spec.priority.unwrap_or_default();
            if own != priority {
                return Err(format!(
                    "all pods in a single pod group should have the same priority as the pod group's priority, got {own} and {priority}"
                ));
            }
            if policy(pod) != policy(first) {
                return Err(format!(
                    "all pods in a single pod group should have the same preemption policy, got {} and {}",
                    policy(first),
                    policy(pod)
                ));
            }
        }
        Ok(())
    }

    /// Victims, and with a pod of a group that is disrupted as a whole all of its scheduled pods.
    pub(in crate::scheduler) fn with_groups(
        &self,
        popped: &Popped,
        mut victims: Vec<Arc<PodInfo>>,
    ) -> Vec<Arc<PodInfo>> {
        if !self.groups {
            return victims;
        }
        let groups = self.listers.get::<PodGroup>();
        let keys: HashSet<Key> = victims.iter().filter_map(|victim| victim.pod.scheduling_group()).collect();
        let mut known: HashSet<String> = victims.iter().map(|victim| victim.uid().to_owned()).collect();
        for key in keys {
            let Some(group) = groups.by_key(&key) else { continue };
            if group.spec.disruption_mode.all.is_none() {
                continue;
            }
            for pod in self.listers.pod_groups().pods(&key) {
                let less = pod.spec.priority.unwrap_or_default() < popped.info.priority();
                if less && !pod.spec.node_name.is_empty() && known.insert(pod.metadata.uid.clone()) {
                    victims.push(Arc::new(PodInfo::new(pod)));
                }
            }
            self.report_disruption(group);
        }
        victims
    }
}

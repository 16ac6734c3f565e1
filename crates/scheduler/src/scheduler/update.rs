//! Brings cache and queue up to date with what the informers have reported.
//!
//! Invariant: the cache is changed before the queue gets the event, so that a pod that is woken sees what woke it.

use super::Scheduler;
use crate::{
    changes::{Changes, Pair},
    framework::{Event, EventName, Profile},
    pod_info::PodInfo,
};
use kaji_decisions::SCHEDULER;
use kaji_runtime::{Key, objects::Pod};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

impl Scheduler {
    pub(super) fn update(&mut self, changes: &Changes) {
        let batch = changes.take();
        // The events, and how long the cache took for each.
        let (mut events, mut took) = (vec![], vec![]);
        for (key, (old, new)) in batch.nodes {
            let since = Instant::now();
            self.cache.set_node(&key.name, new.clone());
            events.extend(Event::of_node(old, new));
            took.resize(events.len(), since.elapsed());
        }
        if self.groups {
            let groups = self.listers.pod_groups();
            batch.pods.values().for_each(|(old, new)| groups.update(old.as_ref(), new.as_ref()));
        }
        for (key, change) in batch.pods {
            let since = Instant::now();
            self.update_pod(&key, change, &mut events);
            took.resize(events.len(), since.elapsed());
        }
        self.grown.clear();
        events.extend(batch.others);
        took.resize(events.len(), Duration::ZERO);
        let now = self.now();
        for (event, took) in events.iter().zip(took) {
            let since = Instant::now();
            self.queue.event(event, now);
            self.metrics.queue.handled(event.name(), took + since.elapsed());
        }
        if batch.overflow {
            self.queue.everything_changed(now);
        }
    }

    fn update_pod(&mut self, key: &Key, (old, new): Pair<Pod>, events: &mut Vec<Event>) {
        let replaced = |old: &Arc<Pod>| new.as_ref().is_none_or(|new| new.metadata.uid != old.metadata.uid);
        let (gone, former) = match old {
            Some(old) if replaced(&old) => (Some(old), None),
            old => (None, old),
        };
        if let Some(gone) = gone {
            self.gone(key, &gone, events);
        }
        let Some(pod) = new else { return };
        if pod.finished() {
            return self.gone(key, &pod, events);
        }
        if !pod.spec.node_name.is_empty() {
            self.queue.remove(key);
            self.shared.settle(SCHEDULER, key);
            self.nominator.remove(&pod.metadata.uid);
            self.cache.set_pod(&pod);
            let former = former.filter(|former| !former.spec.node_name.is_empty());
            events.extend(Event::of_assigned_pod(former, Some(pod)));
            return;
        }
        // An assumed pod stays counted until its binding has ended, or it is deleted.
        if self.cache.is_assumed(key, &pod.metadata.uid) {
            if pod.metadata.deleting() {
                self.end_binding(&pod.metadata.uid);
                self.cache.forget(key, &pod.metadata.uid);
                events.extend(Event::of_assigned_pod(Some(pod), None));
            }
            return;
        }
        match responsible(&self.profiles, &pod) {
            Some(profile) => {
                let since = Instant::now();
                let info = Arc::new(PodInfo::new(pod.clone()));
                self.update_nomination(former.as_ref(), &info, events);
                self.queue.add(info, profile, self.now());
                let action = if former.is_none() { "Add" } else { "Update" };
                let name = EventName { resource: "UnscheduledPod", action };
                self.metrics.queue.handled(name, since.elapsed());
                self.grow(former.is_none(), pod, events);
            }
            None => {
                self.queue.remove(key);
                if self.nominator.node_of(&pod.metadata.uid).is_some() {
                    self.nominator.remove(&pod.metadata.uid);
                    events.extend(Event::of_assigned_pod(Some(pod), None));
                }
            }
        }
    }

    /// A pod that came may complete its group: one event for all that came with it.
    fn grow(&mut self, came: bool, pod: Arc<Pod>, events: &mut Vec<Event>) {
        let group = pod.scheduling_group().filter(|_| self.groups && came);
        if group.is_some_and(|group| self.grown.insert(group)) {
            events.extend(Event::of_unscheduled_pod(None, Some(pod)));
        }
    }

    /// Follows a nominated node that was written by another process, or that a former run of the scheduler had written.
    fn update_nomination(&mut self, former: Option<&Arc<Pod>>, info: &Arc<PodInfo>, events: &mut Vec<Event>) {
        let is = info.pod.status.nominated_node_name.as_str();
        let was = former.map_or("", |former| former.status.nominated_node_name.as_str());
        if !was.is_empty() && is != was {
            // The room that was kept for it on the former node is free.
            events.extend(Event::of_assigned_pod(former.cloned(), None));
        }
        if is == was {
            // The newest state of the pod is to be counted.
            if let Some(node) = self.nominator.node_of(info.uid()).map(str::to_owned) {
                self.nominator.nominate(info, &node);
            }
        } else if is.is_empty() {
            self.nominator.remove(info.uid());
        } else {
            self.nominator.nominate(info, is);
        }
    }

    /// A pod is gone, or takes nothing of its node any more.
    fn gone(&mut self, key: &Key, pod: &Arc<Pod>, events: &mut Vec<Event>) {
        self.queue.remove(key);
        self.shared.settle(SCHEDULER, key);
        let nominated = self.nominator.node_of(&pod.metadata.uid).is_some();
        self.nominator.remove(&pod.metadata.uid);
        self.preempting.remove(&pod.metadata.uid);
        self.end_binding(&pod.metadata.uid);
        // Room that was kept for a nominated pod is free as well.
        if self.cache.remove_pod(key).is_some() || nominated {
            events.extend(Event::of_assigned_pod(Some(pod.clone()), None));
        }
    }
}

/// The profile that schedules a pod, if this scheduler does.
fn responsible(profiles: &[Profile], pod: &Pod) -> Option<usize> {
    let name = match pod.spec.scheduler_name.as_str() {
        "" => "default-scheduler",
        name => name,
    };
    if !pod.active() {
        return None;
    }
    profiles.iter().position(|profile| profile.config.scheduler_name == name)
}

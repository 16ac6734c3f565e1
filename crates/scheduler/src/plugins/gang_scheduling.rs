//! GangScheduling: a pod of a group enters the queue when its PodGroup is there and, if that is a gang, enough of its pods are.
//!
//! That they are scheduled together is the loop's part: it decides on all pods of a group in one cycle.

use super::{Entry, ensure};
use crate::{
    framework::{
        Actions, Change, Event, EventInterest, Hint, Listers, Outcome, Plugin, Points, PreEnqueue, Reads,
        Resource, Status,
    },
    pod_info::PodInfo,
};
use kaji_runtime::{Projection, objects::PodGroup};
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "GangScheduling",
    weight: 0,
    arguments: None,
    build: |_| {
        let plugin = Arc::new(GangScheduling);
        Points::of(&plugin).pre_enqueue(&plugin)
    },
};

struct GangScheduling;

/// Another pod of the group.
fn pod_added(pod: &PodInfo, event: &Event) -> Hint {
    let Change::Pod(_, Some(added)) = &event.change else { return Hint::Skip };
    let group = pod.pod.scheduling_group();
    if group.is_some() && group == added.scheduling_group() { Hint::Queue } else { Hint::Skip }
}

/// The group itself came, or needs fewer pods.
fn group_changed(pod: &PodInfo, event: &Event) -> Hint {
    let Change::Other(old, Some(new)) = &event.change else { return Hint::Skip };
    let Some(new) = new.downcast_ref::<PodGroup>() else { return Hint::Skip };
    let old = old.as_ref().and_then(|old| old.downcast_ref::<PodGroup>());
    let helps = old.is_none_or(|old| new.min_count() < old.min_count());
    match pod.pod.scheduling_group() {
        Some(group) if helps && group == new.metadata.key() => Hint::Queue,
        _ => Hint::Skip,
    }
}

impl Plugin for GangScheduling {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn events(&self) -> Vec<EventInterest> {
        let groups = Resource::Other(PodGroup::RESOURCE);
        vec![
            EventInterest::hinted(Resource::UnscheduledPod, Actions::ADD, pod_added),
            EventInterest::hinted(Resource::AssignedPod, Actions::ADD, pod_added),
            EventInterest::hinted(groups, Actions::ADD | Actions::UPDATE, group_changed),
        ]
    }

    fn reads(&self, reads: &mut Reads<'_>) {
        reads.read::<PodGroup>();
    }
}

impl PreEnqueue for GangScheduling {
    fn pre_enqueue(&self, pod: &PodInfo, listers: &Listers) -> Outcome {
        let Some(key) = pod.pod.scheduling_group() else { return Ok(()) };
        let groups = listers.get::<PodGroup>();
        let Some(group) = groups.by_key(&key) else {
            let name = &key.name;
            let text = format!("waiting for pods's pod group {name:?} to appear in scheduling queue");
            return Err(Status::unresolvable(text));
        };
        if group.spec.scheduling_policy.gang.is_none() {
            return Ok(());
        }
        ensure(listers.pod_groups().count(&key) >= group.min_count(), || {
            Status::unresolvable("waiting for minCount pods from a gang to appear in scheduling queue")
        })
    }
}

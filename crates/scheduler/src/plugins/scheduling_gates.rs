//! SchedulingGates: pods with gates do not enter the queue. The API server has said so in their condition.

use super::{Entry, ensure};
use crate::{
    framework::{Actions, EventInterest, Listers, Outcome, Plugin, Points, PreEnqueue, Resource, Status},
    pod_info::PodInfo,
};
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "SchedulingGates",
    weight: 0,
    arguments: None,
    build: |_| {
        let plugin = Arc::new(SchedulingGates);
        Points::of(&plugin).pre_enqueue(&plugin)
    },
};

struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }

    fn events(&self) -> Vec<EventInterest> {
        vec![EventInterest::any(Resource::UnscheduledPod, Actions::POD_GATES)]
    }
}

impl PreEnqueue for SchedulingGates {
    fn pre_enqueue(&self, pod: &PodInfo, _listers: &Listers) -> Outcome {
        ensure(pod.pod.spec.scheduling_gates.is_empty(), || {
            Status::unresolvable("waiting for scheduling gates")
        })
    }
}

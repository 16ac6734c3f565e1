//! PrioritySort: pods of higher priority are scheduled first, equal ones as they came.

use super::Entry;
use crate::{
    framework::{Plugin, Points, QueueSort},
    pod_info::PodInfo,
};
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "PrioritySort",
    weight: 0,
    arguments: None,
    build: |_| {
        let plugin = Arc::new(PrioritySort);
        Points::of(&plugin).queue_sort(&plugin)
    },
};

struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }
}

impl QueueSort for PrioritySort {
    fn rank(&self, pod: &PodInfo) -> i64 {
        pod.priority().saturating_neg()
    }
}

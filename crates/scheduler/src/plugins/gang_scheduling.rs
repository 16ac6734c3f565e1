//! GangScheduling: pods of a group are not scheduled together by this scheduler. A pod that belongs to one is not scheduled, and
//! its condition says why: alone it could hold resources that the whole group never gets.

use super::{Entry, ensure, no_arguments};
use crate::framework::{Cycle, CycleState, Outcome, Plugin, Points, PreFilter, PreFiltered, Status};
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "GangScheduling",
    weight: 0,
    build: |args| {
        no_arguments("GangScheduling", args)?;
        let plugin = Arc::new(GangScheduling);
        Ok(Points::of(&plugin).pre_filter(&plugin))
    },
};

struct GangScheduling;

impl Plugin for GangScheduling {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }
}

impl PreFilter for GangScheduling {
    fn pre_filter(&self, cycle: &Cycle<'_>, _state: &mut CycleState) -> Outcome<PreFiltered> {
        let group = cycle.pod.pod.spec.scheduling_group.as_ref();
        ensure(group.is_none(), || {
            let name = group.map_or("", |group| &group.pod_group_name);
            Status::unresolvable(format!(
                "pods of a group ({name}) are not scheduled together by this scheduler"
            ))
        })?;
        Ok(PreFiltered::Skip)
    }
}

//! DynamicResources: devices by resource claims are not allocated by this scheduler. A pod that needs some is not scheduled, and
//! its condition says why: it would not start on any node.

use super::{Entry, ensure, no_arguments};
use crate::framework::{Cycle, CycleState, Outcome, Plugin, Points, PreFilter, PreFiltered, Status};
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "DynamicResources",
    weight: 0,
    build: |args| {
        no_arguments("DynamicResources", args)?;
        let plugin = Arc::new(DynamicResources);
        Ok(Points::of(&plugin).pre_filter(&plugin))
    },
};

struct DynamicResources;

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }
}

impl PreFilter for DynamicResources {
    fn pre_filter(&self, cycle: &Cycle<'_>, _state: &mut CycleState) -> Outcome<PreFiltered> {
        ensure(cycle.pod.pod.spec.resource_claims.is_empty(), || {
            Status::unresolvable("resource claims are not allocated by this scheduler")
        })?;
        Ok(PreFiltered::Skip)
    }
}

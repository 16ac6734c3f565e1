//! The kinds of events.k8s.io, one file each. The core group's events are the same objects.

#[expect(clippy::module_inception, reason = "the group and its only resource share their name")]
pub mod events;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    vec![events::events(deps.event_ttl)]
}

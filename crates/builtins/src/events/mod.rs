//! The kinds of events.k8s.io, one file each. The core group's events are the same objects.

pub mod event;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![event::events()]
}

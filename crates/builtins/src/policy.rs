//! The kinds of `policy/v1`, one file each.

use crate::Deps;
use kaji_resource::ResourceDef;

mod poddisruptionbudgets;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![poddisruptionbudgets::def()]
}

//! The kinds of coordination.k8s.io, one file each.

pub mod leases;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![leases::def()]
}

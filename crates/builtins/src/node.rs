//! The kinds of node.k8s.io, one file each.

pub mod runtimeclasses;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![runtimeclasses::def()]
}

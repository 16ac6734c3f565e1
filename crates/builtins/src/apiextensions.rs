//! The kinds of apiextensions.k8s.io, one file each.

pub mod customresourcedefinitions;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    vec![customresourcedefinitions::def(deps)]
}

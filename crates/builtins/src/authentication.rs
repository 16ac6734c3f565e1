//! The kinds of authentication.k8s.io, one file each.

pub mod selfsubjectreviews;
pub mod tokenreviews;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    vec![selfsubjectreviews::def(), tokenreviews::def(deps)]
}

//! The kinds of authorization.k8s.io, one file each.

pub mod localsubjectaccessreviews;
mod review;
mod selectors;
pub mod selfsubjectaccessreviews;
pub mod selfsubjectrulesreviews;
pub mod subjectaccessreviews;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    vec![
        localsubjectaccessreviews::def(deps),
        selfsubjectaccessreviews::def(deps),
        selfsubjectrulesreviews::def(deps),
        subjectaccessreviews::def(deps),
    ]
}

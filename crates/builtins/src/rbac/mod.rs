//! The kinds of rbac.authorization.k8s.io, one file each.

pub mod clusterrolebindings;
pub mod clusterroles;
pub mod rolebindings;
pub mod roles;
mod rules;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![clusterrolebindings::def(), clusterroles::def(), rolebindings::def(), roles::def()]
}

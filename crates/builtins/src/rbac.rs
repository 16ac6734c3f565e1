//! The kinds of rbac.authorization.k8s.io, one file each.

mod bindings;
pub mod clusterrolebindings;
pub mod clusterroles;
mod escalation;
pub mod rolebindings;
pub mod roles;
mod rules;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    vec![clusterrolebindings::def(deps), clusterroles::def(deps), rolebindings::def(deps), roles::def(deps)]
}

//! The kinds of `apps/v1`, one file each.

use crate::Deps;
use kaji_resource::ResourceDef;

mod controllerrevisions;
mod daemonsets;
mod deployments;
mod replicasets;
mod rolling;
mod statefulsets;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![
        controllerrevisions::def(),
        daemonsets::def(),
        deployments::def(),
        replicasets::def(),
        statefulsets::def(),
    ]
}

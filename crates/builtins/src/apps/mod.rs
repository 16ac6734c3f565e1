//! The kinds of `apps/v1`, one file each.

use crate::Deps;
use kaji_resource::ResourceDef;

mod controllerrevision;
mod daemonset;
mod deployment;
mod replicaset;
mod rolling;
mod statefulset;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![
        controllerrevision::def(),
        daemonset::def(),
        deployment::def(),
        replicaset::def(),
        statefulset::def(),
    ]
}

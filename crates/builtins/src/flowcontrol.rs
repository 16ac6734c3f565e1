//! The kinds of flowcontrol.apiserver.k8s.io, one file each.

pub mod fixed;
pub mod flowschemas;
pub mod prioritylevelconfigurations;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![flowschemas::def(), prioritylevelconfigurations::def()]
}

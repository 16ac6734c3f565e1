//! The kinds of storage.k8s.io, one file each.

pub mod csidrivers;
pub mod csinodes;
pub mod csistoragecapacities;
mod rules;
pub mod storageclasses;
pub mod volumeattachments;
pub mod volumeattributesclasses;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![
        csidrivers::def(),
        csinodes::def(),
        csistoragecapacities::def(),
        storageclasses::def(),
        volumeattachments::def(),
        volumeattributesclasses::def(),
    ]
}

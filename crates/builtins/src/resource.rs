//! The kinds of resource.k8s.io, one file each.

pub mod deviceclasses;
pub mod devicetaintrules;
pub mod resourceclaims;
pub mod resourceclaimtemplates;
pub mod resourceslices;

mod rules;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    vec![
        deviceclasses::def(),
        devicetaintrules::def(deps),
        resourceclaims::def(),
        resourceclaimtemplates::def(),
        resourceslices::def(deps),
    ]
}

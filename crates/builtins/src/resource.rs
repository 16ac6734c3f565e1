//! The kinds of resource.k8s.io, one file each.

pub mod deviceclasses;
pub mod devicetaintrules;
pub mod resourceclaims;
pub mod resourceclaimtemplates;
pub mod resourceslices;

mod beta_versions;
mod devices;
mod permissions;
mod request_policies;
mod rules;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    let beta = [
        (deviceclasses::def(), beta_versions::ALL),
        // Came with v1beta2.
        (devicetaintrules::def(deps), beta_versions::LATER),
        (resourceclaims::def(deps), beta_versions::ALL),
        (resourceclaimtemplates::def(), beta_versions::ALL),
        (resourceslices::def(deps), beta_versions::ALL),
    ];
    beta.into_iter().map(|(def, versions)| beta_versions::add(def, versions, &deps.served)).collect()
}

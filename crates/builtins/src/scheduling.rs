//! The kinds of scheduling.k8s.io, one file each.

mod group_rules;
pub mod podgroups;
pub mod priorityclasses;
pub mod workloads;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    let mut defs = vec![priorityclasses::def()];
    if deps.features.generic_workload {
        let mut gated = [podgroups::def(), workloads::def()];
        for def in &mut gated {
            for version in &mut def.versions {
                version.served = deps.served.includes(&def.group, &version.name);
            }
        }
        defs.extend(gated.into_iter().filter(|def| def.versions.iter().any(|version| version.served)));
    }
    defs
}

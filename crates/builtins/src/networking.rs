//! The kinds of networking.k8s.io, one file each.

pub mod ingressclasses;
pub mod ingresses;
pub mod ipaddresses;
pub mod networkpolicies;
pub mod servicecidrs;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![
        ingressclasses::def(),
        ingresses::def(),
        ipaddresses::def(),
        networkpolicies::def(),
        servicecidrs::def(),
    ]
}

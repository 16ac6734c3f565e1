//! The kinds of the core API group (`v1`), one file each.

pub mod bindings;
pub mod componentstatuses;
pub mod configmaps;
pub mod endpoints;
pub mod limitranges;
pub mod namespaces;
pub mod nodes;
pub mod persistentvolumeclaims;
pub mod persistentvolumes;
pub mod pods;
pub mod podtemplates;
pub mod replicationcontrollers;
pub mod resourcequotas;
pub mod secrets;
pub mod serviceaccounts;
pub(crate) mod services;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    vec![
        componentstatuses::def(deps),
        configmaps::def(),
        endpoints::def(),
        crate::events::events::core(deps.event_ttl),
        limitranges::def(),
        namespaces::def(),
        nodes::def(),
        persistentvolumeclaims::def(),
        persistentvolumes::def(),
        bindings::def(),
        pods::def(),
        podtemplates::def(),
        replicationcontrollers::def(),
        resourcequotas::def(),
        secrets::def(),
        serviceaccounts::def(deps),
        services::def(deps),
    ]
}

//! The kinds of admissionregistration.k8s.io, one file each.

mod bindings;
mod expressions;
pub mod mutatingadmissionpolicies;
pub mod mutatingadmissionpolicybindings;
pub mod mutatingwebhookconfigurations;
mod parameters;
mod rules;
pub mod validatingadmissionpolicies;
pub mod validatingadmissionpolicybindings;
pub mod validatingwebhookconfigurations;

mod webhooks;

pub use rules::client;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    vec![
        mutatingadmissionpolicies::def(deps),
        mutatingadmissionpolicybindings::def(deps),
        mutatingwebhookconfigurations::def(),
        validatingadmissionpolicies::def(deps),
        validatingadmissionpolicybindings::def(deps),
        validatingwebhookconfigurations::def(),
    ]
}

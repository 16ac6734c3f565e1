//! The kinds of admissionregistration.k8s.io, one file each.

mod bindings;
mod expressions;
pub mod mutatingadmissionpolicies;
pub mod mutatingadmissionpolicybindings;
pub mod mutatingwebhookconfigurations;
mod rules;
pub mod validatingadmissionpolicies;
pub mod validatingadmissionpolicybindings;
pub mod validatingwebhookconfigurations;

mod webhooks;

pub use rules::client;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(_deps: &Deps) -> Vec<ResourceDef> {
    vec![
        mutatingadmissionpolicies::def(),
        mutatingadmissionpolicybindings::def(),
        mutatingwebhookconfigurations::def(),
        validatingadmissionpolicies::def(),
        validatingadmissionpolicybindings::def(),
        validatingwebhookconfigurations::def(),
    ]
}

//! MutatingAdmissionPolicyBindings.

use super::bindings;
use crate::Deps;
use kaji_resource::ResourceDef;

/// The definition of MutatingAdmissionPolicyBindings.
pub fn def(deps: &Deps) -> ResourceDef {
    bindings::def(deps, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", false)
}

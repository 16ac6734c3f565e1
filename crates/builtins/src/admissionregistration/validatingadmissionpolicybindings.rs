//! ValidatingAdmissionPolicyBindings.

use super::bindings;
use crate::Deps;
use kaji_resource::ResourceDef;

/// The definition of ValidatingAdmissionPolicyBindings.
pub fn def(deps: &Deps) -> ResourceDef {
    bindings::def(deps, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", true)
}

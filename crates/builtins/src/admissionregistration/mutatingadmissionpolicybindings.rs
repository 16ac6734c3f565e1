//! MutatingAdmissionPolicyBindings.

use super::bindings;
use kaji_resource::ResourceDef;

/// The definition of MutatingAdmissionPolicyBindings.
pub fn def() -> ResourceDef {
    bindings::def("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", false)
}

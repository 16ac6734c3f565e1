//! ValidatingAdmissionPolicyBindings.

use super::bindings;
use kaji_resource::ResourceDef;

/// The definition of ValidatingAdmissionPolicyBindings.
pub fn def() -> ResourceDef {
    bindings::def("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", true)
}

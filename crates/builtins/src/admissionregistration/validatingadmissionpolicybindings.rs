//! ValidatingAdmissionPolicyBindings.

use super::{
    bindings::{Bindings, COLUMNS},
    rules::GROUP,
};
use crate::shared::metadata;
use kaji_resource::{ResourceDef, Scope};

/// The definition of ValidatingAdmissionPolicyBindings.
pub fn def() -> ResourceDef {
    let hooks = Bindings { validating: true };
    ResourceDef::builtin(
        GROUP,
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        Scope::Cluster,
        COLUMNS,
        hooks,
    )
    .metadata_checks(&[metadata::GENERAL_WHOLE], &[])
    .with_generation()
    .wait_for_caches()
    .conditional_update_only()
    .category(&["api-extensions"])
}

//! MutatingWebhookConfigurations.

use super::{
    rules::GROUP,
    webhooks::{COLUMNS, Webhooks},
};
use crate::shared::metadata;
use kaji_resource::{ResourceDef, Scope};

/// The definition of MutatingWebhookConfigurations.
pub fn def() -> ResourceDef {
    let hooks = Webhooks { mutating: true };
    ResourceDef::builtin(
        GROUP,
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
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

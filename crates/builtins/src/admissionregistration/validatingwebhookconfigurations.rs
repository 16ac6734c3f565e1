//! ValidatingWebhookConfigurations.

use super::{
    rules::GROUP,
    webhooks::{COLUMNS, Webhooks},
};
use crate::shared::metadata;
use kaji_resource::{ResourceDef, Scope};

/// The definition of ValidatingWebhookConfigurations.
pub fn def() -> ResourceDef {
    let hooks = Webhooks { mutating: false };
    ResourceDef::builtin(
        GROUP,
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
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

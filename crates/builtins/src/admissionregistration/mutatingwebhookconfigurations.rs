//! MutatingWebhookConfigurations.

use super::webhooks;
use kaji_resource::ResourceDef;

/// The definition of MutatingWebhookConfigurations.
pub fn def() -> ResourceDef {
    webhooks::def("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", true)
}

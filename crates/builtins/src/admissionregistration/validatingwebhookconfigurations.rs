//! ValidatingWebhookConfigurations.

use super::webhooks;
use kaji_resource::ResourceDef;

/// The definition of ValidatingWebhookConfigurations.
pub fn def() -> ResourceDef {
    webhooks::def("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", false)
}

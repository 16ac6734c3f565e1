//! ResourceClaim and ResourceClaimTemplate, projected. What a template asks for stays raw JSON.

use super::devices::{DeviceAllocation, DeviceClaimSpec, DeviceState};
use crate::{Meta, Projection};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a claim is reserved for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimConsumer {
    /// `""` for core.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// `pods`
    pub resource: String,
    /// The object's name, in the claim's namespace.
    pub name: String,
    /// The object's uid.
    pub uid: String,
}

impl ClaimConsumer {
    /// Whether it is a pod.
    pub fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }
}

/// A claim's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceClaimStatus {
    /// The devices that were allocated.
    pub allocation: Option<Box<DeviceAllocation>>,
    /// What may use them.
    pub reserved_for: Vec<ClaimConsumer>,
    /// What drivers report of the allocated devices.
    pub devices: Vec<DeviceState>,
}

/// A claim's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaimSpec {
    /// What it asks for.
    pub devices: DeviceClaimSpec,
}

/// A claim of devices.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: ResourceClaimSpec,
    /// Status.
    pub status: ResourceClaimStatus,
}

impl ResourceClaim {
    /// The finalizer of claims that the scheduler has allocated.
    pub const FINALIZER: &'static str = "resource.kubernetes.io/delete-protection";
}

impl Projection for ResourceClaim {
    const GROUP: &'static str = "resource.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "resourceclaims";
    const KIND: &'static str = "ResourceClaim";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// What a template makes claims of.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaimTemplateSpec {
    /// Labels and annotations of the claims, raw.
    pub metadata: Value,
    /// Their spec, raw.
    pub spec: Value,
}

/// A template of claims.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaimTemplate {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: ResourceClaimTemplateSpec,
}

impl Projection for ResourceClaimTemplate {
    const GROUP: &'static str = "resource.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "resourceclaimtemplates";
    const KIND: &'static str = "ResourceClaimTemplate";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::ResourceClaim;

    #[test]
    fn devices_may_be_reported_without_conditions() {
        let device = |conditions: &str| {
            let text =
                format!(r#"{{"status": {{"devices": [{{"driver": "d", "device": "a"{conditions}}}]}}}}"#);
            let claim: ResourceClaim = kaji_meta::json::from_slice(text.as_bytes()).unwrap();
            claim.status.devices[0].conditions.len()
        };
        assert_eq!(device(""), 0);
        assert_eq!(device(r#", "conditions": null"#), 0);
        assert_eq!(device(r#", "conditions": [{"type": "Ready", "status": "True"}]"#), 1);
    }
}

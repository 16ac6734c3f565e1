//! ServiceCIDR and IPAddress, projected.

use super::policy::MetaCondition;
use crate::{Meta, Projection};
use serde::Deserialize;

/// A service range's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// `10.96.0.0/12`, one a family.
    pub cidrs: Vec<String>,
}

/// A service range's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrStatus {
    /// Conditions.
    pub conditions: Vec<MetaCondition>,
}

/// A range that addresses of services are from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: ServiceCidrSpec,
    /// Status.
    pub status: ServiceCidrStatus,
}

impl Projection for ServiceCidr {
    const GROUP: &'static str = "networking.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "servicecidrs";
    const KIND: &'static str = "ServiceCIDR";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// An address of a service; it is its name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IpAddress {
    /// ObjectMeta.
    pub metadata: Meta,
}

impl Projection for IpAddress {
    const GROUP: &'static str = "networking.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "ipaddresses";
    const KIND: &'static str = "IPAddress";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

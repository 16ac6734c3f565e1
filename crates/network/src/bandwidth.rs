//! The annotations that limit a pod's bandwidth.

use crate::NetworkError;
use kaji_meta::quantity::Quantity;
use std::collections::BTreeMap;

/// To the pod.
pub const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
/// From the pod.
pub const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// Limits in bytes a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// To the pod.
    pub ingress: Option<u64>,
    /// From the pod.
    pub egress: Option<u64>,
}

/// Reads the annotations.
///
/// # Errors
/// Text that is no quantity, or one below 1k or above 1P, with upstream's texts.
pub fn limits(annotations: &BTreeMap<String, String>) -> Result<Limits, NetworkError> {
    let limit = |name: &str| annotations.get(name).map(|text| bytes_per_second(text)).transpose();
    Ok(Limits { ingress: limit(INGRESS)?, egress: limit(EGRESS)? })
}

fn bytes_per_second(text: &str) -> Result<u64, NetworkError> {
    let invalid = |why: &str| NetworkError::Invalid(format!("invalid bandwidth {text:?}: {why}"));
    let bits = Quantity::parse(text).map_err(|error| invalid(&error.to_string()))?.value();
    if bits < 1_000 {
        return Err(invalid("resource is unreasonably small (< 1kbit)"));
    }
    if bits > 1_000_000_000_000_000 {
        return Err(invalid("resource is unreasonably large (> 1Pbit)"));
    }
    Ok(bits as u64 / 8)
}

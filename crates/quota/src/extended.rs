//! Claims that the scheduler makes for the extended resources of a pod: what their pod is charged for is not charged twice.
//!
//! Invariant: a pod stands for one claim, the one that its status names or else the first that it owns: any other claim that names it as
//! its owner would be free otherwise. Source: `pkg/quota/v1/evaluator/core/resource_claims.go`.

use crate::{amounts::Usage, pods};
use kaji_meta::object;
use serde_json::Value;

const MADE: &str = "resource.kubernetes.io/extended-resource-claim";

/// The name and the uid of the pod that a claim says it was made for.
pub fn pod_of(claim: &Value) -> Option<(&str, &str)> {
    if object::annotation(claim, MADE) != Some("true") {
        return None;
    }
    let owner = object::controller_of(claim)?;
    let text = |field: &str| object::str_at(owner, &[field]);
    ((text("kind"), text("apiVersion")) == ("Pod", "v1")).then(|| (text("name"), text("uid")))
}

/// What a pod is charged, if it stands for a claim. `claims` are those of the pod's namespace; they need not contain the claim.
pub fn charged_to_pod<'a>(
    claim: &Value,
    pod: &Value,
    claims: impl IntoIterator<Item = &'a Value>,
    now: jiff::Timestamp,
) -> Option<Usage> {
    let (name, uid) = pod_of(claim)?;
    if (object::name(pod), object::uid(pod)) != (name, uid) {
        return None;
    }
    let status =
        object::at(pod, &["status", "extendedResourceClaimStatus"]).filter(|status| !status.is_null());
    let stands = match status {
        Some(status) => object::str_at(status, &["resourceClaimName"]) == object::name(claim),
        None => {
            let age = |claim: &Value| {
                let made: Option<jiff::Timestamp> =
                    object::str_at(claim, &["metadata", "creationTimestamp"]).parse().ok();
                (made, object::name(claim).to_owned())
            };
            let own = age(claim);
            claims.into_iter().filter(|c| pod_of(c).is_some_and(|(_, of)| of == uid)).all(|c| age(c) >= own)
        }
    };
    stands.then(|| pods::usage(pod, now))
}

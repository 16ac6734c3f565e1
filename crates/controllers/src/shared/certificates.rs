//! Certificate requests: the decoded request, the rules of the signers, writes of statuses, and deletion at a deadline.
//!
//! Invariants:
//! - A status is written only for the state that the view showed.
//! - A request is deleted by uid, at its deadline, which the loop waits for instead of polling hourly.

pub mod der;
pub mod request;
pub mod signers;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use kaji_runtime::{
    Meta, PatchKind, Plan, Projection, Write, client::Target, objects::CertificateSigningRequest,
};
use request::Request;
use serde_json::{Value, json};
use std::time::Duration;

/// A write of a status, if the request is still as it was seen.
pub fn status(csr: &CertificateSigningRequest, subresource: &str, status: Value) -> Write {
    let meta = &csr.metadata;
    Write::Patch {
        target: Target::of::<CertificateSigningRequest>("", &meta.name).subresource(subresource),
        kind: PatchKind::Merge,
        body: json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": status,
        }),
    }
}

/// The conditions with one more.
pub fn with_condition(csr: &CertificateSigningRequest, condition: Value) -> Value {
    let all: Vec<Value> = csr.status.conditions.iter().cloned().chain([condition]).collect();
    json!({"conditions": all})
}

/// The decoded request.
pub fn parse(csr: &CertificateSigningRequest) -> Result<Request, String> {
    let pem = STANDARD.decode(&csr.spec.request).map_err(|e| e.to_string())?;
    Request::parse(&pem)
}

/// Deletes what is past its deadline, waits for what is not.
pub fn delete_at<T: Projection>(meta: &Meta, deadline: Option<Timestamp>, now: Timestamp) -> Plan {
    let Some(deadline) = deadline else { return Plan::nothing() };
    match deadline < now {
        true => Plan::nothing().then(Write::Delete {
            target: Target::of::<T>(&meta.namespace, &meta.name),
            options: json!({"preconditions": {"uid": meta.uid}}),
        }),
        false => {
            let left = Duration::try_from(deadline.duration_since(now)).unwrap_or_default();
            Plan::nothing().again_after(left + Duration::from_secs(1))
        }
    }
}

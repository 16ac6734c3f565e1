//! What is measured of claims of devices: upstream's names, labels and texts.
//!
//! Source: upstream's `pkg/controller/resourceclaim/metrics`.

use super::POD_CLAIM;
use kaji_runtime::{
    Metric, Moment, ObjectSnapshot, Plan, Sample, Write, client::Target, objects::ResourceClaim,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// On claims that the scheduler made for a pod's extended resources.
const EXTENDED_RESOURCE: &str = "resource.kubernetes.io/extended-resource-claim";

static CREATIONS: Metric = Metric::counter(
    "resourceclaim_controller_creates_total",
    "[ALPHA] Number of ResourceClaims creation requests, categorized by creation status and admin access",
    &["status", "admin_access"],
);
static CLAIMS: Metric = Metric::gauge(
    "resourceclaim_controller_resource_claims",
    "[ALPHA] Number of ResourceClaims, categorized by allocation status, admin access, and source. Source can be 'resource_claim_template' (created from a template), 'extended_resource' (extended resources), or empty (manually created by a user).",
    &["allocated", "admin_access", "source"],
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 2] = [&CREATIONS, &CLAIMS];

fn text(is: bool) -> &'static str {
    if is { "true" } else { "false" }
}

/// Whether the claim that a write makes asks for access as an administrator. Alternatives never do.
fn of_admin(write: &Write) -> bool {
    let Write::Create { body, .. } = write else { return false };
    let requests = body.pointer("/spec/devices/requests").and_then(Value::as_array);
    let admin = |request: &Value| request.pointer("/exactly/adminAccess") == Some(&Value::Bool(true));
    requests.into_iter().flatten().any(admin)
}

/// Counts claims that are made for a pod, and those that could not be. They have one target: with both kinds of claims in a plan each
/// counts as the first one's.
pub fn created(plan: Plan, claims: &Target) -> Plan {
    let Some(write) = plan.writes().find(|write| write.target() == claims) else { return plan };
    let admin = text(of_admin(write));
    let sample = |status: &'static str| CREATIONS.one([status.into(), admin.into()]);
    plan.observe(Moment::Written(claims.clone()), sample("success"))
        .observe(Moment::NotWritten(claims.clone()), sample("failure"))
}

/// The claims that there are.
pub fn gauges(claims: &ObjectSnapshot<ResourceClaim>) -> Vec<Sample> {
    let mut counts = BTreeMap::<(bool, bool, &str), usize>::new();
    for claim in claims.iter() {
        let exact = claim.spec.devices.requests.iter().filter_map(|request| request.exactly.as_ref());
        let admin = exact.into_iter().any(|request| request.admin_access);
        let annotations = &claim.metadata.annotations;
        let source = match annotations.get(POD_CLAIM) {
            _ if annotations.get(EXTENDED_RESOURCE).is_some_and(|value| value == "true") => {
                "extended_resource"
            }
            Some(name) if !name.is_empty() => "resource_claim_template",
            _ => "",
        };
        *counts.entry((claim.status.allocation.is_some(), admin, source)).or_default() += 1;
    }
    let sample = |((allocated, admin, source), count)| {
        CLAIMS.count([text(allocated).into(), text(admin).into(), str::to_owned(source).into()], count)
    };
    counts.into_iter().map(sample).collect()
}

//! The configuration objects with fixed specs: `exempt` and `catch-all`.

use crate::shared::value::{Fields, ensure_object, put};
use kaji_resource::Ctx;
use serde_json::{Value, json};

/// The API group.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";

fn everything(groups: &[&str]) -> Value {
    let subjects: Vec<Value> =
        groups.iter().map(|g| json!({"kind": "Group", "group": {"name": g}})).collect();
    json!([{
        "subjects": subjects,
        "resourceRules": [{
            "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
        }],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }])
}

/// The spec that the FlowSchema of this name must have.
pub fn flow_schema(name: &str) -> Option<Value> {
    match name {
        "exempt" => Some(json!({
            "priorityLevelConfiguration": {"name": "exempt"},
            "matchingPrecedence": 1,
            "rules": everything(&["system:masters"]),
        })),
        "catch-all" => Some(json!({
            "priorityLevelConfiguration": {"name": "catch-all"},
            "matchingPrecedence": 10000,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": everything(&["system:unauthenticated", "system:authenticated"]),
        })),
        _ => None,
    }
}

/// The spec that the PriorityLevelConfiguration of this name must have.
pub fn priority_level(name: &str) -> Option<Value> {
    match name {
        "exempt" => {
            Some(json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}))
        }
        "catch-all" => Some(json!({
            "type": "Limited",
            "limited": {"nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"}},
        })),
        _ => None,
    }
}

/// A status update changes no metadata but managed fields.
pub fn keep_meta(ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
    if ctx.subresource != "status" {
        return;
    }
    let mut meta = old.at("metadata").clone();
    let managed = new.at("metadata").at("managedFields").clone();
    if !managed.is_null() {
        put(&mut meta, "managedFields", managed);
    }
    // The version a client sent is what its update depends on.
    if let Some(version) = new.at("metadata").get_field("resourceVersion") {
        put(&mut meta, "resourceVersion", version.clone());
    }
    *ensure_object(new, "metadata") = meta;
}

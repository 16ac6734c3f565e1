//! What a request means: its path, query and headers are read once, so that what is authorized is what is carried out.

mod queries;
mod random;
mod routes;

use crate::common::TestCluster;
use kaji_audit::Options as AuditOptions;
use serde_json::Value;
use std::path::Path;

/// Records every request of these users with its metadata.
fn audit(dir: &Path, users: &[&str]) -> AuditOptions {
    let file = dir.join("policy.yaml");
    let rules = format!("rules: [{{level: Metadata, users: {users:?}, omitStages: [RequestReceived]}}]\n");
    std::fs::write(&file, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
    let mut options = AuditOptions { policy_file: Some(file), ..AuditOptions::default() };
    options.log.path = dir.join("audit.log").to_str().unwrap().into();
    options
}

/// What was recorded.
fn recorded(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("audit.log")).unwrap();
    // The last line may be on its way.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A role for a user: rules and name.
async fn grant(test: &TestCluster, name: &str, rules: Value) {
    use crate::common::access::{admin, ok};
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let role = serde_json::json!({"metadata": {"name": name}, "rules": rules});
    ok(test, &admin(), &format!("POST {RBAC}/clusterroles"), role).await;
    let binding = serde_json::json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    });
    ok(test, &admin(), &format!("POST {RBAC}/clusterrolebindings"), binding).await;
}

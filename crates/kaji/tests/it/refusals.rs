//! Refused writes are remembered, and shown to those that may read what they are about.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
};
use serde_json::{Value, json};

const REFUSALS: &str = "/apis/kaji.dev/v1alpha1/namespaces/default/refusals";

fn lines(list: &Value) -> String {
    let line = |refusal: &Value| {
        let text = |pointer: &str| refusal.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned();
        format!(
            "{}x {} {} {}/{} by {} ({})",
            refusal["count"],
            text("/user"),
            text("/verb"),
            text("/object/resource"),
            text("/object/name"),
            text("/rule/kind"),
            text("/object/owner"),
        )
    };
    list["items"].as_array().unwrap().iter().map(line).collect::<Vec<_>>().join("\n")
}

async fn shown(cluster: &TestCluster, name: &str) -> String {
    let (code, list) = ask(cluster, &person(name), &format!("GET {REFUSALS}"), &json!(null)).await;
    assert_eq!(code, 200, "{list}");
    lines(&list)
}

#[tokio::test]
async fn refused_writes_are_remembered_for_those_that_may_read_their_objects() {
    let cluster = TestCluster::start(0).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = |name: &str, resource: &str, verbs: Value| {
        json!({"metadata": {"name": name}, "rules": [
            {"apiGroups": [""], "resources": [resource], "verbs": verbs},
            {"apiGroups": ["kaji.dev"], "resources": ["refusals"], "verbs": ["list"]}]})
    };
    let binding = |name: &str| {
        json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]})
    };
    for (name, resource, verbs) in [
        ("writer", "pods", json!(["create"])),
        ("reader", "pods", json!(["get", "list"])),
        ("other", "services", json!(["get"])),
    ] {
        ok(&cluster, &admin(), &format!("POST {rbac}/roles"), role(name, resource, verbs)).await;
        ok(&cluster, &admin(), &format!("POST {rbac}/rolebindings"), binding(name)).await;
    }
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    ok(&cluster, &admin(), "POST /api/v1/namespaces/default/resourcequotas", quota).await;
    // As the quota controller does, which does not run here.
    let counted = json!({"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}});
    ok(&cluster, &admin(), "PATCH /api/v1/namespaces/default/resourcequotas/none/status", counted).await;
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}]);
    let pod = json!({"metadata": {"name": "web-1", "ownerReferences": owner}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for _ in 0..2 {
        let (code, _) = ask(&cluster, &person("writer"), "POST /api/v1/namespaces/default/pods", &pod).await;
        assert_eq!(code, 403);
    }
    let (code, _) =
        ask(&cluster, &person("writer"), "DELETE /api/v1/namespaces/default/secrets/s", &json!(null)).await;
    assert_eq!(code, 403);
    expect_test::expect![[r"
        1x writer delete secrets/s by RBAC (-)
        2x writer create pods/web-1 by ResourceQuota (ReplicaSet web)"]]
    .assert_eq(&shown(&cluster, "writer").await);
    expect_test::expect!["2x writer create pods/web-1 by ResourceQuota (ReplicaSet web)"]
        .assert_eq(&shown(&cluster, "reader").await);
    assert_eq!(shown(&cluster, "other").await, "");
    let (code, _) = ask(&cluster, &person("nothing"), &format!("GET {REFUSALS}"), &json!(null)).await;
    assert_eq!(code, 403);
    cluster.stop().await;
}

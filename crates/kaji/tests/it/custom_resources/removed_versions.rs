//! Versions that a definition no longer has.

use super::*;

const APPLY: &str = "application/apply-patch+yaml";

fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().map_or(&[][..], Vec::as_slice);
    entries.iter().map(|e| format!("{} {}", e["manager"], e["apiVersion"])).collect()
}

/// As upstream: what was applied through a version that is gone cannot be compared with what is applied now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_managed_through_a_removed_version_stop_applies_and_are_dropped_by_updates() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    api.ok(Verb::Create, CRDS, definition()).await;
    api.until(CRDS, "widgets.example.com", established).await;
    let applied = |version: &str, extra: Value| widget(version, "w", extra);
    let path = |version: &str, manager: &str| format!("{version}/w?fieldManager={manager}");
    let first = api.raw(Verb::Patch, &path(V2, "old"), APPLY, &applied("v2", json!({"a": "1"}))).await;
    assert_eq!(first.code, 201);
    let removed = json!([{"op": "remove", "path": "/spec/versions/1"}]);
    api.ok(Verb::Patch, &format!("{CRDS}/widgets.example.com"), removed).await;
    while api.raw(Verb::List, V2, "", &Value::Null).await.code != 404 {
        tokio::task::yield_now().await;
    }
    let refused = api.raw(Verb::Patch, &path(V1, "new"), APPLY, &applied("v1", json!({"one": "1"}))).await;
    let status: Value = serde_json::from_slice(&refused.body.into_bytes().unwrap()).unwrap();
    expect![[r#"500 "request to convert CR to an invalid group/version: example.com/v2""#]]
        .assert_eq(&format!("{} {}", status["code"], status["message"]));
    let mut object = api.ok(Verb::Get, &format!("{V1}/w"), Value::Null).await;
    assert_eq!(managers(&object), [r#""old" "example.com/v2""#]);
    object["one"] = json!("1");
    let updated = api.ok(Verb::Update, &format!("{V1}/w"), object).await;
    assert_eq!(managers(&updated), Vec::<String>::new());
    let again = api.raw(Verb::Patch, &path(V1, "new"), APPLY, &applied("v1", json!({"one": "1"}))).await;
    assert_eq!(again.code, 200);
    cluster.stop().await;
}

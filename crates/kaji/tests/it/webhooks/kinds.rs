//! Webhooks about particular kinds: custom resources in several versions, pods and what belongs to them, namespaces.

use super::*;

fn definition(preserve: bool) -> Value {
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}, "scale":
            {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "data": {"type": "object", "x-kubernetes-preserve-unknown-fields": preserve.then_some(true),
                "properties": {"start": {"type": "string"}, "one": {"type": "string"},
                    "made": {"type": "string", "default": "by default"}}}}}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [version("v1", true), version("v2", false)]}})
}

async fn define(api: &Api<'_>, preserve: bool) {
    define_as(api, definition(preserve)).await;
}

async fn define_as(api: &Api<'_>, definition: Value) {
    api.ok(Verb::Create, "apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let path = "apiextensions.k8s.io/v1/customresourcedefinitions";
    let established = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Established" && c["status"] == "True"))
    };
    api.until(path, "widgets.example.com", |o| o.is_some_and(established)).await;
}

fn widget(version: &str, name: &str) -> Value {
    json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget", "metadata": {"name": name},
        "data": {"start": "yes"}})
}

fn rules(version: &str, resources: &[&str]) -> Value {
    json!([{"operations": ["*"], "apiGroups": ["example.com"], "apiVersions": [version], "resources": resources}])
}

/// A webhook that knows one version is shown that version, whichever a client uses.
#[tokio::test]
async fn custom_resources_in_the_version_that_matched() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    define(&api, true).await;
    let about = |path: &str, version: &str, policy: &str| {
        hooks.hook(
            path,
            json!({"rules": rules(version, &["widgets", "widgets/status"]), "matchPolicy": policy}),
        )
    };
    mutating(
        &api,
        "m",
        vec![
            about("/add/one", "v1", "Equivalent"),
            about("/add/two", "v2", "Equivalent"),
            about("/add/three", "v1", "Exact"),
        ],
    )
    .await;
    let made = api.ok(Verb::Create, "example.com/v2/widgets?namespace=default", widget("v2", "w")).await;
    assert_eq!(made["apiVersion"], "example.com/v2");
    assert_eq!(made["data"], json!({"start": "yes", "one": "1", "two": "1", "made": "by default"}));
    let asked = hooks.take();
    let versions: Vec<_> = asked
        .iter()
        .map(|(path, r)| {
            format!(
                "{path} {} {} {}",
                r["kind"]["version"], r["object"]["apiVersion"], r["requestKind"]["version"]
            )
        })
        .collect();
    expect_test::expect![[r#"
        /add/one?timeout=10s "v1" "example.com/v1" "v2"
        /add/two?timeout=10s "v2" "example.com/v2" "v2""#]]
    .assert_eq(&versions.join("\n"));
    let mut status = made.clone();
    status["status"] = json!({"phase": "new"});
    api.ok(Verb::Update, "example.com/v2/widgets/w/status?namespace=default", status).await;
    let (_, request) = hooks.take().remove(0);
    assert_eq!(
        (&request["subResource"], &request["oldObject"]["apiVersion"]),
        (&json!("status"), &json!("example.com/v1"))
    );
    cluster.stop().await;
}

/// Without a conversion webhook, versions differ in nothing but their name: a webhook is shown fields that its version lacks, and
/// they are kept, however the webhook changes the object.
#[tokio::test]
async fn fields_that_a_webhooks_version_lacks_are_kept() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    let mut versions = definition(false);
    let newer = "/spec/versions/1/schema/openAPIV3Schema/properties/data/properties";
    versions.pointer_mut(newer).unwrap()["newer"] = json!({"type": "string"});
    // Stored as v1, the object would lack the field.
    for (version, stored) in [(0, false), (1, true)] {
        versions["spec"]["versions"][version]["storage"] = json!(stored);
    }
    define_as(&api, versions).await;
    let about = |path: &str| hooks.hook(path, json!({"rules": rules("v1", &["widgets"])}));
    mutating(&api, "m", vec![about("/add/one"), about("/add/two")]).await;
    validating(&api, "v", vec![about("/yes")]).await;
    let mut object = widget("v2", "w");
    object["data"]["newer"] = json!("kept");
    let made = api.ok(Verb::Create, "example.com/v2/widgets?namespace=default", object).await;
    let data = json!({"start": "yes", "newer": "kept", "one": "1", "made": "by default"});
    assert_eq!(made["data"], data);
    let shown: Vec<String> = hooks
        .take()
        .iter()
        .map(|(path, r)| {
            format!(
                "{path} {} {} {}",
                r["object"]["apiVersion"], r["object"]["data"]["newer"], r["object"]["data"]["two"]
            )
        })
        .collect();
    expect_test::expect![[r#"
        /add/one?timeout=10s "example.com/v1" "kept" null
        /add/two?timeout=10s "example.com/v1" "kept" null
        /yes?timeout=10s "example.com/v1" "kept" null"#]]
    .assert_eq(&shown.join("\n"));
    let label = json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]);
    let changed = api.ok(Verb::Patch, "example.com/v2/widgets/w?namespace=default", label).await;
    assert_eq!(changed["data"], data);
    cluster.stop().await;
}

/// What a webhook adds and the schema does not know is pruned.
#[tokio::test]
async fn custom_resources_are_pruned_after_webhooks() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    define(&api, false).await;
    let about = |path: &str| hooks.hook(path, json!({"rules": rules("*", &["widgets"])}));
    mutating(&api, "m", vec![about("/add/one"), about("/add/two/if/one")]).await;
    let made = api.ok(Verb::Create, "example.com/v1/widgets?namespace=default", widget("v1", "w")).await;
    assert_eq!(made["data"], json!({"start": "yes", "one": "1", "made": "by default"}));
    cluster.stop().await;
}

/// The definitions of custom resources may be refused, too.
#[tokio::test]
async fn definitions_may_be_refused() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    let rules = json!([{"operations": ["CREATE"], "apiGroups": ["apiextensions.k8s.io"], "apiVersions": ["*"],
        "resources": ["customresourcedefinitions"]}]);
    validating(&api, "v", vec![hooks.hook("/no", json!({"rules": rules}))]).await;
    let path = "apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(api.refused(Verb::Create, path, definition(true)).await.0, 400);
    cluster.stop().await;
}

/// Webhooks see a request for a token as it is validated: with the account's identity and with defaults.
#[tokio::test]
async fn token_requests_are_complete_when_webhooks_see_them() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    let rules = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
        "resources": ["serviceaccounts/token"]}]);
    validating(&api, "v", vec![hooks.hook("/yes", json!({"rules": rules}))]).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "s"}});
    let account = api.ok(Verb::Create, "/v1/serviceaccounts?namespace=default", account).await;
    let order = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["x"]}});
    let made = api.ok(Verb::Create, "/v1/serviceaccounts/s/token?namespace=default", order).await;
    let mut seen = hooks.take().remove(0).1["object"].take();
    assert_eq!(seen["metadata"]["uid"], account["metadata"]["uid"]);
    assert_eq!(seen["metadata"]["creationTimestamp"], made["metadata"]["creationTimestamp"]);
    seen["metadata"] = json!({"name": seen["metadata"]["name"], "namespace": seen["metadata"]["namespace"]});
    assert_eq!(
        seen,
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "metadata": {"name": "s", "namespace": "default"},
            "spec": {"audiences": ["x"], "expirationSeconds": 3600, "boundObjectRef": null},
            "status": {"token": "", "expirationTimestamp": null}})
    );
    cluster.stop().await;
}

#[tokio::test]
async fn scales_evictions_and_streams() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    let pods = "/v1/pods?namespace=default";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    api.ok(Verb::Create, pods, pod).await;
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "r"}, "spec": {"replicas": 1,
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    api.ok(Verb::Create, "apps/v1/replicasets?namespace=default", set).await;
    let rules = json!([{"operations": ["*"], "apiGroups": ["", "apps"], "apiVersions": ["*"],
        "resources": ["*/scale", "pods/eviction", "pods/attach"]}]);
    validating(&api, "v", vec![hooks.hook("/no", json!({"rules": rules}))]).await;
    let scale = json!([{"op": "replace", "path": "/spec/replicas", "value": 3}]);
    let patched = api.refused(Verb::Patch, "apps/v1/replicasets/r/scale?namespace=default", scale).await.0;
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let evicted = api.refused(Verb::Create, "/v1/pods/p/eviction?namespace=default", eviction).await.0;
    let attach = "/v1/pods/p/attach?namespace=default&stdin=true&container=c";
    let attached = (
        api.refused(Verb::Create, attach, Value::Null).await.0,
        api.refused(Verb::Get, attach, Value::Null).await.0,
    );
    assert_eq!((patched, evicted, attached), (400, 400, (400, 400)));
    let seen: Vec<String> = hooks
        .take()
        .iter()
        .map(|(_, r)| {
            format!(
                "{} {} {} {} {}",
                r["operation"],
                r["kind"]["kind"],
                r["subResource"],
                r["name"],
                r["object"]["spec"].get("replicas").unwrap_or(&r["object"]["stdin"])
            )
        })
        .collect();
    expect_test::expect![[r#"
        "UPDATE" "Scale" "scale" "r" 3
        "CREATE" "Eviction" "eviction" "p" null
        "CONNECT" "PodAttachOptions" "attach" "p" true
        "CONNECT" "PodAttachOptions" "attach" "p" true"#]]
    .assert_eq(&seen.join("\n"));
    cluster.stop().await;
}

/// A namespace is selected by the labels that it is going to have.
#[tokio::test]
async fn namespaces_are_their_own() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    let rules = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["namespaces"]}]);
    let selector = json!({"matchLabels": {"team": "a"}});
    validating(&api, "v", vec![hooks.hook("/no", json!({"rules": rules, "namespaceSelector": selector}))])
        .await;
    let namespace = |name: &str, team: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": team}}});
    assert_eq!(api.refused(Verb::Create, "/v1/namespaces", namespace("a", "a")).await.0, 400);
    api.ok(Verb::Create, "/v1/namespaces", namespace("b", "b")).await;
    let (_, request) = hooks.take().remove(0);
    assert_eq!((&request["name"], &request["namespace"]), (&json!("a"), &json!("a")));
    cluster.stop().await;
}

//! Custom resources from definition to deletion, in a cluster without controllers.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test code: a panic is a failure, a skip is said out loud"
)]

mod common;

use common::{TestCluster, api::Api};
use kaji_resource::Verb;
use serde_json::{Value, json};

const CRDS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";
const V1: &str = "example.com/v1/widgets";
const V2: &str = "example.com/v2/widgets";

fn definition() -> Value {
    let version = |name: &str, storage: bool, own: &str| {
        json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "a": {"type": "string"}, own: {"type": "string"}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1", true, "one"), version("v2", false, "two")]}})
}

fn widget(version: &str, name: &str, extra: Value) -> Value {
    let mut object =
        json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget", "metadata": {"name": name}});
    for (k, v) in extra.as_object().unwrap() {
        object[k] = v.clone();
    }
    object
}

fn established(definition: Option<&Value>) -> bool {
    let conditions =
        definition.and_then(|d| d["status"]["conditions"].as_array().cloned()).unwrap_or_default();
    conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_follow_their_definition() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    api.ok(Verb::Create, CRDS, definition()).await;
    api.until(CRDS, "widgets.example.com", established).await;
    let made = api
        .ok(Verb::Create, V1, widget("v1", "w", json!({"one": "1", "unknown": 1, "status": {"x": 1}})))
        .await;
    assert_eq!((&made["one"], &made["unknown"], &made["status"]), (&json!("1"), &Value::Null, &Value::Null));
    // Another version shows what its schema knows.
    let other = api.ok(Verb::Get, &format!("{V2}/w"), Value::Null).await;
    assert_eq!((&other["apiVersion"], &other["one"]), (&json!("example.com/v2"), &Value::Null));
    // What is written through it keeps what the stored version knows.
    api.ok(Verb::Create, V2, widget("v2", "x", json!({"a": "1", "two": "2"}))).await;
    let stored = api.ok(Verb::Get, &format!("{V1}/x"), Value::Null).await;
    assert_eq!((&stored["a"], &stored["two"]), (&json!("1"), &Value::Null));
    // A default that comes later is seen at once by reads, and a field that goes is not.
    let patch = json!([
        {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/a/default", "value": "A"},
        {"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/one"},
    ]);
    let definition = format!("{CRDS}/widgets.example.com");
    let generation =
        api.ok(Verb::Patch, &definition, patch).await["metadata"]["generation"].as_i64().unwrap();
    assert_eq!(generation, 2);
    let shown = loop {
        let shown = api.ok(Verb::Get, &format!("{V1}/w"), Value::Null).await;
        if shown["a"] == "A" {
            break shown;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(shown["one"], Value::Null);
    assert_eq!(api.ok(Verb::List, V1, Value::Null).await["items"][0]["a"], "A");
    assert_eq!(api.ok(Verb::Get, &format!("{V2}/w"), Value::Null).await["a"], "A");
    // The field comes back with its value: reading has changed nothing.
    let patch = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/one", "value": {"type": "string"}}]);
    api.ok(Verb::Patch, &definition, patch).await;
    while api.ok(Verb::Get, &format!("{V1}/w"), Value::Null).await["one"] != "1" {
        tokio::task::yield_now().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_keeps_its_books_and_goes_last() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let name = format!("{CRDS}/widgets.example.com");
    api.ok(Verb::Create, CRDS, definition()).await;
    api.until(CRDS, "widgets.example.com", established).await;
    // The stored version moves; the one before stays on the books and cannot be dropped yet.
    let patch = json!([
        {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
    ]);
    let moved = api.ok(Verb::Patch, &name, patch).await;
    assert_eq!(moved["status"]["storedVersions"], json!(["v1", "v2"]));
    let dropped = json!([{"op": "remove", "path": "/spec/versions/0"}]);
    let answer = api.raw(Verb::Patch, &name, "application/json-patch+json", &dropped).await;
    assert_eq!(answer.code, 422);
    // A version that is not served any more is not found.
    api.ok(Verb::Patch, &name, json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}]))
        .await;
    while api.raw(Verb::List, V1, "", &Value::Null).await.code != 404 {
        tokio::task::yield_now().await;
    }
    api.ok(
        Verb::Create,
        V2,
        widget("v2", "w", json!({"metadata": {"name": "w", "finalizers": ["example.com/x"]}})),
    )
    .await;
    let going = api.ok(Verb::Delete, &name, Value::Null).await;
    assert_eq!(going["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let terminating = |d: &Value| {
        d["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Terminating").cloned()
    };
    assert_eq!(terminating(&going).unwrap()["reason"], "InstanceDeletionPending");
    api.until(CRDS, "widgets.example.com", |d| {
        terminating(d.unwrap()).is_some_and(|c| c["reason"] == "InstanceDeletionInProgress")
    })
    .await;
    assert_eq!(
        api.refused(Verb::Create, V2, widget("v2", "late", json!({}))).await,
        (
            403,
            "widgets.example.com \"late\" is forbidden: create not allowed while custom resource definition is terminating"
                .into()
        )
    );
    // The object's own finalizer holds everything up.
    let patch = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
    api.ok(Verb::Patch, &format!("{V2}/w"), patch).await;
    let mut seen = false;
    api.until(CRDS, "widgets.example.com", |d| {
        seen |= d.is_some();
        d.is_none() || !seen
    })
    .await;
    while api.raw(Verb::List, V2, "", &Value::Null).await.code != 404 {
        tokio::task::yield_now().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_carried_out_is_said() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let mut ruled = definition();
    ruled["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] =
        json!([{"rule": "true"}]);
    let answer = api.raw(Verb::Create, CRDS, "application/json", &ruled).await;
    assert_eq!((answer.code, answer.warnings.len()), (201, 1));
    assert!(answer.warnings[0].contains("x-kubernetes-validations"), "{:?}", answer.warnings);
    let mut converted = definition();
    converted["metadata"]["name"] = "gadgets.example.com".into();
    converted["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget"});
    converted["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook":
        {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://example.com/convert"}}});
    let (code, message) = api.refused(Verb::Create, CRDS, converted).await;
    assert_eq!(code, 422);
    assert!(
        message.contains("spec.conversion.strategy: Forbidden: webhook conversion is not supported"),
        "{message}"
    );
    cluster.stop().await;
}

//! Definitions of custom resources and APIServices that are written at one server.

use super::Servers;
use crate::{
    aggregation::{
        extension::{ECHOES, Extension, NAME, delete},
        reason,
    },
    common::{
        TestCluster,
        access::{admin, ask, ok},
        until,
    },
};
use serde_json::{Value, json};

pub(super) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(super) const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn version(name: &str, storage: bool, spec: &Value) -> Value {
    json!({"name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}}})
}

/// `widgets.example.com` in version v1.
pub(super) fn definition(spec: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "versions": [version("v1", true, spec)],
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}}})
}

pub(super) fn widget(name: &str, size: i64) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}})
}

/// The code of a request of the administrator.
async fn code(server: &TestCluster, request: &str, body: &Value) -> u16 {
    ask(server, &admin(), request, body).await.0
}

/// Creates objects at a server until what they belong to is gone.
pub(super) async fn creates(
    server: &TestCluster,
    path: &str,
    client: u32,
    object: impl Fn(&str, i64) -> Value,
) {
    let mut made = 0;
    loop {
        match code(server, &format!("POST {path}"), &object(&format!("o{client}-{made}"), made)).await {
            201 => made += 1,
            // It is going.
            403 => {}
            404 => return,
            other => panic!("a creation is answered with {other}"),
        }
    }
}

/// Waits until a server answers a request with a code.
pub(super) async fn answers(server: &TestCluster, request: &str, body: &Value, wanted: u16) {
    until(&format!("{request} is answered with {wanted}"), async || {
        code(server, request, body).await == wanted
    })
    .await;
}

/// The properties of the spec that a server's OpenAPI document of v1 shows.
async fn documented(server: &TestCluster) -> Vec<String> {
    let (code, page) = ask(server, &admin(), "GET /openapi/v3/apis/example.com/v1", &Value::Null).await;
    let schema = &page["components"]["schemas"]["com.example.v1.Widget"]["properties"]["spec"]["properties"];
    let names = schema.as_object().filter(|_| code == 200);
    names.map(|all| all.keys().cloned().collect()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_counts_at_both_servers() {
    let Some(servers) = Servers::start("a_definition_counts_at_both_servers").await else { return };
    let (a, b) = (&servers.a, &servers.b);
    let small = json!({"size": {"type": "integer", "maximum": 5}});
    ok(a, &admin(), &format!("POST {CRDS}"), definition(&small)).await;
    answers(b, "GET /apis/example.com/v1", &Value::Null, 200).await;
    until("the other documents it", async || documented(b).await == ["size"]).await;
    // An object made at one is seen by the other at once, and judged by the same schema.
    ok(b, &admin(), &format!("POST {WIDGETS}"), widget("five", 5)).await;
    ok(a, &admin(), &format!("GET {WIDGETS}/five"), Value::Null).await;
    assert_eq!(code(b, &format!("POST {WIDGETS}"), &widget("nine", 9)).await, 422);

    // A changed schema, and one more version.
    let large = json!({"size": {"type": "integer", "maximum": 10}, "color": {"type": "string"}});
    let versions = json!([version("v1", true, &large), version("v2", false, &large)]);
    let patch = json!({"spec": {"versions": versions}});
    ok(a, &admin(), &format!("PATCH {CRDS}/widgets.example.com"), patch).await;
    answers(b, &format!("POST {WIDGETS}"), &widget("nine", 9), 201).await;
    assert_eq!(code(b, &format!("POST {WIDGETS}"), &widget("eleven", 11)).await, 422);
    until("the other documents the change", async || documented(b).await == ["color", "size"]).await;
    let newer = ok(b, &admin(), &format!("GET {}/nine", WIDGETS.replace("v1", "v2")), Value::Null).await;
    assert_eq!(newer["apiVersion"], "example.com/v2");

    ok(a, &admin(), &format!("DELETE {CRDS}/widgets.example.com"), Value::Null).await;
    for server in [a, b] {
        answers(server, "GET /apis/example.com/v1", &Value::Null, 404).await;
        answers(server, &format!("GET {CRDS}/widgets.example.com"), &Value::Null, 404).await;
    }
    assert_eq!(servers.keys("/registry/example.com/").await, [""; 0]);
    servers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_takes_what_the_other_server_creates_meanwhile_with_it() {
    let test = "a_definition_takes_what_the_other_server_creates_meanwhile_with_it";
    let Some(servers) = Servers::start(test).await else { return };
    let (a, b) = (&servers.a, &servers.b);
    let definition = definition(&json!({"size": {"type": "integer"}}));
    for round in 0..6 {
        ok(a, &admin(), &format!("POST {CRDS}"), definition.clone()).await;
        answers(b, &format!("POST {WIDGETS}"), &widget("first", round), 201).await;
        // Until the resource is gone.
        let creations = (0..4).map(|client| creates(b, WIDGETS, client, widget));
        let deletion = async {
            until("there are some objects", async || servers.keys("/registry/example.com/").await.len() > 8)
                .await;
            ok(a, &admin(), &format!("DELETE {CRDS}/widgets.example.com"), Value::Null).await;
            answers(a, &format!("GET {CRDS}/widgets.example.com"), &Value::Null, 404).await;
        };
        tokio::join!(futures_util::future::join_all(creations), deletion);
        assert_eq!(servers.keys("/registry/example.com/").await, [""; 0], "round {round}");
    }
    servers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_server_is_reached_through_both() {
    let test = "an_extension_server_is_reached_through_both";
    let Some(servers) = Servers::start(test).await else { return };
    let extension = Extension::start(&servers.a).await;
    extension.join(&servers.a).await;
    for server in [&servers.a, &servers.b] {
        reason(server, NAME, "Passed").await;
        answers(server, &format!("GET {ECHOES}/a"), &Value::Null, 200).await;
        let list = ok(server, &admin(), "GET /apis/ext.example.com/v1", Value::Null).await;
        assert_eq!(list["resources"][0]["name"], "echoes");
    }
    delete(&servers.b, "apiregistration.k8s.io", "apiservices", "", NAME).await;
    for server in [&servers.a, &servers.b] {
        answers(server, &format!("GET {ECHOES}/a"), &Value::Null, 404).await;
    }
    servers.stop().await;
}

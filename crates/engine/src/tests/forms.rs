//! Forms and encodings of answers and events.

use super::*;
use expect_test::expect;

async fn world() -> World {
    let w = World::new().await;
    w.put("x", "a", "app=web", &[("color", "red")]).await;
    w.put("x", "b", "", &[]).await;
    w
}

fn get(accept: Accept, query: &str) -> ApiRequest {
    let (namespace, name) = ("x".into(), "a".into());
    ApiRequest { verb: Verb::Get, namespace, name, accept, query: pairs(query), ..request() }
}

const TABLE: Accept = Accept {
    form: Form::Table,
    meta_v1beta1: false,
    encoding: Encoding::Json,
    pretty: false,
    fallback: None,
    separate: false,
};
const PARTIAL: Accept = Accept { form: Form::PartialMetadata, ..TABLE };

/// Without the long descriptions.
fn cut(mut table: Value) -> Value {
    for c in table["columnDefinitions"].as_array_mut().into_iter().flatten() {
        *c = c["name"].clone();
    }
    table
}

#[tokio::test]
async fn encodes_objects_and_their_metadata() {
    let w = world().await;
    let (_, text) = w.send_text(get(Accept::default(), "")).await;
    expect![[r#"
        {"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"x","resourceVersion":"2","creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"web"}},"data":{"color":"red"}}
    "#]].assert_eq(&text);
    let (_, text) = w.send_text(get(Accept { pretty: true, ..Accept::default() }, "")).await;
    expect![[r#"
        {
          "kind": "ConfigMap",
          "apiVersion": "v1",
          "metadata": {
            "name": "a",
            "namespace": "x",
            "resourceVersion": "2",
            "creationTimestamp": "2024-01-01T00:00:00Z",
            "labels": {
              "app": "web"
            }
          },
          "data": {
            "color": "red"
          }
        }"#]]
    .assert_eq(&text);
    let (_, text) = w.send_text(get(Accept { encoding: Encoding::Yaml, ..Accept::default() }, "")).await;
    expect![[r#"
        apiVersion: v1
        data:
          color: red
        kind: ConfigMap
        metadata:
          creationTimestamp: "2024-01-01T00:00:00Z"
          labels:
            app: web
          name: a
          namespace: x
          resourceVersion: "2"
    "#]]
    .assert_eq(&text);
    let (_, text) = w.send_text(get(PARTIAL, "")).await;
    expect![[r#"
        {"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","namespace":"x","resourceVersion":"2","creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"web"}}}
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn encodes_tables() {
    let w = world().await;
    let mut out = String::new();
    for query in ["", "includeObject=None", "includeObject=Object", "includeObject=All"] {
        let (code, v) = w.send(get(TABLE, query)).await;
        let _ = writeln!(out, "{query}: {code} {}", cut(v));
    }
    let (_, v) = w
        .send(ApiRequest {
            accept: Accept { meta_v1beta1: true, ..TABLE },
            query: pairs("limit=1&includeObject=None"),
            ..request()
        })
        .await;
    let _ = writeln!(out, "list: {}", cut(v));
    let (_, v) = w.send(ApiRequest { accept: PARTIAL, ..request() }).await;
    let _ = writeln!(out, "partial list: {v}");
    expect![[r#"
        : 200 {"apiVersion":"meta.k8s.io/v1","columnDefinitions":["Name","Age"],"kind":"Table","metadata":{"resourceVersion":"2"},"rows":[{"cells":["a","60m"],"object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"web"},"name":"a","namespace":"x","resourceVersion":"2"}}}]}
        includeObject=None: 200 {"apiVersion":"meta.k8s.io/v1","columnDefinitions":["Name","Age"],"kind":"Table","metadata":{"resourceVersion":"2"},"rows":[{"cells":["a","60m"],"object":null}]}
        includeObject=Object: 200 {"apiVersion":"meta.k8s.io/v1","columnDefinitions":["Name","Age"],"kind":"Table","metadata":{"resourceVersion":"2"},"rows":[{"cells":["a","60m"],"object":{"apiVersion":"v1","data":{"color":"red"},"kind":"ConfigMap","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"web"},"name":"a","namespace":"x","resourceVersion":"2"}}}]}
        includeObject=All: 400 {"apiVersion":"v1","code":400,"columnDefinitions":null,"kind":"Status","message":"Unable to convert to Table as requested: includeObject: Invalid value: \"All\": must be 'Metadata', 'Object', 'None', or empty","metadata":{},"reason":"BadRequest","status":"Failure"}
        list: {"apiVersion":"meta.k8s.io/v1beta1","columnDefinitions":["Name","Age"],"kind":"Table","metadata":{"continue":"eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6Mywic3RhcnQiOiJ4L2FcdTAwMDAifQ","remainingItemCount":1,"resourceVersion":"3"},"rows":[{"cells":["a","60m"],"object":null}]}
        partial list: {"apiVersion":"meta.k8s.io/v1","items":[{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"web"},"name":"a","namespace":"x","resourceVersion":"2"}},{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{},"name":"b","namespace":"x","resourceVersion":"3"}}],"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"3"}}
    "#]].assert_eq(&out);
}

#[tokio::test]
async fn watches_as_tables() {
    let w = world().await;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&includeObject=None";
    let mut watch = w.watch_as("", query, TABLE).await;
    let mut out = String::new();
    for _ in 0..3 {
        let mut event = watch.next().await.unwrap();
        event["object"] = cut(event["object"].take());
        let _ = writeln!(out, "{event}");
    }
    w.delete("x", "b").await;
    while let Some(event) = watch.next().await {
        if event["type"] == "DELETED" {
            let _ = writeln!(out, "{event}");
            break;
        }
    }
    expect![[r#"
        {"object":{"apiVersion":"meta.k8s.io/v1","columnDefinitions":["Name","Age"],"kind":"Table","metadata":{"resourceVersion":"2"},"rows":[{"cells":["a","60m"],"object":null}]},"type":"ADDED"}
        {"object":{"apiVersion":"meta.k8s.io/v1","columnDefinitions":null,"kind":"Table","metadata":{"resourceVersion":"3"},"rows":[{"cells":["b","60m"],"object":null}]},"type":"ADDED"}
        {"object":{"apiVersion":"meta.k8s.io/v1","columnDefinitions":null,"kind":"Table","metadata":{"resourceVersion":"3"},"rows":[{"cells":[],"object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"3"}}}]},"type":"BOOKMARK"}
        {"object":{"apiVersion":"meta.k8s.io/v1","columnDefinitions":null,"kind":"Table","metadata":{"resourceVersion":"4"},"rows":[{"cells":["b","60m"],"object":null}]},"type":"DELETED"}
    "#]].assert_eq(&out);
}

#[tokio::test]
async fn watches_metadata_alone() {
    let w = world().await;
    let mut watch = w.watch_as("x", "labelSelector=app=web", PARTIAL).await;
    w.put("x", "a", "", &[]).await;
    w.put("x", "b", "app=web", &[]).await;
    let mut out = String::new();
    for _ in 0..3 {
        let _ = writeln!(out, "{}", watch.next().await.unwrap());
    }
    expect![[r#"
        {"object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"web"},"name":"a","namespace":"x","resourceVersion":"2"}},"type":"ADDED"}
        {"object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"web"},"name":"a","namespace":"x","resourceVersion":"4"}},"type":"DELETED"}
        {"object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"web"},"name":"b","namespace":"x","resourceVersion":"5"}},"type":"ADDED"}
    "#]].assert_eq(&out);
}

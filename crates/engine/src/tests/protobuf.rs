//! Answers and events in protobuf: the same objects as in JSON, for those kinds that have the form.

use super::*;
use crate::MediaTypeOptions;
use expect_test::expect;
use kaji_schema::{protobuf, types};

const PROTOBUF: Accept = Accept {
    form: Form::Object,
    meta_v1beta1: false,
    encoding: Encoding::Protobuf,
    pretty: false,
    fallback: None,
    separate: false,
};

/// An enveloped object as JSON.
fn open(bytes: &[u8]) -> Value {
    let envelope = protobuf::open(bytes).unwrap();
    let meta = |kind: &str| types::lookup(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}"));
    let schema = match envelope.kind.as_str() {
        kind @ ("PartialObjectMetadata" | "PartialObjectMetadataList" | "Status") => meta(kind).unwrap(),
        kind => types::for_gvk("", &envelope.api_version, kind).unwrap(),
    };
    let mut value = protobuf::decode(&schema, envelope.raw).unwrap();
    value["kind"] = envelope.kind.into();
    value
}

/// Watch events, frame by frame.
fn events(mut bytes: &[u8]) -> Vec<String> {
    let schema = types::lookup("io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent").unwrap();
    let mut out = vec![];
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (frame, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        // The object is an envelope and no JSON: taken out of field 2, field 1 by hand.
        assert!(protobuf::decode(&schema, frame).is_err());
        let magic = frame.windows(4).position(|w| w == protobuf::MAGIC).unwrap();
        let ty = String::from_utf8(frame[2..2 + usize::from(frame[1])].to_vec()).unwrap();
        out.push(format!("{ty} {}", open(&frame[magic..])));
        bytes = rest;
    }
    out
}

async fn send(w: &World, req: ApiRequest) -> (u16, &'static str, Vec<u8>) {
    let response = w.engine.handle(req).await;
    let (code, content_type) = (response.code, response.content_type);
    (code, content_type, response.body.into_bytes().unwrap().to_vec())
}

#[tokio::test]
async fn encodes_objects_and_lists_in_protobuf() {
    let w = World::new().await;
    w.put("x", "a", "app=web", &[("color", "red")]).await;
    w.put("x", "b", "", &[]).await;
    let get =
        |accept| ApiRequest { verb: Verb::Get, namespace: "x".into(), name: "a".into(), accept, ..request() };
    let (code, content_type, body) = send(&w, get(PROTOBUF)).await;
    assert_eq!((code, content_type), (200, "application/vnd.kubernetes.protobuf"));
    expect![[r#"{"data":{"color":"red"},"kind":"ConfigMap","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"web"},"name":"a","namespace":"x","resourceVersion":"2"}}"#]].assert_eq(&open(&body).to_string());
    let partial = Accept { form: Form::PartialMetadata, ..PROTOBUF };
    let (_, _, body) = send(&w, get(partial)).await;
    expect![[r#"{"kind":"PartialObjectMetadata","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"web"},"name":"a","namespace":"x","resourceVersion":"2"}}"#]].assert_eq(&open(&body).to_string());
    for (accept, query) in [(PROTOBUF, "limit=1"), (partial, "")] {
        let list = ApiRequest { accept, query: pairs(query), ..request() };
        let (code, content_type, body) = send(&w, list).await;
        assert_eq!((code, content_type), (200, "application/vnd.kubernetes.protobuf"));
        let list = open(&body);
        assert_eq!(names(&list), if query.is_empty() { vec!["x/a", "x/b"] } else { vec!["x/a"] });
        assert_eq!(list["metadata"]["resourceVersion"], "3");
    }
    // Refusals are JSON, and say so.
    let missing = ApiRequest { name: "zz".into(), ..get(PROTOBUF) };
    let (code, content_type, _) = send(&w, missing).await;
    assert_eq!((code, content_type), (404, "application/json"));
}

/// Beyond what is kept, elements are encoded again; the length that came first must still be right.
#[tokio::test]
async fn streams_long_lists_in_protobuf() {
    // On a busy machine the cache may take its time with so much.
    let w = World::with(EngineOptions { read_wait: Duration::from_secs(20), ..options() }).await;
    let data = "x".repeat(900 << 10);
    for i in 0..12 {
        let revision = w.put("x", &format!("a{i:02}"), "", &[("k", &data)]).await;
        // Reads wait no longer than other tests want, and this is much to take in.
        w.engine.wait_applied(revision).await;
    }
    let (_, _, body) = send(&w, ApiRequest { accept: PROTOBUF, ..request() }).await;
    assert!(body.len() > 10 << 20);
    let list = open(&body);
    assert_eq!(names(&list).len(), 12);
    assert!(list["items"].as_array().unwrap().iter().all(|i| i["data"]["k"].as_str() == Some(&data)));
}

#[tokio::test]
async fn watches_in_protobuf() {
    let w = World::new().await;
    w.put("x", "a", "", &[("k", "1")]).await;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let watch = |query: &str, accept| ApiRequest {
        verb: Verb::Watch,
        namespace: "x".into(),
        query: pairs(query),
        accept,
        ..request()
    };
    let response = w.engine.handle(watch(query, PROTOBUF)).await;
    assert_eq!(response.content_type, "application/vnd.kubernetes.protobuf;stream=watch");
    let Body::Watch(mut stream) = response.body else { panic!("not a watch") };
    w.put("x", "a", "", &[("k", "2")]).await;
    w.delete("x", "a").await;
    let mut bytes = vec![];
    let mut seen = vec![];
    while !seen.iter().any(|e: &String| e.starts_with("DELETED")) {
        bytes.extend_from_slice(&stream.next().await.unwrap());
        seen = events(&bytes);
        seen.retain(|e| !e.starts_with("BOOKMARK") || e.contains("annotations"));
    }
    expect![[r#"
        ADDED {"data":{"k":"1"},"kind":"ConfigMap","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","name":"a","namespace":"x","resourceVersion":"2"}}
        BOOKMARK {"kind":"ConfigMap","metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"2"}}
        MODIFIED {"data":{"k":"2"},"kind":"ConfigMap","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","name":"a","namespace":"x","resourceVersion":"3"}}
        DELETED {"data":{"k":"2"},"kind":"ConfigMap","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","name":"a","namespace":"x","resourceVersion":"4"}}"#]]
    .assert_eq(&seen.join("\n"));
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99";
    let response = w.engine.handle(watch(query, PROTOBUF)).await;
    let Body::Watch(mut stream) = response.body else { panic!("not a watch") };
    let failed = events(&stream.next().await.unwrap());
    assert!(
        failed[0].starts_with("ERROR ") && failed[0].contains("Too large resource version"),
        "{failed:?}"
    );
}

#[test]
fn resources_with_a_protobuf_form() {
    let yaml = MediaTypeOptions { encoding: Encoding::Yaml, ..MediaTypeOptions::default() };
    assert_eq!(PROTOBUF.settle(true), Some(PROTOBUF));
    assert_eq!(PROTOBUF.settle(false), None);
    let either = Accept { fallback: Some(yaml), ..PROTOBUF };
    assert_eq!(either.settle(false).unwrap().encoding, Encoding::Yaml);
    let partial = Accept { form: Form::PartialMetadata, ..PROTOBUF };
    assert_eq!(partial.settle(false), Some(partial));
}

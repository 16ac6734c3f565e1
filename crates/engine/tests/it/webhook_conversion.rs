//! Resources that a converter outside of the engine converts: a converter that renames a field, counts, fails and hangs on demand.

use super::{Env, env::widgets};
use expect_test::expect;
use futures_util::{StreamExt, stream::BoxStream};
use kaji_engine::{Accept, Body, Form};
use kaji_meta::{Reason, Status, object};
use kaji_resource::{BoxFuture, Conversion, Converter, ResourceDef, SelectableField, Verb};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::Semaphore;

struct Renamer {
    /// What was asked for: how many objects, and the version wanted.
    calls: Mutex<Vec<String>>,
    fails: AtomicBool,
    /// One permit lets one call through.
    gate: Option<Semaphore>,
}

impl Converter for Renamer {
    fn convert<'a>(
        &'a self,
        objects: Vec<Value>,
        api_version: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Value>, Status>> {
        Box::pin(async move {
            self.calls.lock().unwrap().push(format!("{} to {api_version}", objects.len()));
            if let Some(gate) = &self.gate {
                gate.acquire().await.unwrap().forget();
            }
            if self.fails.load(Ordering::SeqCst) {
                return Err(Status::new(500, Reason::Unknown, "the converter is unwell"));
            }
            Ok(objects.into_iter().map(|o| renamed(o, api_version)).collect())
        })
    }
}

fn renamed(mut object: Value, api_version: &str) -> Value {
    assert_ne!(object::api_version(&object), api_version);
    let (old, new) = if api_version.ends_with("v2") { ("size", "length") } else { ("length", "size") };
    if let Some(v) = object::remove_at(&mut object, &["spec", old]) {
        object::set_at(&mut object, &["spec", new], v);
    }
    // Labels are a converter's to change.
    object::set_at(&mut object, &["metadata", "labels", "in"], &api_version[12..]);
    object::set_at(&mut object, &["apiVersion"], api_version);
    object
}

struct World {
    env: Env,
    converter: Arc<Renamer>,
}

fn definition(converter: &Arc<Renamer>, storage: usize) -> ResourceDef {
    let mut def = ResourceDef { storage, conversion: Conversion::Webhook(converter.clone()), ..widgets() };
    def.versions[0].selectable.push(SelectableField::new("spec.size"));
    def.versions[1].selectable.push(SelectableField::new("spec.length"));
    def
}

impl World {
    async fn gated(gate: Option<Semaphore>) -> World {
        let converter = Renamer { calls: Mutex::default(), fails: AtomicBool::new(false), gate };
        let world = World { env: Env::new().await, converter: Arc::new(converter) };
        world.store_in(0).await;
        world
    }

    async fn new() -> World {
        World::gated(None).await
    }

    async fn store_in(&self, storage: usize) {
        self.env.engine.register(vec![definition(&self.converter, storage)]).await.unwrap();
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.converter.calls.lock().unwrap())
    }

    fn fail(&self, fails: bool) {
        self.converter.fails.store(fails, Ordering::SeqCst);
    }

    async fn make(&self, version: &str, name: &str, spec: Value) -> Value {
        let widget = json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget",
            "metadata": {"name": name}, "spec": spec});
        let made = self.env.create(&format!("example.com/{version}/widgets/default"), widget).await;
        assert_eq!(made.code, 201, "{}", made.show());
        made.body
    }

    /// Items of a list, as `name apiVersion spec`.
    async fn list(&self, path: &str) -> String {
        let response = self.env.engine.handle(self.env.request(Verb::List, path, "")).await;
        let (code, bytes) = (response.code, response.body.into_bytes().unwrap());
        let list: Value = serde_json::from_slice(&bytes).unwrap();
        if code != 200 {
            return format!("{code} {}", object::str_at(&list, &["message"]));
        }
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|i| format!("{} {} {}\n", object::name(i), object::api_version(i), i["spec"]))
            .chain(Some(format!("continue {}", !object::str_at(&list, &["metadata", "continue"]).is_empty())))
            .collect()
    }

    async fn watch(&self, path: &str) -> BoxStream<'static, bytes::Bytes> {
        match self.env.engine.handle(self.env.request(Verb::Watch, path, "")).await.body {
            Body::Watch(stream) => stream,
            _ => panic!("no watch"),
        }
    }
}

/// The next events of a watch, as `TYPE name apiVersion spec`.
async fn next(stream: &mut BoxStream<'static, bytes::Bytes>) -> Vec<String> {
    let Some(piece) = stream.next().await else { return vec!["end".into()] };
    let events = serde_json::Deserializer::from_slice(&piece).into_iter::<Value>().map(Result::unwrap);
    events
        .map(|e| match &e["object"] {
            o if e["type"] == "ERROR" => format!("ERROR {} {} {}", o["code"], o["reason"], o["message"]),
            o => format!("{} {} {} {}", e["type"], object::name(o), object::api_version(o), o["spec"]),
        })
        .collect()
}

#[tokio::test]
async fn every_verb_in_every_version() {
    let w = World::new().await;
    let made = w.make("v2", "a", json!({"length": 1})).await;
    assert_eq!(made["spec"], json!({"colour": "red", "length": 1}));
    // The answer is what was written, read back.
    assert_eq!(made["metadata"]["labels"]["in"], "v2");
    assert_eq!(w.calls(), ["1 to example.com/v1", "1 to example.com/v2"]);
    let stored =
        w.env.engine.store().range(kaji_store::Range::prefix("/registry/example.com/")).await.unwrap();
    let text = String::from_utf8(stored.kvs[0].value.to_vec()).unwrap();
    assert!(text.starts_with(r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"#), "{text}");
    assert!(text.contains(r#""size":1"#) && !text.contains("length\":1"), "{text}");
    assert!(!text.contains("resourceVersion"), "{text}");

    let (one, two) = ("example.com/v1/widgets/default/a", "example.com/v2/widgets/default/a");
    assert_eq!(w.env.get(one).await.body["spec"]["size"], 1);
    assert_eq!(w.calls(), Vec::<String>::new());
    let mut got = w.env.get(two).await.body;
    assert_eq!(w.calls(), ["1 to example.com/v2"]);
    assert_eq!(got["spec"]["length"], 1);

    // What changes nothing is not written, also where that takes conversions to know.
    let again = w.env.put(two, &got).await;
    assert_eq!(again.body, got, "{}", again.show());
    got["spec"]["length"] = 2.into();
    let put = w.env.put(two, &got).await;
    assert_eq!((put.code, &put.body["spec"]["length"]), (200, &json!(2)), "{}", put.show());
    assert_eq!(put.body["metadata"]["generation"], 2);
    let merged = w.env.patch("merge", two, json!({"spec": {"length": 3}})).await;
    assert_eq!(merged.body["spec"]["length"], 3, "{}", merged.show());
    let json = w.env.patch("json", two, json!([{"op": "test", "path": "/spec/length", "value": 3}, {"op": "replace", "path": "/spec/length", "value": 4}])).await;
    assert_eq!(json.body["spec"]["length"], 4, "{}", json.show());
    let mut status = json.body;
    status["status"] = json!({"replicas": 7});
    status["spec"] = json!({"length": 99});
    let status = w.env.put(&format!("{two}/status"), &status).await;
    assert_eq!(status.body["spec"]["length"], 4, "{}", status.show());
    let scaled = w.env.patch("merge", &format!("{two}/scale"), json!({"spec": {"replicas": 5}})).await;
    assert_eq!((scaled.code, &scaled.body["spec"]["replicas"]), (200, &json!(5)), "{}", scaled.show());
    assert_eq!(w.env.get(&format!("{two}/scale")).await.body["status"]["replicas"], 7);
    expect![[r#"{"colour":"red","replicas":5,"size":4}"#]]
        .assert_eq(&w.env.get(one).await.body["spec"].to_string());
    let dry = w.env.patch("merge", &format!("{two}?dryRun=All"), json!({"spec": {"length": 9}})).await;
    assert_eq!((dry.code, &dry.body["spec"]["length"]), (200, &json!(9)), "{}", dry.show());

    let finalized = w.env.patch("merge", two, json!({"metadata": {"finalizers": ["x.y/z"]}})).await;
    assert_eq!(finalized.code, 200, "{}", finalized.show());
    let marked = w.env.delete(two, "").await;
    assert_eq!((marked.code, &marked.body["spec"]["length"]), (200, &json!(4)), "{}", marked.show());
    assert!(w.env.get(one).await.body["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(w.env.get(one).await.body["spec"]["size"], 4);
    let gone = w.env.patch("merge", two, json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(gone.code, 200, "{}", gone.show());
    assert_eq!(w.env.get(one).await.code, 404);
}

#[tokio::test]
async fn appliers_of_two_versions() {
    let w = World::new().await;
    let apply = async |version: &str, manager: &str, spec: Value| {
        let config = json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget",
            "metadata": {"name": "a"}, "spec": spec});
        w.env
            .patch(
                "apply",
                &format!("example.com/{version}/widgets/default/a?fieldManager={manager}"),
                config,
            )
            .await
    };
    let first = apply("v1", "one", json!({"size": 1, "colour": "blue"})).await;
    assert_eq!(first.code, 201, "{}", first.show());
    let conflict = apply("v2", "two", json!({"length": 2})).await;
    expect![[r#"
        409 Conflict: Apply failed with 1 conflict: conflict with "one": .spec.size
        warning: example.com/v2 Widget is deprecated"#]]
    .assert_eq(&conflict.brief());
    let shared = apply("v2", "two", json!({"length": 1, "replicas": 3})).await;
    assert_eq!(
        (shared.code, &shared.body["spec"]),
        (200, &json!({"colour": "blue", "length": 1, "replicas": 3})),
        "{}",
        shared.show()
    );
    // What only the first had goes when it gives it up; what the other has, under another name, stays.
    let less = apply("v1", "one", json!({})).await;
    assert_eq!(
        (less.code, &less.body["spec"]),
        (200, &json!({"colour": "red", "replicas": 3, "size": 1})),
        "{}",
        less.show()
    );
    let changed =
        w.env.patch("merge", "example.com/v1/widgets/default/a", json!({"spec": {"size": 5}})).await;
    let owners: Vec<String> = changed.body["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| format!("{} {} {}\n", e["manager"], e["apiVersion"], e["fieldsV1"]["f:spec"]))
        .collect();
    expect![[r#"
        "one" "example.com/v1" {}
        "two" "example.com/v2" {"f:replicas":{}}
        "tester" "example.com/v1" {"f:size":{}}
    "#]]
    .assert_eq(&owners.concat());
    let same = apply("v2", "two", json!({"replicas": 3})).await;
    let rv = same.body["metadata"]["resourceVersion"].clone();
    assert_eq!(apply("v2", "two", json!({"replicas": 3})).await.body["metadata"]["resourceVersion"], rv);
}

#[tokio::test]
async fn lists_of_objects_stored_in_two_versions() {
    let w = World::new().await;
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        w.make("v1", name, json!({"size": i})).await;
    }
    w.store_in(1).await;
    for (i, name) in ["d", "e"].into_iter().enumerate() {
        w.make("v2", name, json!({"length": i})).await;
    }
    assert_eq!(w.calls(), Vec::<String>::new());
    expect![[r#"
        a example.com/v1 {"colour":"red","size":0}
        b example.com/v1 {"colour":"red","size":1}
        c example.com/v1 {"colour":"red","size":2}
        d example.com/v1 {"colour":"red","size":0}
        e example.com/v1 {"colour":"red","size":1}
        continue false"#]]
    .assert_eq(&w.list("example.com/v1/widgets/default").await);
    assert_eq!(w.calls(), ["2 to example.com/v1"]);
    // Selectors are about the version asked for: fields of it, and labels that the converter gave.
    expect![[r#"
        b example.com/v2 {"colour":"red","length":1}
        e example.com/v2 {"colour":"red","length":1}
        continue false"#]]
    .assert_eq(&w.list("example.com/v2/widgets/default?fieldSelector=spec.length=1").await);
    assert_eq!(w.calls(), ["3 to example.com/v2"]);
    expect![[r#"
        a example.com/v2 {"colour":"red","length":0}
        b example.com/v2 {"colour":"red","length":1}
        continue true"#]]
    .assert_eq(&w.list("example.com/v2/widgets/default?labelSelector=in=v2&limit=2").await);
    expect![[r#"
        d example.com/v1 {"colour":"red","size":0}
        continue false"#]]
    .assert_eq(&w.list("example.com/v1/widgets/default?fieldSelector=metadata.name=d").await);
    // What lists had converted is not converted again, as long as the definition is the same.
    assert_eq!(w.calls(), Vec::<String>::new());
    let table = w.env.request(Verb::List, "example.com/v1/widgets/default?includeObject=Object", "");
    let accept = Accept { form: Form::Table, ..Accept::default() };
    let table = w.env.send(kaji_engine::ApiRequest { accept, ..table }).await;
    assert_eq!(table.body["rows"][4]["object"]["spec"]["size"], 1, "{}", table.show());
    let partial = w.env.request(Verb::Get, "example.com/v1/widgets/default/d", "");
    let accept = Accept { form: Form::PartialMetadata, ..Accept::default() };
    let partial = w.env.send(kaji_engine::ApiRequest { accept, ..partial }).await;
    assert_eq!(partial.body["metadata"]["labels"]["in"], "v1", "{}", partial.show());

    let gone =
        w.env.request(Verb::DeleteCollection, "example.com/v1/widgets/default?labelSelector=in=v1", "");
    let gone = w.env.send(gone).await;
    assert_eq!(gone.code, 200, "{}", gone.show());
    expect![[r#"
        a example.com/v1 {"colour":"red","size":0}
        b example.com/v1 {"colour":"red","size":1}
        c example.com/v1 {"colour":"red","size":2}
        continue false"#]]
    .assert_eq(&w.list("example.com/v1/widgets/default").await);
}

#[tokio::test]
async fn a_long_list_goes_in_batches() {
    let w = World::new().await;
    for i in 0..501 {
        w.make("v1", &format!("w{i:03}"), json!({"size": i})).await;
    }
    let listed = w.list("example.com/v2/widgets/default").await;
    assert_eq!(listed.lines().count(), 502);
    assert!(listed.contains("w500 example.com/v2 {\"colour\":\"red\",\"length\":500}"));
    assert_eq!(w.calls(), ["500 to example.com/v2", "1 to example.com/v2"]);
    w.list("example.com/v2/widgets/default?limit=3").await;
    assert_eq!(w.calls(), Vec::<String>::new());
}

#[tokio::test]
async fn a_page_of_what_is_rare_takes_few_calls() {
    let w = World::new().await;
    for i in 0..120 {
        w.make("v1", &format!("w{i:03}"), json!({"size": i})).await;
    }
    let path = "example.com/v2/widgets/default?limit=1&fieldSelector=spec.length=119";
    assert!(w.list(path).await.starts_with("w119 "));
    let calls = ["18 to example.com/v2", "36 to example.com/v2", "66 to example.com/v2"];
    assert_eq!(w.calls(), calls);
}

/// Large objects are not all converted before the first of them are sent: neither those that there are when a watch
/// begins nor those that come later.
#[tokio::test]
async fn watches_convert_no_more_bytes_than_fit() {
    for later in [false, true] {
        let w = World::gated(Some(Semaphore::new(0))).await;
        let path = "example.com/v2/widgets/default";
        let mut watch = w.watch(path).await;
        for name in ["a", "b", "c", "d"] {
            w.make("v1", name, json!({"colour": "x".repeat(1_500_000)})).await;
        }
        if !later {
            watch = w.watch(path).await;
        }
        for names in [["a", "b"], ["c", "d"]] {
            w.converter.gate.as_ref().unwrap().add_permits(1);
            for name in names {
                let event = tokio::time::timeout(Duration::from_secs(60), next(&mut watch)).await.unwrap();
                assert!(event.len() == 1 && event[0].starts_with(&format!("\"ADDED\" {name} ")), "{name}");
            }
            assert_eq!(w.calls(), ["2 to example.com/v2"]);
        }
    }
}

#[tokio::test]
async fn failures_are_the_answers() {
    let w = World::new().await;
    w.make("v1", "a", json!({"size": 1})).await;
    w.fail(true);
    let two = "example.com/v2/widgets/default/a";
    expect![[r#"
        500 : the converter is unwell
        warning: example.com/v2 Widget is deprecated"#]]
    .assert_eq(&w.env.get(two).await.brief());
    expect!["500 the converter is unwell"].assert_eq(&w.list("example.com/v2/widgets/default").await);
    expect![[r#"
        500 : the converter is unwell
        warning: example.com/v2 Widget is deprecated"#]]
    .assert_eq(&w.env.patch("merge", two, json!({"spec": {"length": 2}})).await.brief());
    expect![[r#"
        500 : the converter is unwell
        warning: example.com/v2 Widget is deprecated"#]]
    .assert_eq(&w.env.delete(two, "").await.brief());
    let widget = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "b"}});
    expect![[r#"
        500 : the converter is unwell
        warning: example.com/v2 Widget is deprecated"#]]
    .assert_eq(&w.env.create("example.com/v2/widgets/default", widget).await.brief());
    // The version that is stored needs no conversion.
    assert_eq!(
        w.env.patch("merge", "example.com/v1/widgets/default/a", json!({"spec": {"size": 2}})).await.code,
        200
    );
    assert_eq!(w.list("example.com/v1/widgets/default").await.lines().count(), 2);
    w.fail(false);
    assert_eq!(w.env.get(two).await.body["spec"]["length"], 2);
}

#[tokio::test]
async fn watches_see_their_version() {
    let w = World::new().await;
    w.make("v1", "a", json!({"size": 1})).await;
    let mut all = w.watch("example.com/v2/widgets/default").await;
    let mut ones = w.watch("example.com/v2/widgets/default?fieldSelector=spec.length=1").await;
    expect![[r#"["\"ADDED\" a example.com/v2 {\"colour\":\"red\",\"length\":1}"]"#]]
        .assert_eq(&format!("{:?}", next(&mut all).await));
    assert_eq!(next(&mut ones).await.len(), 1);
    assert_eq!(w.calls(), ["1 to example.com/v2"]);
    let path = "example.com/v1/widgets/default/a";
    w.env.patch("merge", path, json!({"spec": {"size": 2}})).await;
    expect![[r#"["\"MODIFIED\" a example.com/v2 {\"colour\":\"red\",\"length\":2}"]"#]]
        .assert_eq(&format!("{:?}", next(&mut all).await));
    // It is no longer one of those selected: the last state that was.
    expect![[r#"["\"DELETED\" a example.com/v2 {\"colour\":\"red\",\"length\":1}"]"#]]
        .assert_eq(&format!("{:?}", next(&mut ones).await));
    w.env.delete(path, "").await;
    expect![[r#"["\"DELETED\" a example.com/v2 {\"colour\":\"red\",\"length\":2}"]"#]]
        .assert_eq(&format!("{:?}", next(&mut all).await));
    // Both watches, and the deletion, had the state converted that the change before had made.
    assert_eq!(w.calls(), ["1 to example.com/v2"]);

    w.fail(true);
    w.make("v1", "b", json!({"size": 3})).await;
    expect![[r#"["ERROR 500 \"InternalError\" \"the converter is unwell\""]"#]]
        .assert_eq(&format!("{:?}", next(&mut all).await));
    assert_eq!(next(&mut all).await, ["end"]);
}

#[tokio::test]
async fn watches_begin_anew_when_the_definition_changes() {
    let w = World::new().await;
    let mut before = w.watch("example.com/v2/widgets/default").await;
    w.make("v1", "a", json!({"size": 1})).await;
    assert_eq!(next(&mut before).await.len(), 1);
    w.store_in(1).await;
    assert_eq!(next(&mut before).await, ["end"]);
    let mut after = w.watch("example.com/v2/widgets/default").await;
    assert_eq!(next(&mut after).await.len(), 1);
    // The definition was replaced: watches through the old one must not go on either.
    w.env.engine.register(vec![widgets()]).await.unwrap();
    assert_eq!(next(&mut after).await, ["end"]);
}

#[tokio::test]
async fn shares_one_conversion_among_concurrent_requests() {
    let w = World::gated(Some(Semaphore::new(0))).await;
    w.make("v1", "a", json!({"size": 1})).await;
    let mut watches = vec![];
    for _ in 0..20 {
        let mut watch = w.watch("example.com/v2/widgets/default").await;
        watches.push(tokio::spawn(async move { next(&mut watch).await }));
    }
    tokio::task::yield_now().await;
    // Others are served while the converter hangs.
    assert_eq!(w.env.get("example.com/v1/widgets/default/a").await.code, 200);
    assert_eq!(w.env.get("v1/namespaces/default").await.code, 200);
    w.converter.gate.as_ref().unwrap().add_permits(1);
    for watch in watches {
        assert_eq!(watch.await.unwrap().len(), 1);
    }
    assert_eq!(w.calls(), ["1 to example.com/v2"]);
}

#[tokio::test]
async fn what_is_discarded_is_not_converted() {
    let w = World::new().await;
    w.make("v1", "a", json!({"size": 1})).await;
    w.make("v1", "b", json!({"size": 1})).await;
    let one = "example.com/v1/widgets/default/b";
    assert_eq!(w.env.patch("merge", one, json!({"metadata": {"finalizers": ["x.y/z"]}})).await.code, 200);
    w.store_in(1).await;
    w.fail(true);
    let widgets = kaji_meta::GroupResource::new("example.com", "widgets");
    w.env.engine.discard(&widgets, "default", "a").await.unwrap();
    w.env.engine.discard(&widgets, "default", "b").await.unwrap();
    assert_eq!(w.env.engine.discard(&widgets, "default", "a").await.unwrap_err().code, 404);
    let left = w.env.get(one).await;
    assert!(left.body["metadata"]["deletionTimestamp"].is_string(), "{}", left.show());
    assert_eq!(w.calls(), Vec::<String>::new());
}

//! Resources come, change and go while requests run.

use super::*;
use crate::EngineError;
use kaji_meta::{GroupResource, Status};
use kaji_resource::Hooks;
use kaji_schema::{Schema, SchemaRef};

/// A custom resource with two versions that differ in a field's name.
struct Renames;

impl Hooks for Renames {
    fn convert(&self, object: &mut Value, from: &str, to: &str) -> Result<(), Status> {
        let (old, new) = if to == "v2" { ("one", "two") } else { ("two", "one") };
        assert_ne!(from, to);
        let map = object.as_object_mut().unwrap();
        if map.get(old) == Some(&json!("bad")) {
            return Err(Status::internal("cannot convert"));
        }
        if let Some(v) = map.remove(old) {
            map.insert(new.into(), v);
        }
        Ok(())
    }
}

fn widgets() -> ResourceDef {
    let mut def = config_maps();
    def.group = "example.com".into();
    (def.kind, def.list_kind, def.plural) = ("Widget".into(), "WidgetList".into(), "widgets".into());
    def.versions[0].schema = SchemaRef::owned(Schema::default());
    let mut v2 = def.versions[0].clone();
    v2.name = "v2".into();
    def.versions.push(v2);
    def.hooks = Arc::new(Renames);
    def
}

fn widget_request(version: &str) -> ApiRequest {
    ApiRequest {
        group: "example.com".into(),
        version: version.into(),
        resource: "widgets".into(),
        ..request()
    }
}

async fn put_widget(w: &World, name: &str, field: &str, value: &str) -> Revision {
    let v = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name, "namespace": "x"}, field: value});
    w.put_value(&format!("/registry/example.com/widgets/x/{name}"), &v).await
}

#[tokio::test]
async fn registered_later_with_objects_there() {
    let w = World::new().await;
    assert_eq!(w.send(widget_request("v1")).await.0, 404);
    let before = w.engine.registry().generation;
    put_widget(&w, "a", "one", "1").await;
    w.engine.register(vec![widgets()]).await.unwrap();
    assert_eq!(w.engine.registry().generation, before + 1);
    let (_, v) = w.send(widget_request("v1")).await;
    assert_eq!((v["kind"].as_str(), v["items"][0]["one"].as_str()), (Some("WidgetList"), Some("1")));
    let (_, v) = w.send(widget_request("v2")).await;
    assert_eq!(
        v["items"][0],
        json!({"apiVersion": "example.com/v2", "kind": "Widget", "two": "1",
            "metadata": {"name": "a", "namespace": "x", "resourceVersion": "2"}})
    );
    assert_eq!(w.send(widget_request("v3")).await.0, 404);
}

#[tokio::test]
async fn conversions_may_fail() {
    let w = World::new().await;
    w.engine.register(vec![widgets()]).await.unwrap();
    put_widget(&w, "a", "one", "bad").await;
    assert_eq!(w.send(widget_request("v1")).await.0, 200);
    let (code, v) = w.send(widget_request("v2")).await;
    assert_eq!((code, v["message"].as_str()), (500, Some("Internal error occurred: cannot convert")));
}

#[tokio::test]
async fn watches_end_with_the_resource_and_survive_its_change() {
    let w = World::new().await;
    w.engine.register(vec![widgets()]).await.unwrap();
    let response = w.engine.handle(ApiRequest { verb: Verb::Watch, ..widget_request("v2") }).await;
    let Body::Watch(stream) = response.body else { panic!("no watch") };
    let mut watch = Watch { stream, text: String::new() };
    put_widget(&w, "a", "one", "1").await;
    let event = watch.next().await.unwrap();
    assert_eq!((event["type"].as_str(), event["object"]["two"].as_str()), (Some("ADDED"), Some("1")));

    let mut changed = widgets();
    changed.versions[1].selectable.push(SelectableField::new("one"));
    changed.storage = 1;
    w.engine.register(vec![changed]).await.unwrap();
    let rv = put_widget(&w, "b", "one", "2").await;
    assert_eq!(watch.short().await, format!("ADDED b@{rv}"));
    // Objects from before the change can be selected by the new field, and still be read.
    let (_, v) = w.send(ApiRequest { query: pairs("fieldSelector=one=1"), ..widget_request("v2") }).await;
    assert_eq!(names(&v), ["x/a"]);

    let group_resource = GroupResource::new("example.com", "widgets");
    w.engine.end_watches(&group_resource);
    assert_eq!(watch.short().await, "end");
    let mut watch = watch_widgets(&w, "v2", "").await;
    assert!(watch.short().await.starts_with("ADDED"));
    w.engine.unregister(&group_resource);
    assert_eq!(watch.shorts(2).await[1], "end");
    assert_eq!(w.send(widget_request("v1")).await.0, 404);
    w.engine.register(vec![widgets()]).await.unwrap();
    assert_eq!(names(&w.send(widget_request("v1")).await.1), ["x/a", "x/b"]);
}

async fn watch_widgets(w: &World, version: &str, query: &str) -> Watch {
    let request = ApiRequest { verb: Verb::Watch, query: pairs(query), ..widget_request(version) };
    match w.engine.handle(request).await.body {
        Body::Watch(stream) => Watch { stream, text: String::new() },
        _ => panic!("no watch"),
    }
}

/// Fields that become selectable are those of former states, too: of events still in memory and of lists under way.
#[tokio::test]
async fn added_fields_select_from_the_past() {
    let w = World::new().await;
    w.engine.register(vec![widgets()]).await.unwrap();
    put_widget(&w, "a", "one", "1").await; // 2
    put_widget(&w, "b", "one", "2").await; // 3
    put_widget(&w, "c", "one", "1").await; // 4
    w.engine.wait_applied(4).await;
    let list = async |query: &str| {
        let (code, v) = w.send(ApiRequest { query: pairs(query), ..widget_request("v1") }).await;
        (short_list(code, &v), v["metadata"]["continue"].as_str().unwrap_or_default().to_owned())
    };
    // Its state is kept for the rest of the list.
    let (first, token) = list("limit=1").await;
    assert_eq!(first, "@4 [x/a] more 2");
    put_widget(&w, "a", "one", "2").await; // 5
    put_widget(&w, "b", "one", "1").await; // 6
    let mut changed = widgets();
    changed.versions[0].selectable.push(SelectableField::new("one"));
    w.engine.register(vec![changed]).await.unwrap();

    let exact = "resourceVersion=4&resourceVersionMatch=Exact&fieldSelector=one=1";
    assert_eq!(list(exact).await.0, "@4 [x/a x/c]");
    assert_eq!(list(&format!("limit=1&continue={token}&fieldSelector=one=1")).await.0, "@4 [x/c]");
    let mut watch = watch_widgets(&w, "v1", "resourceVersion=2&fieldSelector=one=1").await;
    assert_eq!(watch.shorts(3).await, ["ADDED c@4", "DELETED a@5", "ADDED b@6"]);
    put_widget(&w, "c", "one", "2").await; // 7
    assert_eq!(watch.short().await, "DELETED c@7");
}

#[tokio::test]
async fn a_watch_of_the_past_shows_the_present_shape() {
    let w = World::new().await;
    let register = async |known, color| {
        let mut def = widgets();
        def.hooks = Arc::new(Shape(known, color));
        w.engine.register(vec![def]).await.unwrap();
    };
    register(&["one", "color"], "red").await;
    put_widget(&w, "a", "one", "1").await;
    w.engine.wait_applied(2).await;
    register(&["one", "color"], "blue").await;
    let mut watch = watch_widgets(&w, "v1", "resourceVersion=1").await;
    assert_eq!(watch.next().await.unwrap()["object"]["color"], "blue");
}

#[tokio::test]
async fn shutdown_ends_watches() {
    let w = World::new().await;
    let mut watch = w.watch("", "").await;
    w.engine.shutdown().await;
    assert_eq!(watch.short().await, "end");
    // A new watch is refused.
    let again = ApiRequest { verb: Verb::Watch, query: pairs("watch=true"), ..request() };
    assert_eq!(w.send(again).await.0, 503);
    assert!(matches!(w.engine.register(vec![widgets()]).await, Err(EngineError::Closed)));
}

#[tokio::test]
async fn shares_the_storage_of_another_resource() {
    let w = World::new().await;
    let mut def = widgets();
    def.shares_storage_of = Some(GroupResource::new("", "secrets"));
    assert!(matches!(w.engine.register(vec![def.clone()]).await, Err(EngineError::NoOwner { .. })));
    def.shares_storage_of = Some(GroupResource::new("", "configmaps"));
    w.engine.register(vec![def]).await.unwrap();
    w.put("x", "a", "", &[]).await;
    let (_, v) = w.send(widget_request("v1")).await;
    assert_eq!((v["items"][0]["kind"].as_str(), names(&v)), (Some("Widget"), vec!["x/a".to_owned()]));
    w.engine.unregister(&GroupResource::new("example.com", "widgets"));
    assert_eq!(w.listed("", "").await, "@2 [x/a]");
}

#[tokio::test]
async fn a_batch_that_cannot_be_registered_leaves_no_trace() {
    let w = World::new().await;
    put_widget(&w, "a", "one", "1").await;
    let mut orphan = widgets();
    (orphan.plural, orphan.kind) = ("orphans".into(), "Orphan".into());
    orphan.shares_storage_of = Some(GroupResource::new("", "secrets"));
    assert!(matches!(w.engine.register(vec![widgets(), orphan]).await, Err(EngineError::NoOwner { .. })));
    assert_eq!(w.send(widget_request("v1")).await.0, 404);
    w.engine.register(vec![widgets()]).await.unwrap();
    assert_eq!(names(&w.send(widget_request("v1")).await.1), ["x/a"]);
}

/// Counts conversions: objects stored in another version are converted when they are decoded.
struct Counts(std::sync::atomic::AtomicUsize);

impl Hooks for Counts {
    fn convert(&self, _: &mut Value, _: &str, _: &str) -> Result<(), Status> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test]
async fn what_a_selector_does_not_want_is_not_decoded() {
    use kaji_resource::ObjectReader;
    let w = World::new().await;
    for (ns, i) in (0..100).map(|i| (if i % 2 == 0 { "x" } else { "y" }, i)) {
        let v = json!({"apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {"name": format!("w{i}"), "namespace": ns, "labels": {"n": (i / 10).to_string()}}});
        w.put_value(&format!("/registry/example.com/widgets/{ns}/w{i}"), &v).await;
    }
    let counts = Arc::new(Counts(Default::default()));
    let mut def = widgets();
    def.hooks = counts.clone();
    def.storage = 1;
    w.engine.register(vec![def]).await.unwrap();
    let widgets = GroupResource::new("example.com", "widgets");
    let selector = kaji_meta::labels::Selector::parse("n in (3,4),n!=4").unwrap();
    let found = |namespace: Option<&str>| {
        let all = w.engine.selected(&widgets, namespace, &selector);
        all.iter().map(|v| kaji_meta::object::name(v).to_owned()).collect::<Vec<_>>()
    };
    let decoded = || counts.0.swap(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(found(Some("x")), ["w30", "w32", "w34", "w36", "w38"]);
    assert_eq!(decoded(), 5);
    assert_eq!(found(None).len(), 10);
    // Those of before are known.
    assert_eq!(decoded(), 5);
    assert_eq!(found(Some("z")), Vec::<String>::new());
}

/// Hundreds of resources stay cheap: each change is visible at once, and lookups find the right group.
#[tokio::test]
async fn registers_many_resources() {
    let w = World::new().await;
    for i in 0..300 {
        let mut def = widgets();
        def.group = format!("g{i}.example.com").into();
        w.engine.register(vec![def]).await.unwrap();
    }
    let registry = w.engine.registry();
    assert_eq!(registry.len(), 302);
    for i in 0..300 {
        let r = registry.lookup(&format!("g{i}.example.com"), "v2", "widgets").unwrap();
        assert_eq!(r.def.group, format!("g{i}.example.com"));
        assert!(registry.by_kind(&r.def.group, "v1", "Widget").is_some());
    }
}

/// Keeps only the fields of its list, and has a default.
struct Shape(&'static [&'static str], &'static str);

impl Hooks for Shape {
    fn normalizer(&self) -> Option<&dyn kaji_resource::Normalizer> {
        Some(self)
    }
}

impl kaji_resource::Normalizer for Shape {
    fn normalize(&self, object: &mut Value) {
        let map = object.as_object_mut().unwrap();
        map.retain(|k, _| {
            matches!(k.as_str(), "apiVersion" | "kind" | "metadata") || self.0.contains(&k.as_str())
        });
        map.entry("color").or_insert_with(|| self.1.into());
    }
}

#[tokio::test]
async fn stored_objects_take_the_shape_of_the_present_definition() {
    let w = World::new().await;
    let register = async |known, color| {
        let mut def = widgets();
        def.hooks = Arc::new(Shape(known, color));
        w.engine.register(vec![def]).await.unwrap();
    };
    let seen = async || {
        let (_, list) = w.send(widget_request("v1")).await;
        let item = |i: &Value| format!("{} {} {}", i["metadata"]["resourceVersion"], i["one"], i["color"]);
        list["items"].as_array().unwrap().iter().map(item).collect::<Vec<_>>()
    };
    put_widget(&w, "a", "one", "1").await;
    register(&["one", "color"], "red").await;
    assert_eq!(seen().await, [r#""2" "1" "red""#]);
    // A field goes, a default changes; what is in the store does not.
    register(&["color"], "blue").await;
    assert_eq!(seen().await, [r#""2" null "blue""#]);
    // A write under the former definition arrives late.
    put_widget(&w, "b", "one", "2").await;
    assert_eq!(seen().await, [r#""2" null "blue""#, r#""3" null "blue""#]);
    register(&["one", "color"], "red").await;
    assert_eq!(seen().await, [r#""2" "1" "red""#, r#""3" "2" "red""#]);
    // So do lists of the past, which the store answers.
    let old =
        ApiRequest { query: pairs("resourceVersion=2&resourceVersionMatch=Exact"), ..widget_request("v1") };
    assert_eq!(w.send(old).await.1["items"][0]["color"], "red");
}

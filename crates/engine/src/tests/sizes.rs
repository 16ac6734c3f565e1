//! Small requests for large objects: what is refused, with which answer, and what is never held in memory as a whole.

use super::*;
use kaji_meta::object;
use kaji_resource::{Conversion, Hooks};
use kaji_schema::{SchemaRef, structural};

/// Custom resources of this schema, which need not be valid.
fn custom(schema: &Value, hooks: impl Hooks + 'static) -> ResourceDef {
    let mut def = config_maps();
    def.group = "example.com".into();
    (def.kind, def.list_kind, def.plural) = ("Bomb".into(), "BombList".into(), "bombs".into());
    def.versions[0].schema = SchemaRef::owned(structural::build(schema));
    def.versions[0].selectable = vec![SelectableField::new("color")];
    def.conversion = Conversion::Direct;
    def.hooks = Arc::new(hooks);
    def
}

/// An engine with these resources and a namespace.
async fn world(def: ResourceDef) -> World {
    let w = World::new().await;
    let namespaces =
        ResourceDef::builtin("", "v1", "Namespace", "namespaces", Scope::Cluster, COLUMNS, NoHooks);
    w.engine.register(vec![namespaces, def]).await.unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}});
    w.put_value("/registry/core/namespaces/x", &namespace).await;
    w
}

fn to(verb: Verb, name: &str, content_type: &str, body: String) -> ApiRequest {
    ApiRequest {
        verb,
        group: "example.com".into(),
        resource: "bombs".into(),
        namespace: "x".into(),
        name: name.into(),
        content_type: content_type.into(),
        body: body.into(),
        ..request()
    }
}

fn bomb(name: &str, x: &str) -> String {
    format!(r#"{{"apiVersion":"example.com/v1","kind":"Bomb","metadata":{{"name":"{name}"}},"x":{x}}}"#)
}

fn brief((code, answer): (u16, Value)) -> String {
    format!(
        "{code} {} {}",
        answer["reason"].as_str().unwrap_or("-"),
        answer["message"].as_str().unwrap_or("-")
    )
}

#[tokio::test]
async fn refuses_bodies_that_become_much_larger() {
    let properties: serde_json::Map<String, Value> = (0..60)
        .map(|i| (format!("p{i}"), json!({"type": "string", "default": "x".repeat(10_000)})))
        .collect();
    let schema = json!({"type": "object", "properties": {"x": {"type": "array", "items":
        {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": properties}}}});
    let w = world(custom(&schema, NoHooks)).await;
    let (many, json) = (format!("[{}]", vec!["{}"; 20_000].join(",")), "application/json");
    assert_eq!(brief(w.send(to(Verb::Create, "", json, bomb("few", "[{}]"))).await), "201 - -");
    let merge = format!(r#"{{"x":{many}}}"#);
    let add = format!(r#"[{{"op":"add","path":"/x","value":{many}}}]"#);
    let yaml = format!("a: &a {}\nx: [{}]\n", "y".repeat(1 << 20), ["*a"; 1_000].join(","));
    // Maps that take a hundred times as much as their text.
    let tiny = format!("[{}]", vec![r#"{"":0}"#; 400_000].join(","));
    let answers = [
        brief(w.send(to(Verb::Create, "", json, bomb("many", &many))).await),
        brief(w.send(to(Verb::Patch, "few", "application/merge-patch+json", merge)).await),
        brief(w.send(to(Verb::Patch, "few", "application/json-patch+json", add)).await),
        brief(w.send(to(Verb::Create, "", "application/yaml", yaml)).await),
        brief(w.send(to(Verb::Create, "", json, bomb("tiny", &tiny))).await),
    ];
    expect_test::expect![[r#"
        413 RequestEntityTooLarge Request entity too large: limit is 67108864 bytes of memory
        413 RequestEntityTooLarge Request entity too large: limit is 67108864 bytes of memory
        413 RequestEntityTooLarge Request entity too large: limit is 67108864 bytes of memory
        400 BadRequest the object provided is unrecognized (must be of type Bomb): yaml: document contains excessive aliasing (613a20266120797979797979797979797979797979797979797979797979 ...)
        413 RequestEntityTooLarge Request entity too large: limit is 201326592 bytes of memory"#]]
    .assert_eq(&answers.join("\n"));
}

#[tokio::test]
async fn objects_are_as_large_as_upstreams() {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let w = world(custom(&schema, NoHooks)).await;
    let json = "application/json";
    let text = |n: usize| format!("\"{}\"", "y".repeat(n));
    assert_eq!(w.send(to(Verb::Create, "", json, bomb("a", &text(1_500_000)))).await.0, 201);
    let patch = format!(r#"{{"more":{}}}"#, text(100_000));
    let own = |verb, name: &str, body: String| ApiRequest {
        group: String::new(),
        resource: "configmaps".into(),
        ..to(verb, name, json, body)
    };
    let map =
        |n: usize, c: &str| format!(r#"{{"metadata":{{"name":"m"}},"data":{{"a":"{}"}}}}"#, c.repeat(n));
    let answers = [
        brief(w.send(to(Verb::Create, "", json, bomb("b", &text(1_572_864)))).await),
        brief(w.send(to(Verb::Create, "", json, bomb("b", &text(2_600_000)))).await),
        brief(w.send(to(Verb::Patch, "a", "application/merge-patch+json", patch)).await),
        brief(w.send(own(Verb::Create, "", map(1_600_000, "y"))).await),
    ];
    let answers = answers.join("\n");
    // The message's length is that of the object and of what is around it.
    let (before, after) = answers.split_once("(26").unwrap();
    let answers = format!("{before}(26…{}", &after[after.find(' ').unwrap()..]);
    expect_test::expect![[r#"
        500 - etcdserver: request is too large
        500 - rpc error: code = ResourceExhausted desc = trying to send message larger than max (26… vs. 2097152)
        500 - etcdserver: request is too large
        500 - etcdserver: request is too large"#]]
    .assert_eq(&answers);
    // Two bytes each in JSON, one in protobuf, which is what counts for built-in kinds.
    assert_eq!(w.send(own(Verb::Create, "", map(1_000_000, "\\n"))).await.0, 201);
    // A dry run stores nothing.
    let dry =
        ApiRequest { query: pairs("dryRun=All"), ..to(Verb::Create, "", json, bomb("c", &text(1_600_000))) };
    assert_eq!(w.send(dry).await.0, 201);
    // What fits without its managed fields is stored without them.
    let fields: Vec<String> =
        (0..1_000).map(|i| format!(r#""{}{i}":"{}""#, "k".repeat(60), "v".repeat(1_440))).collect();
    let (code, made) =
        w.send(to(Verb::Create, "", json, bomb("d", &format!("{{{}}}", fields.join(","))))).await;
    assert_eq!((code, &made["metadata"]["managedFields"]), (201, &Value::Null));
}

/// Has gained a default that is much larger than its objects.
struct Grown(&'static str);

impl Hooks for Grown {
    fn normalizer(&self) -> Option<&dyn kaji_resource::Normalizer> {
        Some(self)
    }
}

impl kaji_resource::Normalizer for Grown {
    fn normalize(&self, object: &mut Value) {
        let map = object.as_object_mut().unwrap();
        map.entry("color").or_insert("red".into());
        map.entry("fill").or_insert(self.0.repeat(1 << 20).into());
    }
}

/// The pieces of a list's body: how many, the longest, and all of them.
fn pieces(body: Body) -> (usize, usize, Vec<u8>) {
    let Body::Lazy(pieces) = body else { panic!("a large list comes in pieces") };
    pieces.fold((0, 0, vec![]), |(n, longest, mut all), piece| {
        all.extend_from_slice(&piece);
        (n + 1, longest.max(piece.len()), all)
    })
}

#[tokio::test]
async fn large_defaults_are_not_kept_with_small_objects() {
    const MIB: usize = 1 << 20;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let def = |fill| custom(&schema, Grown(fill));
    let w = world(def("z")).await;
    let put = async |name: &str, color: &str| {
        let mut value = json!({"apiVersion": "example.com/v1", "kind": "Bomb", "metadata": {"name": name, "namespace": "x"}});
        if !color.is_empty() {
            value["color"] = color.into();
        }
        w.put_value(&format!("/registry/example.com/bombs/x/{name}"), &value).await
    };
    for i in 0..40 {
        put(&format!("n{i:02}"), if i == 7 { "blue" } else { "" }).await;
    }
    // Once more: objects are then written by one definition and shown by another.
    w.engine.register(vec![def("z")]).await.unwrap();
    let registry = w.engine.registry();
    let res = registry.lookup("example.com", "v1", "bombs").unwrap();
    let held = || res.cache.snapshot().objects.values().map(|e| e.size()).sum::<usize>();
    assert!(held() < MIB, "{} bytes", held());

    let list = |accept| ApiRequest { accept, ..to(Verb::List, "", "", String::new()) };
    let plain = Accept::default();
    let (n, longest, all) = pieces(w.engine.handle(list(plain)).await.body);
    let whole: Value = serde_json::from_slice(&all).unwrap();
    assert_eq!(whole["items"].as_array().unwrap().len(), 40);
    assert!(whole["items"].as_array().unwrap().iter().all(|i| i["fill"].as_str().unwrap().len() == MIB));
    assert!(n > 40 && longest < 2 * MIB, "{n} pieces of up to {longest}");
    let pretty = Accept { pretty: true, ..plain };
    let (n, longest, all) = pieces(w.engine.handle(list(pretty)).await.body);
    assert_eq!(serde_json::from_slice::<Value>(&all).unwrap(), whole);
    assert!(n > 40 && longest < 2 * MIB, "{n} pieces of up to {longest}");
    let yaml = Accept { encoding: Encoding::Yaml, ..plain };
    let (n, longest, all) = pieces(w.engine.handle(list(yaml)).await.body);
    assert_eq!(crate::decode::yaml::parse(&all).unwrap().value, whole);
    assert!(n >= 40 && longest < 2 * MIB, "{n} pieces of up to {longest}");

    // Selectors see the default, also of an object that goes.
    let select = |query| ApiRequest { query: pairs(query), ..list(plain) };
    assert_eq!(names(&w.send(select("fieldSelector=color=blue")).await.1), ["x/n07"]);
    assert_eq!(
        w.send(select("fieldSelector=color=red&limit=2")).await.1["items"].as_array().unwrap().len(),
        2
    );
    let watched = ApiRequest {
        query: pairs("fieldSelector=color=red&resourceVersion=42"),
        verb: Verb::Watch,
        ..list(plain)
    };
    let Body::Watch(stream) = w.engine.handle(watched).await.body else { panic!("no watch") };
    let mut watch = Watch { stream, text: String::new() };
    put("n00", "").await;
    put("n01", "blue").await;
    w.commit(Op::Delete { key: "/registry/example.com/bombs/x/n02".into() }).await;
    for (ty, name) in [("MODIFIED", "n00"), ("DELETED", "n01"), ("DELETED", "n02")] {
        let event = watch.next().await.unwrap();
        let object = &event["object"];
        assert_eq!((event["type"].as_str(), object::name(object)), (Some(ty), name));
        assert_eq!((object["color"].as_str(), object["fill"].as_str().unwrap().len()), (Some("red"), MIB));
    }
    assert!(held() < MIB, "{} bytes", held());
    // A write sees the whole object, and so does the next definition.
    let touch = r#"{"metadata":{"labels":{"a":"b"}}}"#.to_owned();
    let (code, patched) = w.send(to(Verb::Patch, "n03", "application/merge-patch+json", touch)).await;
    assert_eq!((code, patched["fill"].as_str().map(str::len)), (200, Some(MIB)));
    w.engine.register(vec![def("y")]).await.unwrap();
    let got = w.send(to(Verb::Get, "n04", "", String::new())).await.1;
    assert!(got["fill"].as_str().unwrap().starts_with("yy"));
}

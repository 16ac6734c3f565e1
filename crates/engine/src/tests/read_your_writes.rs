//! Writes and reads through one engine: a read after an acknowledged write returns it.

use super::*;
use expect_test::expect;
use kaji_resource::DeleteOptions;
use std::collections::BTreeMap;

pub(super) fn write(verb: Verb, name: &str, content_type: &str, body: Value) -> ApiRequest {
    ApiRequest {
        verb,
        namespace: "x".into(),
        name: name.into(),
        content_type: content_type.into(),
        body: body.to_string().into(),
        user_agent: "test/1".into(),
        ..request()
    }
}

fn config_map(name: &str, n: u64) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": n.to_string()}})
}

/// With the namespace `x`, at revision 2.
async fn world() -> World {
    let w = World::with(EngineOptions { read_wait: Duration::from_secs(20), ..options() }).await;
    let namespaces =
        ResourceDef::builtin("", "v1", "Namespace", "namespaces", Scope::Cluster, COLUMNS, NoHooks);
    w.engine.register(vec![namespaces]).await.unwrap();
    let x = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}, "status": {"phase": "Active"}});
    w.put_value("/registry/core/namespaces/x", &x).await;
    w
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

#[tokio::test]
async fn a_write_and_its_event_are_one() {
    let w = world().await;
    let mut watch = w.watch("x", "").await;
    let mut events = vec![];
    let mut answers = vec![];
    for req in [
        write(Verb::Create, "", JSON, config_map("a", 1)),
        write(Verb::Update, "a", JSON, config_map("a", 2)),
        write(Verb::Patch, "a", MERGE, json!({"data": {"n": "3"}})),
        // Changes nothing, so there is no event.
        write(Verb::Patch, "a", MERGE, json!({"data": {"n": "3"}})),
        write(Verb::Create, "", JSON, config_map("b", 4)),
        write(Verb::Delete, "a", JSON, json!({"kind": "DeleteOptions", "apiVersion": "v1"})),
    ] {
        let (code, v) = w.send(req).await;
        let rv = kaji_meta::object::resource_version(&v);
        answers.push(format!("{code} {} {}@{rv}", kaji_meta::object::kind(&v), kaji_meta::object::name(&v)));
        // A read after the answer sees the write at once.
        answers.push(w.listed("x", "").await);
    }
    for _ in 0..5 {
        events.push(watch.short().await);
    }
    expect![[r#"
        201 ConfigMap a@3
        @3 [x/a]
        200 ConfigMap a@4
        @4 [x/a]
        200 ConfigMap a@5
        @5 [x/a]
        200 ConfigMap a@5
        @5 [x/a]
        201 ConfigMap b@6
        @6 [x/a x/b]
        200 Status @
        @7 [x/b]

        ADDED a@3 n=1
        MODIFIED a@4 n=2
        MODIFIED a@5 n=3
        ADDED b@6 n=4
        DELETED a@7 n=3"#]]
    .assert_eq(&format!("{}\n\n{}", answers.join("\n"), events.join("\n")));
}

#[tokio::test]
async fn the_answer_is_what_a_get_shows() {
    let w = world().await;
    let (_, created) = w.send(write(Verb::Create, "", JSON, config_map("a", 1))).await;
    let get = ApiRequest { verb: Verb::Get, namespace: "x".into(), name: "a".into(), ..request() };
    assert_eq!(w.send(get.clone()).await.1, created);
    let (_, updated) =
        w.send(write(Verb::Patch, "a", MERGE, json!({"metadata": {"labels": {"l": "v"}}}))).await;
    assert_eq!(w.send(get).await.1, updated);
    assert_eq!(w.listed("", "labelSelector=l=v").await, "@4 [x/a]");
}

#[tokio::test]
async fn hooks_api_reads_what_was_written() {
    use kaji_resource::{ObjectReader, ObjectWriter};
    let w = world().await;
    let gr = kaji_meta::GroupResource::new("", "configmaps");
    w.engine.create(&gr, "x", config_map("a", 1), false).await.unwrap();
    // Hooks read the cache as it is; it may be a moment behind.
    w.engine.wait_applied(w.store.revision().await.unwrap()).await;
    let seen = w.engine.get(&gr, "x", "a").unwrap();
    assert_eq!(seen["data"]["n"], "1");
    w.engine.delete(&gr, "x", "a", DeleteOptions::default()).await.unwrap();
    w.engine.wait_applied(w.store.revision().await.unwrap()).await;
    assert!(w.engine.list(&gr, None).is_empty());
}

/// Many clients count the same objects up; no increment is lost, and watchers see each step once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counts_without_lost_updates() {
    const CLIENTS: u64 = 6;
    const STEPS: u64 = 25;
    let w = Arc::new(world().await);
    for name in ["a", "b"] {
        w.send(write(Verb::Create, "", JSON, config_map(name, 0))).await;
    }
    let mut watch = w.watch("x", "").await;
    let clients = (0..CLIENTS).map(|i| {
        let w = w.clone();
        tokio::spawn(async move {
            let name = if i % 2 == 0 { "a" } else { "b" };
            for _ in 0..STEPS {
                loop {
                    let get =
                        ApiRequest { verb: Verb::Get, namespace: "x".into(), name: name.into(), ..request() };
                    let (_, mut v) = w.send(get).await;
                    let n: u64 = v["data"]["n"].as_str().unwrap().parse().unwrap();
                    v["data"]["n"] = (n + 1).to_string().into();
                    match w.send(write(Verb::Update, name, JSON, v)).await {
                        (200, _) => break,
                        (409, _) => {}
                        (code, v) => panic!("{code} {v}"),
                    }
                }
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let each = CLIENTS / 2 * STEPS;
    let mut seen = BTreeMap::new();
    while seen.values().sum::<u64>() < 2 * each {
        let event = watch.next().await.unwrap();
        let name = kaji_meta::object::name(&event["object"]).to_owned();
        let n: u64 = event["object"]["data"]["n"].as_str().unwrap().parse().unwrap();
        let before = seen.insert(name, n);
        assert_eq!(before.map_or(0, |b| b + 1), n);
    }
    assert_eq!(seen, BTreeMap::from([("a".into(), each), ("b".into(), each)]));
}

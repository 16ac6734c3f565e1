//! Values of one resource cannot be read for a while: only its requests fail, and only for so long.

use super::{outage::commit, *};
use futures_util::future::BoxFuture;
use kaji_store::{Range, RangeResult, StoreError, UnreadableChange, WatchStream};
use std::sync::atomic::{AtomicBool, Ordering};

/// A store that does not know the key of values with the word `sealed`.
struct Sealed {
    inner: MemoryStore,
    has_key: Arc<AtomicBool>,
    /// Whether other programs may write to it.
    shared: bool,
}

fn refused(key: &str) -> StoreError {
    StoreError::Encryption(format!("unable to transform key {key:?}: no matching key"))
}

fn is_sealed(value: &[u8]) -> bool {
    String::from_utf8_lossy(value).contains("sealed")
}

impl Store for Sealed {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, StoreError>> {
        Box::pin(async move {
            let found = self.inner.range(range).await?;
            match found.kvs.iter().find(|kv| is_sealed(&kv.value)) {
                Some(kv) if !self.has_key.load(Ordering::SeqCst) => Err(refused(&kv.key)),
                _ => Ok(found),
            }
        })
    }

    fn watch(&self, prefix: &str, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>> {
        let started = self.inner.watch(prefix, from);
        Box::pin(async move {
            let has_key = self.has_key.clone();
            let opened = started.await?.map(move |batch| {
                let mut batch = batch?;
                let sealed = batch
                    .events
                    .extract_if(.., |event| !has_key.load(Ordering::SeqCst) && is_sealed(&event.kv.value));
                let sealed = sealed.map(|event| event.kv.key);
                batch.unreadable = sealed.map(|key| UnreadableChange { error: refused(&key), key }).collect();
                Ok(batch)
            });
            Ok(opened.boxed())
        })
    }

    fn current_revision_hint(&self) -> Option<Revision> {
        self.inner.current_revision_hint().filter(|_| !self.shared)
    }

    kaji_store::delegate_store!(inner: txn, keys, remove_unread, revision, request_progress);
    kaji_store::delegate_store!(inner: grant_lease, keep_alive, revoke, compact, compacted, close);
}

async fn put(store: &dyn Store, key: &str, object: Value) -> Revision {
    commit(store, Op::Put { key: key.into(), value: storage::encode(&object), lease: None }).await
}

async fn put_config_map(store: &dyn Store, name: &str, text: &str) -> Revision {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "x"}, "data": {"n": text}});
    put(store, &format!("/registry/core/configmaps/x/{name}"), object).await
}

async fn put_node(store: &dyn Store, name: &str) -> Revision {
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    put(store, &format!("/registry/core/nodes/{name}"), object).await
}

async fn sealed() -> (Arc<Sealed>, Arc<Engine>) {
    let has_key = Arc::new(AtomicBool::new(false));
    let store = Arc::new(Sealed { inner: MemoryStore::new().unwrap(), has_key, shared: false });
    put_config_map(&*store, "a", "0").await; // 2
    let options = EngineOptions { read_wait: Duration::from_secs(20), ..options() };
    let engine = Engine::open(store.clone(), options).await.unwrap();
    engine.register(vec![config_maps(), nodes()]).await.unwrap();
    (store, engine)
}

/// The code of a list, with its short form or the message of its Status.
async fn list(engine: &Arc<Engine>, resource: &str) -> String {
    let response = engine.handle(ApiRequest { resource: resource.into(), ..request() }).await;
    let code = response.code;
    let body: Value = serde_json::from_slice(&response.body.into_bytes().unwrap()).unwrap();
    match body["message"].as_str() {
        Some(message) => format!("{code} {message}"),
        None => format!("{code} {}", names(&body).join(" ")),
    }
}

async fn watch(engine: &Arc<Engine>, from: Revision) -> Watch {
    let query = pairs(&format!("resourceVersion={from}"));
    let Body::Watch(stream) = engine.handle(ApiRequest { verb: Verb::Watch, query, ..request() }).await.body
    else {
        panic!("no watch")
    };
    Watch { stream, text: String::new() }
}

const REFUSED: &str = "500 failed to read one or more configmaps from the storage: StorageError: corrupt object, Code: 7, Key: /registry/core/configmaps/x/b, ResourceVersion: 0, AdditionalErrorMsg: data from the storage is not transformable revision=0: unable to transform key \"/registry/core/configmaps/x/b\": no matching key";

/// Waits until a list of config maps succeeds.
async fn recovered(engine: &Arc<Engine>) -> String {
    let tried = async {
        loop {
            let listed = list(engine, "configmaps").await;
            if listed.starts_with("200") {
                return listed;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), tried).await.unwrap()
}

#[tokio::test]
async fn only_requests_for_the_resource_fail_and_at_once() {
    let (store, engine) = sealed().await;
    let mut running = watch(&engine, 2).await;
    put_config_map(&*store, "b", "sealed").await; // 3
    let last = put_node(&*store, "n").await; // 4
    engine.wait_applied(last).await;
    assert_eq!(running.short().await, "end");
    assert_eq!(list(&engine, "nodes").await, "200 n");
    assert_eq!(list(&engine, "configmaps").await, REFUSED);
    for verb in [Verb::Get, Verb::Delete, Verb::Watch] {
        let one = ApiRequest { verb, namespace: "x".into(), name: "a".into(), ..request() };
        assert_eq!(engine.handle(one).await.code, 500, "{verb:?}");
    }
}

#[tokio::test]
async fn nothing_is_missing_once_the_key_is_there() {
    let (store, engine) = sealed().await;
    put_config_map(&*store, "b", "sealed").await; // 3
    put_config_map(&*store, "c", "0").await; // 4
    let key = "/registry/core/configmaps/x/a".to_owned();
    commit(&*store, Op::Delete { key }).await; // 5
    engine.wait_applied(5).await;
    store.has_key.store(true, Ordering::SeqCst);
    assert_eq!(recovered(&engine).await, "200 x/b x/c");
    let mut watch = watch(&engine, 5).await;
    put_config_map(&*store, "d", "sealed").await; // 6
    assert_eq!(watch.short().await, "ADDED d@6 n=sealed");
}

/// A store that other programs write to, with a value of this text under a key of a config map.
async fn shared(text: &str) -> (Arc<Sealed>, Arc<Engine>) {
    let store = Sealed { inner: MemoryStore::new().unwrap(), has_key: Arc::default(), shared: true };
    let store = Arc::new(store);
    put_text(&*store, "b", text).await; // 2
    put_config_map(&*store, "c", "0").await; // 3
    put_node(&*store, "n").await; // 4
    let options = EngineOptions { read_wait: Duration::from_secs(20), ..options() };
    (store.clone(), Engine::open(store, options).await.unwrap())
}

async fn put_text(store: &dyn Store, name: &str, text: &str) -> Revision {
    let (key, value) = (format!("/registry/core/configmaps/x/{name}"), text.to_owned().into());
    commit(store, Op::Put { key, value, lease: None }).await
}

#[tokio::test]
async fn starts_without_what_cannot_be_read_unless_it_is_required() {
    let (store, engine) = shared("sealed").await;
    let failed = engine.register(vec![config_maps(), nodes()]).await.unwrap_err();
    assert_eq!(failed.to_string(), format!("store: {}", refused("/registry/core/configmaps/x/b")));
    engine.register(vec![config_maps().optional_to_start(), nodes()]).await.unwrap();
    assert_eq!(list(&engine, "nodes").await, "200 n");
    assert_eq!(list(&engine, "configmaps").await, REFUSED);
    let resource = GroupResource::new("", "configmaps");
    assert!(kaji_resource::ObjectReader::readable(&*engine, &resource).is_err());
    store.has_key.store(true, Ordering::SeqCst);
    put_text(&*store, "b", r#"{"metadata":{"name":"b","namespace":"x"},"data":{"n":"1"}}"#).await; // 5
    assert_eq!(recovered(&engine).await, "200 x/b x/c");
    assert!(kaji_resource::ObjectReader::readable(&*engine, &resource).is_ok());
    let mut watch = watch(&engine, 5).await;
    put_config_map(&*store, "d", "0").await; // 6
    assert_eq!(watch.short().await, "ADDED d@6 n=0");
}

/// What depends on an object must not take one that is damaged for one that is gone.
#[tokio::test]
async fn an_object_that_is_no_json_is_not_taken_for_absent() {
    for text in ["garbage", "{\"metadata\":{\"name\":\"b\"}} x", "", "{"] {
        let (store, engine) = shared(text).await;
        engine.register(vec![config_maps().optional_to_start(), nodes()]).await.unwrap();
        let damaged = "500 failed to read one or more configmaps from the storage: StorageError: corrupt object, Code: 7, Key: /registry/core/configmaps/x/b, ResourceVersion: 0, AdditionalErrorMsg: object not decodable revision=";
        let answer = list(&engine, "configmaps").await;
        assert!(answer.starts_with(damaged), "{text}: {answer}");
        assert_eq!(list(&engine, "nodes").await, "200 n");
        put_config_map(&*store, "b", "0").await;
        assert_eq!(recovered(&engine).await, "200 x/b x/c");
        // The same, written later.
        put_text(&*store, "b", text).await;
        let last = put_node(&*store, "m").await;
        engine.wait_applied(last).await;
        let answer = list(&engine, "configmaps").await;
        assert!(answer.starts_with(damaged), "{text}: {answer}");
        assert_eq!(list(&engine, "nodes").await, "200 m n");
        let key = "/registry/core/configmaps/x/b".to_owned();
        commit(&*store, Op::Delete { key }).await;
        assert_eq!(recovered(&engine).await, "200 x/c");
    }
}

#[tokio::test]
async fn a_value_that_goes_away_is_no_longer_in_the_way() {
    let (store, engine) = sealed().await;
    put_config_map(&*store, "b", "sealed").await; // 3
    engine.wait_applied(3).await;
    assert_eq!(list(&engine, "configmaps").await, REFUSED);
    put_config_map(&*store, "b", "0").await; // 4
    assert_eq!(recovered(&engine).await, "200 x/a x/b");
}

/// The code of a deletion with the option for what cannot be read, and the message or the details of its answer.
async fn delete_unread(engine: &Arc<Engine>, verb: Verb, name: &str, more: &str) -> String {
    let query = pairs(&format!("ignoreStoreReadErrorWithClusterBreakingPotential=true{more}"));
    let response = engine
        .handle(ApiRequest { verb, query, namespace: "x".into(), name: name.into(), ..request() })
        .await;
    let code = response.code;
    let body: Value = serde_json::from_slice(&response.body.into_bytes().unwrap()).unwrap();
    match body["message"].as_str() {
        Some(message) => format!("{code} {message}"),
        None => format!("{code} {}", body["details"]),
    }
}

#[tokio::test]
async fn only_what_cannot_be_read_is_deleted_unread() {
    let (store, engine) = sealed().await;
    let conflict =
        "409 Operation cannot be fulfilled on configmaps \"a\": StorageError: invalid object, Code: 4, Key: ";
    assert!(delete_unread(&engine, Verb::Delete, "a", "").await.starts_with(conflict));
    assert_eq!(delete_unread(&engine, Verb::Delete, "b", "").await, "404 configmaps \"b\" not found");
    put_config_map(&*store, "b", "sealed").await; // 3
    engine.wait_applied(3).await;
    let dry = delete_unread(&engine, Verb::Delete, "b", "&dryRun=All").await;
    assert_eq!(dry, r#"200 {"kind":"ConfigMap","name":"b"}"#);
    assert_eq!(list(&engine, "configmaps").await, REFUSED);
    assert!(delete_unread(&engine, Verb::Delete, "a", "").await.starts_with(conflict));
    let both = delete_unread(&engine, Verb::Delete, "b", "&gracePeriodSeconds=0").await;
    assert!(
        both.starts_with("422 ") && both.ends_with("cannot be set together with .gracePeriodSeconds"),
        "{both}"
    );
    let all = delete_unread(&engine, Verb::DeleteCollection, "", "").await;
    assert!(all.starts_with("422 ") || all.starts_with("500 "), "{all}");
    assert_eq!(delete_unread(&engine, Verb::Delete, "b", "").await, dry);
    assert_eq!(recovered(&engine).await, "200 x/a");
    let all = delete_unread(&engine, Verb::DeleteCollection, "", "").await;
    assert!(
        all.ends_with("is not allowed with DELETECOLLECTION, try again after removing the option"),
        "{all}"
    );
}

#[tokio::test]
async fn a_list_names_all_that_cannot_be_read() {
    let (store, engine) = sealed().await;
    put_config_map(&*store, "b", "sealed").await; // 3
    put_text(&*store, "c", "garbage").await; // 4
    engine.wait_applied(4).await;
    let response = engine.handle(request()).await;
    let body: Value = serde_json::from_slice(&response.body.into_bytes().unwrap()).unwrap();
    assert_eq!((&body["reason"], &body["details"]["name"]), (&json!("StorageReadError"), &json!("list")));
    assert!(body["message"].as_str().unwrap().ends_with(" (and 1 more)"), "{body}");
    let causes = body["details"]["causes"].as_array().unwrap();
    let fields: Vec<&str> = causes.iter().filter_map(|cause| cause["field"].as_str()).collect();
    assert_eq!(fields, ["/registry/core/configmaps/x/b", "/registry/core/configmaps/x/c"]);
}

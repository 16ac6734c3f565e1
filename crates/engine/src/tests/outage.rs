//! The store is unavailable and comes back, with or without its history.

use super::*;
use crate::Deadline;
use futures_util::{FutureExt, future::BoxFuture};
use kaji_store::{Range, RangeResult, StoreError, WatchStream};
use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tokio::sync::watch;

/// A store with watches that can be cut.
struct Flaky {
    inner: MemoryStore,
    /// Each change ends the running watches with the error.
    cut: watch::Sender<Option<StoreError>>,
    /// Errors that the next watches are refused with.
    refuse: Mutex<Vec<StoreError>>,
    /// Attempts to watch so far, and whether they get an answer.
    attempts: watch::Sender<usize>,
    open: watch::Sender<bool>,
    /// Nothing can be read.
    unreadable: AtomicBool,
    /// Answers to writes are lost.
    mute: AtomicBool,
    /// So many transactions come after another write of `a`.
    overtaken: AtomicUsize,
}

impl Flaky {
    /// Ends the watch of the engine, and returns when it has noticed and waits for an answer to its next.
    async fn go_away(&self) {
        let mut attempts = self.attempts.subscribe();
        let before = *attempts.borrow_and_update();
        self.open.send_replace(false);
        self.cut.send_replace(Some(StoreError::Unavailable("gone".into())));
        attempts.wait_for(|n| *n > before).await.unwrap();
    }

    /// Is back, but first refuses one watch.
    fn come_back(&self, first: StoreError) {
        self.refuse.lock().unwrap().push(first);
        self.open.send_replace(true);
    }
}

impl Store for Flaky {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, StoreError>> {
        if self.unreadable.load(Ordering::SeqCst) {
            let error = StoreError::Unavailable("not now".into());
            return std::future::ready(Err(error)).boxed();
        }
        self.inner.range(range)
    }
    fn watch(&self, prefix: &str, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>> {
        let prefix = prefix.to_owned();
        Box::pin(async move {
            self.attempts.send_modify(|n| *n += 1);
            let _ = self.open.subscribe().wait_for(|open| *open).await;
            if let Some(error) = self.refuse.lock().unwrap().pop() {
                return Err(error);
            }
            let stream = self.inner.watch(&prefix, from).await?;
            let mut cut = self.cut.subscribe();
            cut.mark_unchanged();
            let cut = futures_util::stream::once(async move {
                let _ = cut.changed().await;
                let error = cut.borrow().clone();
                Err(error.unwrap_or(StoreError::Closed))
            });
            let ended = futures_util::stream::select(stream, cut).scan(false, |over, next| {
                let go_on = !*over;
                *over = next.is_err();
                std::future::ready(go_on.then_some(next))
            });
            Ok(ended.boxed())
        })
    }
    /// As a store on another machine.
    fn current_revision_hint(&self) -> Option<Revision> {
        None
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
        Box::pin(async move {
            let left = self.overtaken.load(Ordering::SeqCst);
            if left > 0 {
                self.overtaken.store(left - 1, Ordering::SeqCst);
                put(&self.inner, "a", 0).await;
            }
            let outcome = self.inner.txn(txn).await?;
            let lost = StoreError::Unavailable("the answer is lost".into());
            if self.mute.load(Ordering::SeqCst) { Err(lost) } else { Ok(outcome) }
        })
    }

    kaji_store::delegate_store!(inner: revision, request_progress);
    kaji_store::delegate_store!(inner: grant_lease, keep_alive, revoke, compact, compacted, close);
}

async fn put(store: &dyn Store, name: &str, n: u32) -> Revision {
    let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "x"},
        "data": {"n": n.to_string()}});
    let key = format!("/registry/core/configmaps/x/{name}");
    commit(store, Op::Put { key, value: storage::encode(&value), lease: None }).await
}

pub(super) async fn commit(store: &dyn Store, op: Op) -> Revision {
    match store.txn(Txn { compare: vec![], ops: vec![op] }).await.unwrap() {
        TxnOutcome::Committed { revision, .. } => revision,
        TxnOutcome::Conflict { .. } => unreachable!(),
    }
}

async fn flaky() -> (Arc<Flaky>, Arc<Engine>, Watch) {
    let store = Arc::new(Flaky {
        inner: MemoryStore::new().unwrap(),
        cut: watch::Sender::new(None),
        refuse: Mutex::default(),
        attempts: watch::Sender::new(0),
        open: watch::Sender::new(true),
        unreadable: AtomicBool::new(false),
        mute: AtomicBool::new(false),
        overtaken: AtomicUsize::new(0),
    });
    put(&*store, "a", 0).await; // 2
    put(&*store, "b", 0).await; // 3
    let options = EngineOptions { read_wait: Duration::from_secs(20), ..options() };
    let engine = Engine::open(store.clone(), options).await.unwrap();
    engine.register(vec![config_maps()]).await.unwrap();
    let req = ApiRequest { verb: Verb::Watch, query: pairs("resourceVersion=3"), ..request() };
    let Body::Watch(stream) = engine.handle(req).await.body else { panic!("no watch") };
    (store, engine, Watch { stream, text: String::new() })
}

async fn list(engine: &Arc<Engine>) -> String {
    let response = engine.handle(request()).await;
    let bytes = response.body.into_bytes().unwrap();
    short_list(response.code, &serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test]
async fn a_lost_connection_loses_nothing() {
    let (store, engine, mut watch) = flaky().await;
    assert_eq!(list(&engine).await, "@3 [x/a x/b]");
    store.go_away().await;
    put(&*store, "a", 1).await; // 4
    put(&*store, "c", 1).await; // 5
    store.come_back(StoreError::Unavailable("not yet".into()));
    assert_eq!(watch.shorts(2).await, ["MODIFIED a@4 n=1", "ADDED c@5 n=1"]);
    assert_eq!(list(&engine).await, "@5 [x/a x/b x/c]");
}

#[tokio::test]
async fn lost_history_ends_watches() {
    let (store, engine, mut watch) = flaky().await;
    store.go_away().await;
    put(&*store, "a", 1).await; // 4
    put(&*store, "a", 2).await; // 5
    let key = "/registry/core/configmaps/x/b".into();
    commit(&*store, Op::Delete { key }).await; // 6
    put(&*store, "c", 1).await; // 7
    store.compact(6).await.unwrap();
    store.come_back(StoreError::Compacted { compacted: 6 });
    // b was deleted at 6, which cannot be told any more; at 7 it would be what a client that resumes from there never sees.
    assert_eq!(watch.short().await, "end");
    assert_eq!(list(&engine).await, "@7 [x/a x/c]");
    let query = pairs("resourceVersion=3");
    let req = ApiRequest { verb: Verb::Watch, query, ..request() };
    let Body::Watch(stream) = engine.handle(req).await.body else { panic!("no watch") };
    let mut again = Watch { stream, text: String::new() };
    assert_eq!(again.short().await, "ERROR 410 too old resource version: 3 (6)");
}

#[tokio::test]
async fn another_object_of_the_same_name_is_not_the_first_one_changed() {
    let (store, engine, mut watch) = flaky().await;
    store.go_away().await;
    let key = "/registry/core/configmaps/x/b".into();
    commit(&*store, Op::Delete { key }).await; // 4
    put(&*store, "b", 1).await; // 5
    put(&*store, "b", 2).await; // 6
    put(&*store, "a", 1).await; // 7
    store.compact(7).await.unwrap();
    store.come_back(StoreError::Compacted { compacted: 7 });
    assert_eq!(watch.short().await, "end");
    assert_eq!(list(&engine).await, "@7 [x/a x/b]");
}

#[tokio::test]
async fn a_write_that_may_have_happened_is_not_made_again() {
    use super::read_your_writes::write;
    let (store, engine, _watch) = flaky().await;
    let merge = json!({"data": {"n": "1"}});
    let update = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"n": "2"},
        "metadata": {"name": "b", "namespace": "x", "resourceVersion": "3"}});
    for request in [
        write(Verb::Patch, "a", "application/merge-patch+json", merge),
        write(Verb::Update, "b", "application/json", update),
        write(Verb::Delete, "a", "application/json", json!({})),
    ] {
        let before = store.revision().await.unwrap();
        store.mute.store(true, Ordering::SeqCst);
        let response = engine.handle(ApiRequest { namespace: "x".into(), ..request }).await;
        store.mute.store(false, Ordering::SeqCst);
        // Neither a conflict with itself, nor a second effect.
        assert_eq!((response.code, store.revision().await.unwrap()), (503, before + 1));
        engine.wait_applied(before + 1).await;
    }
}

#[tokio::test]
async fn a_creation_with_a_lost_answer_is_found_by_its_uid() {
    use super::read_your_writes::write;
    let (store, engine, _watch) = flaky().await;
    let create = |name: &str| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        write(Verb::Create, "", "application/json", object)
    };
    store.mute.store(true, Ordering::SeqCst);
    let response = engine.handle(create("c")).await;
    let answered: Value = serde_json::from_slice(&response.body.into_bytes().unwrap()).unwrap();
    let revision = kaji_meta::object::resource_version(&answered).to_owned();
    assert_eq!((response.code, &*revision), (201, "4"));
    // One that cannot be read now, and one of another.
    store.unreadable.store(true, Ordering::SeqCst);
    let unknown = engine.handle(create("d")).await;
    store.unreadable.store(false, Ordering::SeqCst);
    let taken = engine.handle(create("c")).await;
    store.mute.store(false, Ordering::SeqCst);
    assert_eq!((unknown.code, taken.code), (503, 503));
    assert_eq!(store.revision().await.unwrap(), 5);
}

#[tokio::test]
async fn writes_are_tried_until_none_is_faster() {
    use super::read_your_writes::write;
    let (store, engine, _watch) = flaky().await;
    let patch = |m| write(Verb::Patch, "a", "application/merge-patch+json", json!({"data": {"m": m}}));
    let in_time = || Deadline::after(Duration::from_secs(60));
    store.overtaken.store(100, Ordering::SeqCst);
    let patched = engine.handle(ApiRequest { deadline: in_time(), ..patch("1") }).await;
    assert_eq!((patched.code, store.overtaken.load(Ordering::SeqCst)), (200, 0));
    store.overtaken.store(usize::MAX, Ordering::SeqCst);
    let deadline = Deadline::after(Duration::from_millis(100));
    assert_eq!(engine.handle(ApiRequest { deadline, ..patch("2") }).await.code, 504);
    // What has no deadline is not tried for ever.
    assert_eq!(engine.handle(patch("3")).await.code, 409);
    store.overtaken.store(100, Ordering::SeqCst);
    let delete = write(Verb::Delete, "a", "application/json", json!({}));
    let deleted = engine.handle(ApiRequest { deadline: in_time(), ..delete }).await;
    assert_eq!((deleted.code, store.overtaken.load(Ordering::SeqCst)), (200, 0));
}

#[tokio::test]
async fn no_watch_begins_within_lost_history() {
    let (store, engine, mut before) = flaky().await;
    store.go_away().await;
    put(&*store, "c", 1).await; // 4
    let key = "/registry/core/configmaps/x/c".into();
    commit(&*store, Op::Delete { key }).await; // 5
    put(&*store, "a", 1).await; // 6
    put(&*store, "a", 2).await; // 7
    store.compact(6).await.unwrap();
    store.come_back(StoreError::Compacted { compacted: 6 });
    assert_eq!(before.short().await, "end");
    let from = async |revision: Revision| {
        let query = pairs(&format!("resourceVersion={revision}"));
        let req = ApiRequest { verb: Verb::Watch, query, ..request() };
        let Body::Watch(stream) = engine.handle(req).await.body else { panic!("no watch") };
        Watch { stream, text: String::new() }.short().await
    };
    // A client that has `c` from the answer to its creation would never get its deletion.
    assert_eq!(from(4).await, "ERROR 410 too old resource version: 4 (6)");
    // The store still has what came after that.
    assert_eq!(from(6).await, "MODIFIED a@7 n=2");
}

/// Shows numbers as words.
struct Words;

impl kaji_resource::Hooks for Words {
    fn normalizer(&self) -> Option<&dyn kaji_resource::Normalizer> {
        Some(self)
    }
}

impl kaji_resource::Normalizer for Words {
    fn normalize(&self, object: &mut Value) {
        if object["data"]["n"] == "0" {
            object["data"]["n"] = "zero".into();
        }
    }
}

#[tokio::test]
async fn a_registration_that_fails_changes_nothing() {
    let (store, engine, mut watch) = flaky().await;
    let shown = async || {
        let bytes = engine.handle(request()).await.body.into_bytes().unwrap();
        let list: Value = serde_json::from_slice(&bytes).unwrap();
        let all = list["items"].as_array().unwrap().iter();
        all.map(|i| i["data"]["n"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let register = async || {
        let mut changed = config_maps();
        changed.hooks = Arc::new(Words);
        let mut other = nodes();
        other.group = "example.com".into();
        engine.register(vec![other, changed]).await
    };
    let value = json!({"apiVersion": "example.com/v1", "kind": "Node", "metadata": {"name": "a"}});
    let key = "/registry/example.com/nodes/a".into();
    commit(&*store, Op::Put { key, value: storage::encode(&value), lease: None }).await;
    store.unreadable.store(true, Ordering::SeqCst);
    assert!(register().await.is_err());
    assert_eq!(shown().await, ["0", "0"]);
    put(&*store, "c", 0).await;
    assert_eq!(watch.short().await, "ADDED c@5 n=0");
    assert_eq!(shown().await, ["0", "0", "0"]);
    store.unreadable.store(false, Ordering::SeqCst);
    register().await.unwrap();
    assert_eq!(shown().await, ["zero", "zero", "zero"]);
    // What was new in the failed one has its objects.
    let others = ApiRequest { group: "example.com".into(), resource: "nodes".into(), ..request() };
    let bytes = engine.handle(others).await.body.into_bytes().unwrap();
    assert_eq!(names(&serde_json::from_slice(&bytes).unwrap()), ["a"]);
}

#[tokio::test]
async fn what_others_write_to_the_store_takes_the_shape_of_the_definition() {
    let (store, engine, _watch) = flaky().await;
    let mut def = config_maps();
    (def.group, def.storage_prefix) = ("example.com".into(), "example.com/configmaps".into());
    def.hooks = Arc::new(Words);
    let resource = def.group_resource();
    let key = "/registry/example.com/configmaps/x/new".into();
    engine.register(vec![def]).await.unwrap();
    let value = json!({"apiVersion": "example.com/v1", "kind": "ConfigMap",
        "metadata": {"name": "new", "namespace": "x"}, "data": {"n": "0"}});
    commit(&*store, Op::Put { key, value: storage::encode(&value), lease: None }).await;
    let list = ApiRequest::own(Verb::List, resource, "v1", "");
    let bytes = engine.handle(list).await.body.into_bytes().unwrap();
    let list: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(list["items"][0]["data"]["n"], "zero");
}

#[tokio::test]
async fn a_closed_store_ends_watches() {
    let (store, _engine, mut watch) = flaky().await;
    store.cut.send_replace(Some(StoreError::Closed));
    assert_eq!(watch.short().await, "end");
}

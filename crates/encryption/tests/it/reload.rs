//! A configuration that replaces another while values are written: whatever happens in between, everything that is stored
//! can be read, now and by a server that begins with the configuration that is in force.
use futures_util::{StreamExt, future::BoxFuture};
use kaji_encryption::{Config, Deps, EncryptedStore, InForce, Transformers};
use kaji_meta::random::SystemRandom;
use kaji_store::{Op, Range, RangeResult, Revision, Store, StoreError, Txn, TxnOutcome, memory::MemoryStore};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::Semaphore;

const SECRET: &str = "/registry/core/secrets/ns/a";
const GCM: &str = "{aesgcm: {keys: [{name: k, secret: AAECAwQFBgcICQoLDA0ODw==}]}}";
const SECRETBOX: &str =
    "{secretbox: {keys: [{name: k, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}}";
const CBC: &str = "{aescbc: {keys: [{name: k, secret: AAECAwQFBgcICQoLDA0ODw==}]}}";
const OTHER: &str = "{aesgcm: {keys: [{name: other, secret: AAECAwQFBgcICQoLDA0ODw==}]}}";

fn transformers(providers: &[&str]) -> Arc<Transformers> {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers: [{}]\n",
        providers.join(", ")
    );
    let deps = Deps::new(Arc::new(SystemRandom));
    Arc::new(Transformers::new(&Config::parse(&text).unwrap(), &deps).unwrap())
}

/// A store that says when it is asked, and answers when it may.
struct Slow {
    inner: MemoryStore,
    ranges: AtomicUsize,
    revisions: AtomicUsize,
    /// Each permit lets one answer go.
    reads: Semaphore,
    writes: Semaphore,
}

const ANY: usize = 1000;

impl Slow {
    fn new(reads: usize, writes: usize) -> Arc<Slow> {
        Arc::new(Slow {
            inner: MemoryStore::new().unwrap(),
            ranges: AtomicUsize::new(0),
            revisions: AtomicUsize::new(0),
            reads: Semaphore::new(reads),
            writes: Semaphore::new(writes),
        })
    }

    /// The beginnings of what is stored.
    async fn stored(&self) -> Vec<String> {
        let all = self.inner.range(Range::prefix("/")).await.unwrap().kvs;
        all.iter().map(|kv| String::from_utf8_lossy(&kv.value).chars().take(17).collect()).collect()
    }
}

impl Store for Slow {
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
        Box::pin(async move {
            self.writes.acquire().await.unwrap().forget();
            self.inner.txn(txn).await
        })
    }
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, StoreError>> {
        Box::pin(async move {
            let found = self.inner.range(range).await;
            self.ranges.fetch_add(1, Ordering::SeqCst);
            self.reads.acquire().await.unwrap().forget();
            found
        })
    }
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(async move {
            let found = self.inner.revision().await;
            self.revisions.fetch_add(1, Ordering::SeqCst);
            self.reads.acquire().await.unwrap().forget();
            found
        })
    }

    kaji_store::delegate_store!(inner: watch, current_revision_hint, request_progress);
    kaji_store::delegate_store!(inner: grant_lease, keep_alive, revoke, compact, compacted, close);
}

/// A server under `old`, and a task that puts `new` in force.
struct World {
    inner: Arc<Slow>,
    current: InForce,
    store: Arc<EncryptedStore>,
}

impl World {
    fn new(inner: Arc<Slow>) -> World {
        let current = InForce::from(transformers(&[GCM]));
        let store = Arc::new(EncryptedStore::new(inner.clone(), current.clone()));
        World { inner, current, store }
    }

    fn replace(&self, providers: &[&str]) -> tokio::task::JoinHandle<Result<(), StoreError>> {
        let (current, inner, new) = (self.current.clone(), self.inner.clone(), transformers(providers));
        tokio::spawn(async move { current.replace(new, &*inner).await })
    }

    fn put(&self, name: &str) -> tokio::task::JoinHandle<Result<TxnOutcome, StoreError>> {
        let (store, key) = (self.store.clone(), format!("/registry/core/secrets/ns/{name}"));
        tokio::spawn(async move { store.txn(Txn::put(&*key, "{clear}")).await })
    }

    /// Everything that is stored can be read by this server, and by one that begins anew.
    async fn all_readable(&self, providers: &[&str]) {
        self.inner.reads.add_permits(ANY);
        let restarted = EncryptedStore::new(self.inner.clone(), transformers(providers));
        for store in [&*self.store as &dyn Store, &restarted] {
            let all = store.range(Range::prefix("/registry/")).await.unwrap().kvs;
            assert!(all.iter().all(|kv| kv.value == "{clear}"));
        }
    }
}

/// Waits until this was asked so often.
async fn asked(what: &AtomicUsize, times: usize) {
    while what.load(Ordering::SeqCst) < times {
        tokio::task::yield_now().await;
    }
}

/// Gives all tasks a chance: what can happen, happens.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_refused_has_written_nothing() {
    let w = World::new(Slow::new(0, ANY));
    let replaced = w.replace(&[SECRETBOX, "{identity: {}}"]);
    // Nothing is found in the store, nor in what changed meanwhile; then comes what the new configuration does not read.
    asked(&w.inner.ranges, 1).await;
    w.inner.reads.add_permits(1);
    asked(&w.inner.revisions, 1).await;
    w.put("a").await.unwrap().unwrap();
    w.inner.reads.add_permits(1);
    asked(&w.inner.revisions, 2).await;
    let late = w.put("b");
    settle().await;
    assert_eq!(w.inner.stored().await.len(), 1, "a value was written while it is decided with what");
    w.inner.reads.add_permits(ANY);
    assert!(matches!(replaced.await.unwrap(), Err(StoreError::Corrupt(_))));
    late.await.unwrap().unwrap();
    assert_eq!(w.inner.stored().await, ["k8s:enc:aesgcm:v1", "k8s:enc:aesgcm:v1"]);
    w.all_readable(&[GCM]).await;
}

#[tokio::test]
async fn what_was_looked_at_is_not_again() {
    let w = World::new(Slow::new(0, ANY));
    for i in 0..600 {
        w.put(&format!("{i}")).await.unwrap().unwrap();
    }
    let replaced = w.replace(&[SECRETBOX, GCM]);
    w.inner.reads.add_permits(2);
    asked(&w.inner.revisions, 1).await;
    w.put("a").await.unwrap().unwrap();
    w.inner.reads.add_permits(2);
    replaced.await.unwrap().unwrap();
    // Two pages of all there is; then what changed.
    assert_eq!(w.inner.ranges.load(Ordering::SeqCst), 2);
    w.all_readable(&[SECRETBOX, GCM]).await;
}

#[tokio::test]
async fn looking_at_all_may_take_longer_than_changes_are_remembered() {
    let w = World::new(Slow::new(0, ANY));
    for i in 0..600 {
        w.put(&format!("{i}")).await.unwrap().unwrap();
    }
    let replaced = w.replace(&[SECRETBOX, GCM]);
    asked(&w.inner.ranges, 1).await;
    for _ in 0..3 {
        w.put("a").await.unwrap().unwrap();
        settle().await;
        w.store.compact(w.inner.inner.revision().await.unwrap()).await.unwrap();
    }
    w.inner.reads.add_permits(ANY);
    replaced.await.unwrap().unwrap();
    w.all_readable(&[SECRETBOX, GCM]).await;
}

#[tokio::test]
async fn what_is_gone_again_is_in_nobodys_way() {
    let w = World::new(Slow::new(1, ANY));
    let replaced = w.replace(&[SECRETBOX]);
    asked(&w.inner.revisions, 1).await;
    w.put("a").await.unwrap().unwrap();
    w.store.txn(delete()).await.unwrap();
    w.inner.reads.add_permits(ANY);
    replaced.await.unwrap().unwrap();
    w.all_readable(&[SECRETBOX]).await;
}

#[tokio::test]
async fn a_write_under_way_is_looked_at() {
    let w = World::new(Slow::new(ANY, 0));
    // Encrypted, but not written yet.
    let slow = w.put("a");
    settle().await;
    let replaced = w.replace(&[SECRETBOX, "{identity: {}}"]);
    settle().await;
    assert!(!replaced.is_finished());
    w.inner.writes.add_permits(ANY);
    slow.await.unwrap().unwrap();
    assert!(matches!(replaced.await.unwrap(), Err(StoreError::Corrupt(_))));
    w.all_readable(&[GCM]).await;
    // With the old key it is taken, and the next write is with the new one.
    w.replace(&[SECRETBOX, GCM]).await.unwrap().unwrap();
    w.put("b").await.unwrap().unwrap();
    assert_eq!(w.inner.stored().await, ["k8s:enc:aesgcm:v1", "k8s:enc:secretbox"]);
    w.all_readable(&[SECRETBOX, GCM]).await;
}

fn delete() -> Txn {
    Txn { compare: vec![], ops: vec![Op::Delete { key: SECRET.into() }] }
}

#[tokio::test]
async fn a_watch_tells_of_what_was_there_before() {
    let w = World::new(Slow::new(ANY, ANY));
    let mut events = w.store.watch("/registry/", 0).await.unwrap();
    // Nothing that is stored needs the old keys when they go.
    let configurations = [[GCM], [SECRETBOX], [CBC], [OTHER]];
    for configuration in &configurations[1..] {
        w.put("a").await.unwrap().unwrap();
        w.store.txn(delete()).await.unwrap();
        w.replace(configuration).await.unwrap().unwrap();
    }
    let mut seen = vec![];
    while seen.len() < 6 {
        let batch = events.next().await.unwrap().unwrap();
        seen.extend(batch.events.into_iter().map(|e| e.previous.map_or(e.kv.value, |kv| kv.value)));
    }
    assert_eq!(seen, ["{clear}"; 6]);
    // Of what is compacted it need not tell: then the old keys go.
    let first = w.store.watch("/registry/", 2).await.unwrap().next().await.unwrap();
    assert_eq!(first.unwrap().events[0].kv.value, "{clear}");
    let kept = || w.current.former();
    assert_eq!(kept(), 3);
    w.store.compact(w.inner.inner.revision().await.unwrap()).await.unwrap();
    w.replace(&[GCM]).await.unwrap().unwrap();
    assert_eq!(kept(), 1);
    for i in 0..20 {
        w.put("b").await.unwrap().unwrap();
        w.replace(&[[GCM, SECRETBOX], [SECRETBOX, GCM]][i % 2]).await.unwrap().unwrap();
    }
    assert_eq!(kept(), 8);
}

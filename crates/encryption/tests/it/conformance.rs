//! The decorator keeps the laws of every store, around both backends, with each cipher; and the inner store never sees
//! a clear value.
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use kaji_encryption::{Config, Deps, EncryptedStore, Transformers};
use kaji_meta::random::SystemRandom;
use kaji_store::{
    ManualClock, Range, Store, StoreError, Txn,
    conformance::{self, Subject},
    disk::{DiskOptions, DiskStore},
    memory::{MemoryOptions, MemoryStore},
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

const START: u64 = 1_700_000_000_000;
const DAY: Duration = Duration::from_secs(86_400);
const GCM: &str = "{aesgcm: {keys: [{name: k, secret: AAECAwQFBgcICQoLDA0ODw==}]}}";
const CBC: &str = "{aescbc: {keys: [{name: k, secret: AAECAwQFBgcICQoLDA0ODw==}]}}";
const SECRETBOX: &str =
    "{secretbox: {keys: [{name: k, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}}";

fn transformers(resources: &str, providers: &[&str]) -> Transformers {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [{resources}]\n  \
         providers: [{}]\n",
        providers.join(", ")
    );
    Transformers::new(&Config::parse(&text).unwrap(), &Deps::new(Arc::new(SystemRandom))).unwrap()
}

fn around(inner: Arc<dyn Store>, provider: &str) -> Arc<dyn Store> {
    Arc::new(EncryptedStore::new(inner, transformers("'*.*'", &[provider])))
}

fn memory(provider: &str) -> Subject {
    let clock = Arc::new(ManualClock::new(START));
    let options = MemoryOptions { clock: clock.clone(), history_age: DAY, ..Default::default() };
    let inner = Arc::new(MemoryStore::with_options(options).unwrap());
    let store = around(inner.clone(), provider);
    let advance = Box::new(move |by| -> BoxFuture<'static, ()> {
        let (inner, clock) = (inner.clone(), clock.clone());
        async move {
            clock.advance(by);
            inner.tick().await.unwrap();
        }
        .boxed()
    });
    Subject { store, advance: Some(advance), reopen: None, keep: None }
}

fn disk(provider: &'static str) -> Subject {
    let temp = Arc::new(tempfile::tempdir().unwrap());
    let clock = Arc::new(ManualClock::new(START));
    let options = DiskOptions { clock: clock.clone(), history_age: DAY, ..Default::default() };
    let current = Arc::new(Mutex::new(Arc::new(DiskStore::open(temp.path(), options.clone()).unwrap())));
    let store = around(current.lock().unwrap().clone(), provider);
    let (opened, path) = (current.clone(), temp.clone());
    let reopen = Box::new(move || -> BoxFuture<'static, Result<Arc<dyn Store>, StoreError>> {
        let (current, path, options) = (opened.clone(), path.clone(), options.clone());
        async move {
            let inner = Arc::new(DiskStore::open(path.path(), options)?);
            *current.lock().unwrap() = inner.clone();
            Ok(around(inner, provider))
        }
        .boxed()
    });
    let advance = Box::new(move |by| -> BoxFuture<'static, ()> {
        let (current, clock) = (current.clone(), clock.clone());
        async move {
            clock.advance(by);
            let inner = current.lock().unwrap().clone();
            inner.tick().await.unwrap();
        }
        .boxed()
    });
    Subject { store, advance: Some(advance), reopen: Some(reopen), keep: Some(Box::new(temp)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_keeps_the_laws() {
    for provider in [GCM, CBC, SECRETBOX, "{identity: {}}"] {
        assert_eq!(conformance::run(|| memory(provider)).await, [], "{provider}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_keeps_the_laws() {
    assert_eq!(conformance::run(|| disk(GCM)).await, []);
}

const SECRET: &str = "/registry/core/secrets/ns/a";
const OTHER: &str = "/registry/core/configmaps/ns/a";

async fn value(store: &dyn Store, key: &str) -> Result<Bytes, StoreError> {
    Ok(store.range(Range::key(key)).await?.kvs.remove(0).value)
}

#[tokio::test]
async fn rotation_ends_with_the_old_key_unneeded() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    inner.txn(Txn::put(SECRET, "{before}")).await.unwrap();
    inner.txn(Txn::put(OTHER, "{other}")).await.unwrap();
    let store = |providers: &[&str]| EncryptedStore::new(inner.clone(), transformers("secrets", providers));

    let first = store(&[GCM, "{identity: {}}"]);
    assert_eq!(value(&first, SECRET).await.unwrap(), "{before}");
    assert!(first.stale(SECRET).await.unwrap());
    assert!(!first.stale(OTHER).await.unwrap());
    first.txn(Txn::put(SECRET, "{clear}")).await.unwrap();
    first.txn(Txn::put(OTHER, "{other}")).await.unwrap();
    assert!(!first.stale(SECRET).await.unwrap());
    assert!(value(&*inner, SECRET).await.unwrap().starts_with(b"k8s:enc:aesgcm:v1:k:"));
    assert_eq!(value(&*inner, OTHER).await.unwrap(), "{other}");

    let second = store(&[SECRETBOX, GCM]);
    assert_eq!(value(&second, SECRET).await.unwrap(), "{clear}");
    assert!(second.stale(SECRET).await.unwrap());
    second.txn(Txn::put(SECRET, "{clear}")).await.unwrap();
    let third = store(&[SECRETBOX]);
    assert!(!third.stale(SECRET).await.unwrap());
    assert_eq!(value(&third, SECRET).await.unwrap(), "{clear}");
    assert_eq!(
        value(&store(&[GCM]), SECRET).await.unwrap_err().to_string(),
        "store is corrupt: unable to transform key \"/registry/core/secrets/ns/a\": no matching prefix found"
    );
}

#[tokio::test]
async fn a_watch_names_what_it_cannot_read_and_goes_on() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    let writer = EncryptedStore::new(inner.clone(), transformers("secrets", &[GCM]));
    let reader = EncryptedStore::new(inner, transformers("secrets", &[CBC]));
    let mut events = reader.watch("/registry/", 0).await.unwrap();
    let mut next = async || loop {
        let batch = events.next().await.unwrap().unwrap();
        if !batch.events.is_empty() || !batch.unreadable.is_empty() {
            break batch;
        }
    };
    writer.txn(Txn::put(SECRET, "{clear}")).await.unwrap();
    let batch = next().await;
    assert_eq!((batch.events.len(), batch.unreadable.len(), &*batch.unreadable[0].key), (0, 1, SECRET));
    let seen = batch.all_readable().unwrap_err().to_string();
    assert!(seen.contains(SECRET) && !seen.contains("clear"), "{seen}");
    writer.txn(Txn::put("/registry/core/configmaps/ns/a", "{clear}")).await.unwrap();
    let batch = next().await;
    assert_eq!((batch.events.len(), batch.unreadable.len()), (1, 0));
}

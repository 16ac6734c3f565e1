//! History ends by age and by size, and gives back its space.
use kaji_store::disk::{DiskOptions, DiskStore};
use kaji_store::{ManualClock, Op, Range, Store, StoreError, Txn, TxnOutcome};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

async fn put(store: &dyn Store, key: &str, value: Vec<u8>) -> u64 {
    match store.txn(Txn::put(key, value)).await.unwrap() {
        TxnOutcome::Committed { revision, .. } => revision,
        conflict => panic!("{conflict:?}"),
    }
}

fn open(path: &Path, clock: &Arc<ManualClock>) -> DiskStore {
    DiskStore::open(path, DiskOptions { clock: clock.clone(), ..Default::default() }).unwrap()
}

#[tokio::test]
async fn by_age_also_over_a_restart() {
    let (temp, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::new(1_700_000_000_000)));
    let store = open(temp.path(), &clock);
    let first = put(&store, "/a", b"1".into()).await;
    clock.advance(Duration::from_secs(100));
    let second = put(&store, "/a", b"2".into()).await;
    clock.advance(Duration::from_secs(200));
    store.tick().await.unwrap();
    assert_eq!(store.compacted(), 0);
    drop(store);
    let store = open(temp.path(), &clock);
    let third = put(&store, "/a", b"3".into()).await;
    // The first is 311 seconds old, the second 211.
    clock.advance(Duration::from_secs(11));
    store.tick().await.unwrap();
    assert_eq!(store.compacted(), first);
    assert_eq!(store.range(Range::key("/a").at(second)).await.unwrap().kvs[0].value, "2");
    assert!(store.watch("/a", second).await.is_ok());
    clock.advance(Duration::from_secs(300));
    store.tick().await.unwrap();
    assert_eq!(store.compacted(), third);
    let gone = store.range(Range::key("/a").at(second)).await;
    assert_eq!(gone, Err(StoreError::Compacted { compacted: third }));
    assert_eq!(store.range(Range::key("/a")).await.unwrap().kvs[0].value, "3");
}

#[tokio::test]
async fn by_size_and_the_file_stays_small() {
    let temp = tempfile::tempdir().unwrap();
    let options = DiskOptions { history_bytes: 256 << 10, ..Default::default() };
    let store = DiskStore::open(temp.path(), options.clone()).unwrap();
    let len = || std::fs::metadata(temp.path().join("store.redb")).unwrap().len();
    put(&store, "/kept", b"kept".into()).await;
    let mut early = 0;
    for round in 0..60u32 {
        let writes = (0..64).map(|i| {
            let (store, key) = (&store, format!("/key/{}", i % 40));
            async move { put(store, &key, vec![round as u8; 1024]).await }
        });
        futures_util::future::join_all(writes).await;
        if round == 20 {
            early = len();
        }
    }
    let revision = store.revision().await.unwrap();
    // 256 KiB hold some 200 of these versions.
    assert!(store.compacted() > revision - 400, "compacted {} of {revision}", store.compacted());
    assert!(store.compacted() < revision - 100, "compacted {} of {revision}", store.compacted());
    assert!(len() <= early * 2, "the file grew from {early} to {}", len());
    let before = store.range(Range::prefix("/")).await.unwrap();
    assert_eq!(before.count, 41);
    drop(store);
    let store = DiskStore::open(temp.path(), options).unwrap();
    assert_eq!(store.range(Range::prefix("/")).await.unwrap(), before);
    assert!(store.watch("/", revision - 100).await.is_ok());
}

#[tokio::test]
async fn a_file_that_is_mostly_empty_shrinks_at_the_next_start() {
    let temp = tempfile::tempdir().unwrap();
    // Without a journal, from which commits enter the file together: it would stay small.
    let options = DiskOptions { journal_bytes: 0, ..Default::default() };
    let store = DiskStore::open(temp.path(), options.clone()).unwrap();
    let len = || std::fs::metadata(temp.path().join("store.redb")).unwrap().len();
    for i in 0..48 {
        put(&store, &format!("/big/{i}"), vec![i; 1 << 20]).await;
        put(&store, &format!("/kept/{i}"), b"kept".into()).await;
    }
    for i in 0..48 {
        let delete = Txn { compare: vec![], ops: vec![Op::Delete { key: format!("/big/{i}") }] };
        store.txn(delete).await.unwrap();
    }
    let revision = store.revision().await.unwrap();
    store.compact(revision).await.unwrap();
    for _ in 0..5 {
        store.tick().await.unwrap();
    }
    let before = store.range(Range::prefix("/")).await.unwrap();
    assert_eq!(before.count, 48);
    drop(store);
    let large = len();
    assert!(large > 32 << 20, "{large}");
    let store = DiskStore::open(temp.path(), options.clone()).unwrap();
    assert!(len() < large / 4, "{large} has become {}", len());
    assert_eq!(store.range(Range::prefix("/")).await.unwrap(), before);
    put(&store, "/new", b"new".into()).await;
    drop(store);
    let store = DiskStore::open(temp.path(), options).unwrap();
    assert_eq!(store.range(Range::prefix("/")).await.unwrap().count, 49);
}

#[tokio::test]
async fn an_oversized_transaction_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let store =
        DiskStore::open(temp.path(), DiskOptions { max_txn_bytes: 100, ..Default::default() }).unwrap();
    let refused = store.txn(Txn::put("/a", vec![0; 100])).await;
    assert_eq!(refused, Err(StoreError::TooLarge { size: 102, limit: 100 }));
    put(&store, "/a", vec![0; 98]).await;
}

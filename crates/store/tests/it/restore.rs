//! A store that is made of another one's keys has them at their revisions, and no revision twice.
use kaji_store::disk::{DiskOptions, DiskStore};
use kaji_store::memory::MemoryStore;
use kaji_store::{KeyValue, LeaseId, Op, Range, Store, StoreError, Txn};
use std::path::Path;
use std::time::Duration;

fn restore(dir: &Path, revision: u64, kvs: &[KeyValue]) -> Result<u64, StoreError> {
    let mut all = kvs.iter().cloned();
    DiskStore::restore(dir, &DiskOptions::default(), revision, &mut || Ok(all.next()))
}

#[tokio::test]
async fn keys_keep_their_revisions() {
    let former = MemoryStore::new().unwrap();
    let lease = former.grant_lease(Duration::from_secs(9)).await.unwrap();
    for i in 0..2500 {
        former.txn(Txn::put(format!("/k/{:04}", i * 7 % 1500), format!("{i}"))).await.unwrap();
    }
    let put = |key: &str, lease| Op::Put { key: key.into(), value: "v".into(), lease };
    // Two keys of one revision.
    let ops = vec![put("/k/x", Some(lease)), put("/k/y", None)];
    former.txn(Txn { compare: vec![], ops }).await.unwrap();
    let before = former.range(Range::prefix("/k/")).await.unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    let bumped = before.revision + 1000;
    assert_eq!(restore(&dir, bumped, &before.kvs), Ok(1502));
    assert!(
        matches!(restore(&dir, bumped, &[]), Err(StoreError::Invalid(m)) if m.contains("has a store already"))
    );
    // Also after a restart.
    for _ in 0..2 {
        let store = DiskStore::open(&dir, DiskOptions::default()).unwrap();
        let after = store.range(Range::prefix("/k/")).await.unwrap();
        assert_eq!(after.revision, bumped);
        let leases: Vec<LeaseId> = after.kvs.iter().filter_map(|kv| kv.lease).collect();
        assert_eq!(leases, [LeaseId(1)]);
        let without = |kvs: &[KeyValue]| {
            kvs.iter().map(|kv| KeyValue { lease: None, ..kv.clone() }).collect::<Vec<_>>()
        };
        assert_eq!(without(&after.kvs), without(&before.kvs));
        let old = store.range(Range::prefix("/k/").at(before.revision)).await;
        assert_eq!(old, Err(StoreError::Compacted { compacted: bumped }));
        assert!(matches!(store.watch("/k/", before.revision + 1).await, Err(StoreError::Compacted { .. })));
        store.close().await;
    }
    let store = DiskStore::open(&dir, DiskOptions::default()).unwrap();
    store.txn(Txn::update("/k/y", before.kvs.last().unwrap().mod_revision, "w")).await.unwrap();
    assert_eq!(store.revision().await.unwrap(), bumped + 1);
    assert_ne!(store.grant_lease(Duration::from_secs(9)).await.unwrap(), LeaseId(1));
}

#[test]
fn a_restore_that_fails_leaves_no_store() {
    let temp = tempfile::tempdir().unwrap();
    let mut count = 0;
    let mut next = || {
        count += 1;
        let key = format!("/{count}").into();
        let kv =
            KeyValue { key, value: "v".into(), create_revision: 2, mod_revision: 2, version: 1, lease: None };
        if count < 3000 { Ok(Some(kv)) } else { Err(StoreError::Unavailable("cut".into())) }
    };
    let failed = DiskStore::restore(temp.path(), &DiskOptions::default(), 9, &mut next);
    assert_eq!(failed, Err(StoreError::Unavailable("cut".into())));
    let later = KeyValue {
        key: "/a".into(),
        value: "v".into(),
        create_revision: 2,
        mod_revision: 10,
        version: 1,
        lease: None,
    };
    assert!(matches!(restore(temp.path(), 9, &[later]), Err(StoreError::Corrupt(_))));
    assert_eq!(restore(temp.path(), 9, &[]), Ok(0));
}

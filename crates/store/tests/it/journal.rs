//! The journal: what was appended to it and is not in the database survives a cut of the power, and damage shows.
//!
//! A cut of the power is a copy of the files while the store is open and nothing is being written.
use futures_util::StreamExt;
use kaji_store::disk::{DiskOptions, DiskStore, Fault};
use kaji_store::{KeyValue, Op, Range, Store, StoreError, Txn};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const FILES: [&str; 3] = ["FORMAT", "store.redb", "store.redb.journal"];

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in FILES {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

fn open(path: &Path) -> Result<DiskStore, StoreError> {
    DiskStore::open(path, DiskOptions::default())
}

async fn all(store: &DiskStore) -> Vec<KeyValue> {
    store.range(Range::prefix("/")).await.unwrap().kvs
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_cut_of_the_power() {
    let temp = tempfile::tempdir().unwrap();
    let (live, cut) = (temp.path().join("live"), temp.path().join("cut"));
    // Small, so that it is full now and then.
    let options = DiskOptions { journal_bytes: 8 << 10, history_bytes: 16 << 10, ..Default::default() };
    let store = DiskStore::open(&live, options.clone()).unwrap();
    let lease = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
    let mut journaled = 0;
    for n in 0..60_usize {
        let key = format!("/key/{}", n % 7);
        let value = vec![b'a' + (n % 26) as u8; 100 + n * 37 % 900];
        let put = Op::Put { key, value: value.into(), lease: (n % 5 == 0).then_some(lease) };
        let delete = Op::Delete { key: format!("/key/{}", (n + 3) % 7) };
        store.txn(Txn { compare: vec![], ops: vec![put, delete] }).await.unwrap();
        if n % 11 == 0 {
            store.compact(store.revision().await.unwrap() - 1).await.unwrap();
            store.tick().await.unwrap();
        }
        let _ = std::fs::remove_dir_all(&cut);
        copy(&live, &cut);
        // Without the journal, something would be missing as a rule.
        let again = DiskStore::open(&cut, options.clone()).unwrap();
        assert_eq!(again.revision().await, store.revision().await, "{n}");
        assert_eq!(all(&again).await, all(&store).await, "{n}");
        assert_eq!(again.compacted(), store.compacted());
        again.keep_alive(lease).await.unwrap();
        // It goes on, and once closed it needs no journal.
        again.txn(Txn::put("/more", "1")).await.unwrap();
        let expected = all(&again).await;
        drop(again);
        std::fs::remove_file(cut.join("store.redb.journal")).unwrap();
        assert_eq!(all(&open(&cut).unwrap()).await, expected);
        copy(&live, &cut);
        std::fs::remove_file(cut.join("store.redb.journal")).unwrap();
        let missing = open(&cut).err();
        assert!(
            matches!(&missing, Some(StoreError::Corrupt(m)) if m.contains("journal") && m.contains("missing"))
        );
        // Nor is an empty one made then, which the next start would take for whole.
        assert!(open(&cut).is_err());
        journaled += 1;
    }
    assert_eq!(journaled, 60);
}

#[tokio::test]
async fn history_is_readable_whichever_file_it_is_in() {
    let temp = tempfile::tempdir().unwrap();
    let options = DiskOptions { journal_bytes: 4 << 10, recent_bytes: 0, ..Default::default() };
    let store = DiskStore::open(temp.path(), options).unwrap();
    let first = store.txn(Txn::put("/a", "0")).await.map(|_| ()).map(|()| 2).unwrap();
    for n in 1..100_u64 {
        store.txn(Txn::put("/a", format!("{n} {}", "x".repeat(200)))).await.unwrap();
        // Every former value, and a watch of all of them.
        if n % 13 != 0 {
            continue;
        }
        for back in 0..=n {
            let found = store.range(Range::key("/a").at(first + back)).await.unwrap().kvs.remove(0);
            assert!(found.value.starts_with(back.to_string().as_bytes()), "{back} of {n}");
        }
        let mut watch = store.watch("/", first).await.unwrap();
        let mut seen = vec![];
        while seen.len() <= n as usize {
            let batch = watch.next().await.unwrap().unwrap();
            for event in batch.events {
                let before = event.previous.map(|kv| kv.mod_revision);
                assert_eq!(before, (event.kv.mod_revision > first).then(|| event.kv.mod_revision - 1));
                seen.push(event.kv.mod_revision);
            }
        }
        assert_eq!(seen, (first..=first + n).collect::<Vec<_>>());
    }
}

/// The default of the options.
const JOURNAL_BYTES: u64 = 1 << 20;

/// A store with commits in its journal, as a cut of the power leaves it. The end of the journal's frames after each.
async fn with_frames(to: &Path) -> Vec<u64> {
    let temp = tempfile::tempdir().unwrap();
    let writes = Arc::new(Writes::default());
    let options = DiskOptions { fault: Some(writes.clone()), ..Default::default() };
    let store = DiskStore::open(temp.path(), options).unwrap();
    // The first is not in the journal.
    store.txn(Txn::put("/0", "0")).await.unwrap();
    writes.0.lock().unwrap().clear();
    for n in 1..=5 {
        store.txn(Txn::put(format!("/{n}"), vec![b'x'; 300])).await.unwrap();
    }
    copy(temp.path(), to);
    let mut writes = writes.0.lock().unwrap();
    // Besides, each but the first marks that those before it are synced.
    writes.retain(|(at, _)| *at < JOURNAL_BYTES);
    assert_eq!(writes.len(), 5, "each commit is one write");
    writes.iter().map(|(at, len)| at + len).collect()
}

/// Where was written, and how much.
#[derive(Debug, Default)]
struct Writes(Mutex<Vec<(u64, u64)>>);

impl Fault for Writes {
    fn on_write(&self, at: u64, len: usize) -> io::Result<()> {
        self.0.lock().unwrap().push((at, len as u64));
        Ok(())
    }

    fn on_sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_frame_that_is_cut_off_did_not_happen_and_a_damaged_one_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let (good, bad) = (temp.path().join("good"), temp.path().join("bad"));
    let ends = with_frames(&good).await;
    let journal = std::fs::read(good.join(FILES[2])).unwrap();
    for cut in (0..ends[4] as usize).step_by(41) {
        copy(&good, &bad);
        let mut torn = journal.clone();
        torn[cut..ends[4] as usize].fill(0);
        std::fs::write(bad.join(FILES[2]), &torn).unwrap();
        // All but the last were synced before the last was written.
        if (cut as u64) < ends[3] {
            assert!(
                matches!(open(&bad), Err(StoreError::Corrupt(m)) if m.contains("damaged")),
                "cut at {cut}"
            );
            continue;
        }
        let store = open(&bad).unwrap();
        assert_eq!(all(&store).await.len(), 5, "cut at {cut}");
        store.txn(Txn::put("/new", "1")).await.unwrap();
        drop(store);
        assert_eq!(all(&open(&bad).unwrap()).await.len(), 6, "cut at {cut}");
    }
    for len in [0, ends[2] as usize, ends[4] as usize, journal.len() - 1] {
        copy(&good, &bad);
        std::fs::write(bad.join(FILES[2]), &journal[..len]).unwrap();
        assert!(matches!(open(&bad), Err(StoreError::Corrupt(m)) if m.contains("cut off")), "of {len} bytes");
    }
    for at in (0..ends[3] as usize).step_by(29) {
        copy(&good, &bad);
        let mut damaged = journal.clone();
        damaged[at] ^= 0x10;
        std::fs::write(bad.join(FILES[2]), &damaged).unwrap();
        match open(&bad).err() {
            Some(StoreError::Corrupt(m)) => assert!(m.contains("journal") && m.contains("damaged"), "{m}"),
            other => panic!("damage at {at}: {other:?}"),
        }
    }
}

/// Fails every third write, or every third fsync.
#[derive(Debug, Default)]
struct Third {
    count: AtomicUsize,
    on: AtomicUsize,
}

impl Fault for Third {
    fn on_write(&self, _: u64, _: usize) -> io::Result<()> {
        let on = self.on.load(Ordering::SeqCst) == 1;
        if on && self.count.fetch_add(1, Ordering::SeqCst) % 3 == 2 {
            return Err(io::Error::from_raw_os_error(28));
        }
        Ok(())
    }

    fn on_sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_write_of_the_journal_that_fails_did_not_happen_and_the_others_did() {
    let (temp, fault) = (tempfile::tempdir().unwrap(), Arc::new(Third::default()));
    let options = DiskOptions { fault: Some(fault.clone()), ..Default::default() };
    let store = DiskStore::open(temp.path(), options).unwrap();
    let mut watch = store.watch("/", 0).await.unwrap();
    store.txn(Txn::put("/first", "1")).await.unwrap();
    let (mut expected, mut failed) = (vec!["/first".to_owned()], 0);
    for n in 0..20 {
        let key = format!("/key/{n:02}");
        fault.on.store(1, Ordering::SeqCst);
        let outcome = store.txn(Txn::put(key.clone(), "1")).await;
        fault.on.store(0, Ordering::SeqCst);
        match outcome {
            Ok(_) => expected.push(key),
            Err(StoreError::NoSpace(m)) => {
                assert!(m.contains("store.redb.journal"), "{m}");
                failed += 1;
            }
            Err(error) => panic!("{error}"),
        }
        store.tick().await.unwrap();
    }
    assert!(failed > 3, "{failed}");
    let keys = |kvs: Vec<KeyValue>| kvs.iter().map(|kv| kv.key.to_string()).collect::<Vec<_>>();
    assert_eq!(keys(all(&store).await), expected);
    let mut seen = vec![];
    while seen.len() < expected.len() {
        seen.extend(watch.next().await.unwrap().unwrap().events.into_iter().map(|e| e.kv.key.to_string()));
    }
    assert_eq!(seen, expected);
    drop(watch);
    drop(store);
    assert_eq!(keys(all(&open(temp.path()).unwrap()).await), expected);
}

#[tokio::test]
async fn a_store_of_the_former_format_is_opened_and_becomes_one_of_this() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path()).unwrap();
    store.txn(Txn::put("/a", "1")).await.unwrap();
    drop(store);
    // As a version without a journal left it.
    std::fs::write(temp.path().join("FORMAT"), "kaji-store 1\n").unwrap();
    std::fs::remove_file(temp.path().join("store.redb.journal")).unwrap();
    let store = open(temp.path()).unwrap();
    assert_eq!(std::fs::read_to_string(temp.path().join("FORMAT")).unwrap(), "kaji-store 2\n");
    assert_eq!(all(&store).await.len(), 1);
    store.txn(Txn::put("/b", "1")).await.unwrap();
    drop(store);
    assert_eq!(all(&open(temp.path()).unwrap()).await.len(), 2);
}

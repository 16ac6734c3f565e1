//! Full disks, failing disks and damaged files: the store says so, refuses to serve, and never starts empty or wrong.
use futures_util::{FutureExt, StreamExt};
use kaji_store::disk::{DiskOptions, DiskStore, Fault};
use kaji_store::{Op, Range, Store, StoreError, Txn};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio::task::unconstrained;

/// Fails writes or fsyncs with an error number while it is switched on.
#[derive(Debug, Default)]
struct Broken {
    writes: AtomicBool,
    syncs: AtomicBool,
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

impl Fault for Broken {
    fn on_write(&self, _: u64, _: usize) -> io::Result<()> {
        if self.writes.load(Ordering::SeqCst) { Err(io::Error::from_raw_os_error(ENOSPC)) } else { Ok(()) }
    }

    fn on_sync(&self) -> io::Result<()> {
        if self.syncs.load(Ordering::SeqCst) { Err(io::Error::from_raw_os_error(EIO)) } else { Ok(()) }
    }
}

fn open(path: &Path, fault: &Arc<Broken>) -> Result<DiskStore, StoreError> {
    DiskStore::open(path, DiskOptions { fault: Some(fault.clone()), ..Default::default() })
}

#[tokio::test]
async fn after_a_full_disk_it_goes_on_and_nothing_is_lost() {
    let (temp, fault) = (tempfile::tempdir().unwrap(), Arc::new(Broken::default()));
    let store = open(temp.path(), &fault).unwrap();
    store.txn(Txn::put("/a", "1")).await.unwrap();
    let mut watch = store.watch("/", 0).await.unwrap();
    fault.writes.store(true, Ordering::SeqCst);
    let full = |error: Option<StoreError>| {
        let said = matches!(&error, Some(StoreError::NoSpace(m)) if m.contains("store.redb") && m.contains("free some space"));
        assert!(said, "{error:?}");
    };
    assert_eq!(store.write_failure(), None);
    full(store.txn(Txn::put("/b", "1")).await.err());
    full(store.txn(Txn::put("/b", "1")).await.err());
    full(store.write_failure());
    full(store.tick().await.err());
    full(store.range(Range::prefix("/")).await.err());
    assert_eq!(store.revision().await, Ok(2));
    // There is space again.
    fault.writes.store(false, Ordering::SeqCst);
    store.tick().await.unwrap();
    assert_eq!(store.range(Range::prefix("/")).await.unwrap().count, 1);
    full(store.write_failure());
    store.txn(Txn::put("/b", "2")).await.unwrap();
    assert_eq!(store.write_failure(), None);
    assert_eq!(watch.next().await.unwrap().unwrap().events[0].kv.value, "2");
    let before = store.range(Range::prefix("/")).await.unwrap();
    assert_eq!((before.revision, before.count), (3, 2));
    drop(store);
    let store = open(temp.path(), &fault).unwrap();
    assert_eq!(store.range(Range::prefix("/")).await.unwrap(), before);
}

/// Fails one write, or one fsync, when so many more have been done; counts from when it is asked for the room there is,
/// if that is what it waits for.
#[derive(Debug, Default)]
struct Once {
    left: Mutex<Option<usize>>,
    /// Of fsyncs instead of writes.
    syncs: bool,
    /// What `left` becomes when it is asked for the room there is.
    at_free: Mutex<Option<usize>>,
}

impl Once {
    fn count(&self) -> io::Result<()> {
        let mut left = self.left.lock().unwrap();
        match &mut *left {
            None => Ok(()),
            Some(0) => {
                *left = None;
                Err(io::Error::from_raw_os_error(EIO))
            }
            Some(n) => {
                *n -= 1;
                Ok(())
            }
        }
    }

    /// Whether it has failed.
    fn has(&self) -> bool {
        self.left.lock().unwrap().take().is_none()
    }
}

impl Fault for Once {
    fn on_write(&self, _: u64, _: usize) -> io::Result<()> {
        if self.syncs { Ok(()) } else { self.count() }
    }

    fn on_sync(&self) -> io::Result<()> {
        if self.syncs { self.count() } else { Ok(()) }
    }

    fn free(&self) -> Option<u64> {
        if let Some(count) = self.at_free.lock().unwrap().take() {
            *self.left.lock().unwrap() = Some(count);
        }
        None
    }
}

#[tokio::test]
async fn whichever_write_fails_it_goes_on() {
    let (temp, fault) = (tempfile::tempdir().unwrap(), Arc::new(Once::default()));
    // Without a journal, so that every commit writes as much.
    let options = DiskOptions { fault: Some(fault.clone()), journal_bytes: 0, ..Default::default() };
    let store = DiskStore::open(temp.path(), options.clone()).unwrap();
    let mut watch = store.watch("/", 0).await.unwrap();
    let mut failed = 0;
    for i in 0.. {
        *fault.left.lock().unwrap() = Some(i);
        let told = store.txn(Txn::put(format!("/{i}"), vec![0; 20_000])).await;
        let fired = fault.has();
        store.tick().await.unwrap();
        // What was refused did not happen, with this fault; it could have.
        assert_eq!(told.is_err(), fired, "{told:?}");
        assert_eq!(store.range(Range::key(format!("/{i}"))).await.unwrap().count, usize::from(!fired));
        store.txn(Txn::put("/counter", i.to_string())).await.unwrap();
        failed += usize::from(fired);
        if !fired {
            break;
        }
    }
    assert!(failed > 3, "{failed} writes failed");
    let after = store.range(Range::prefix("/")).await.unwrap();
    let mut seen = vec![];
    while seen.last() != Some(&after.revision) {
        seen.extend(watch.next().await.unwrap().unwrap().events.into_iter().map(|e| e.kv.mod_revision));
    }
    assert_eq!(seen, (2..=after.revision).collect::<Vec<_>>());
    drop(watch);
    drop(store);
    let store = DiskStore::open(temp.path(), options).unwrap();
    assert_eq!(store.range(Range::prefix("/")).await.unwrap(), after);
}

/// A file with much room in it; what is in it, and its length.
async fn large_file(path: &Path) -> (kaji_store::RangeResult, u64) {
    // Without a journal, from which commits enter the file together: it would stay small.
    let store = DiskStore::open(path, DiskOptions { journal_bytes: 0, ..Default::default() }).unwrap();
    for i in 0..48 {
        store.txn(Txn::put(format!("/big/{i}"), vec![i; 1 << 20])).await.unwrap();
        store.txn(Txn::put(format!("/kept/{i}"), "kept")).await.unwrap();
    }
    for i in 0..48 {
        store.txn(Txn::put(format!("/big/{i}"), "small")).await.unwrap();
    }
    store.compact(store.revision().await.unwrap()).await.unwrap();
    for _ in 0..5 {
        store.tick().await.unwrap();
    }
    let found = store.range(Range::prefix("/")).await.unwrap();
    drop(store);
    (found, std::fs::metadata(path.join("store.redb")).unwrap().len())
}

#[tokio::test]
async fn a_file_that_cannot_be_made_smaller_stays_in_use() {
    for syncs in [false, true] {
        let temp = tempfile::tempdir().unwrap();
        let len = || std::fs::metadata(temp.path().join("store.redb")).unwrap().len();
        let (mut before, large) = large_file(temp.path()).await;
        for round in 0.. {
            let fault = Arc::new(Once { syncs, at_free: Mutex::new(Some(round)), ..Once::default() });
            let options = DiskOptions { fault: Some(fault.clone()), ..Default::default() };
            let store = DiskStore::open(temp.path(), options).unwrap();
            let fired = fault.has();
            assert_eq!(store.range(Range::prefix("/")).await.unwrap(), before);
            assert!(!temp.path().join("store.redb.new").exists());
            if len() < large / 4 {
                // What failed, if anything did, was the end of the former file.
                assert!(round > 0, "done in round {round}");
                break;
            }
            assert!(fired, "round {round}");
            store.txn(Txn::put("/round", round.to_string())).await.unwrap();
            before = store.range(Range::prefix("/")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn room_is_given_back_while_the_store_works() {
    let temp = tempfile::tempdir().unwrap();
    let len = || std::fs::metadata(temp.path().join("store.redb")).unwrap().len();
    let options = DiskOptions { shrink_interval: Duration::ZERO, ..Default::default() };
    let store = DiskStore::open(temp.path(), options).unwrap();
    let mut watch = store.watch("/small", 0).await.unwrap();
    for i in 0..40_u8 {
        store.txn(Txn::put(format!("/big/{i}"), vec![i; 1 << 20])).await.unwrap();
        store.txn(Txn::put(format!("/small/{i}"), "1")).await.unwrap();
    }
    let large = len();
    assert!(large > 40 << 20, "{large}");
    for i in 0..40 {
        store.txn(Txn::put(format!("/big/{i}"), "1")).await.unwrap();
    }
    let before = store.range(Range::prefix("/")).await.unwrap();
    store.compact(before.revision).await.unwrap();
    for _ in 0..100 {
        store.tick().await.unwrap();
        if len() < large / 4 {
            break;
        }
    }
    assert!(len() < large / 4, "{large} bytes became {}", len());
    assert_eq!(store.range(Range::prefix("/")).await.unwrap(), before);
    store.txn(Txn::put("/small/last", "1")).await.unwrap();
    let mut seen = vec![];
    while seen.len() < 41 {
        seen.extend(watch.next().await.unwrap().unwrap().events.into_iter().map(|e| e.kv.key.to_string()));
    }
    assert_eq!(seen.last().unwrap(), "/small/last");
    drop(watch);
    let after = store.range(Range::prefix("/")).await.unwrap();
    drop(store);
    let store = DiskStore::open(temp.path(), DiskOptions::default()).unwrap();
    assert_eq!(store.range(Range::prefix("/")).await.unwrap(), after);
}

/// A disk with so much room.
#[derive(Debug)]
struct Room(AtomicU64);

impl Room {
    fn set(&self, mib: u64) {
        self.0.store(mib << 20, Ordering::SeqCst);
    }
}

impl Fault for Room {
    fn on_write(&self, _: u64, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn on_sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn free(&self) -> Option<u64> {
        Some(self.0.load(Ordering::SeqCst))
    }
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_takes_no_writes_until_there_is_room() {
    let temp = tempfile::tempdir().unwrap();
    let room = Arc::new(Room(AtomicU64::new(1 << 30)));
    let options = DiskOptions { fault: Some(room.clone()), ..Default::default() };
    let store = DiskStore::open(temp.path(), options.clone()).unwrap();
    store.txn(Txn::put("/a", "1")).await.unwrap();
    store.txn(Txn::put("/b", "1")).await.unwrap();
    let lease = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
    let mut watch = store.watch("/", 0).await.unwrap();
    let no_space = |outcome: Option<StoreError>| {
        assert!(matches!(&outcome, Some(StoreError::NoSpace(m)) if m.contains("bytes left")), "{outcome:?}");
    };
    let delete = |key: &str| Txn { compare: vec![], ops: vec![Op::Delete { key: key.into() }] };
    // Room for little: what was to be added is refused, and nothing has come of it.
    room.set(10);
    no_space(store.txn(Txn::put("/c", "1")).await.err());
    no_space(store.grant_lease(Duration::from_secs(1)).await.err());
    assert_eq!(store.revision().await, Ok(3));
    assert_eq!(store.range(Range::prefix("/")).await.unwrap().count, 2);
    store.keep_alive(lease).await.unwrap();
    store.tick().await.unwrap();
    // What gives room is not.
    store.txn(delete("/a")).await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().revision, 4);
    // Room for nothing.
    room.set(1);
    no_space(store.txn(delete("/b")).await.err());
    no_space(store.tick().await.err());
    no_space(store.compact(3).await.err());
    assert_eq!(store.range(Range::prefix("/")).await.unwrap().count, 1);
    // What a transaction takes counts.
    room.set(20);
    let big = store.txn(Txn::put("/big", vec![0; 2 << 20]));
    let (big, small) = futures_util::join!(big, store.txn(Txn::put("/c", "2")));
    no_space(big.err());
    small.unwrap();
    // Room again: the same store goes on where it was, also over a restart.
    room.set(1024);
    store.txn(Txn::put("/big", vec![0; 2 << 20])).await.unwrap();
    let mut seen = vec![];
    while seen.len() < 2 {
        seen.extend(watch.next().await.unwrap().unwrap().events.into_iter().map(|e| e.kv.mod_revision));
    }
    assert_eq!(seen, [5, 6]);
    store.compact(5).await.unwrap();
    let before = store.range(Range::prefix("/")).await.unwrap();
    drop(watch);
    drop(store);
    let store = DiskStore::open(temp.path(), options).unwrap();
    assert_eq!(store.range(Range::prefix("/")).await.unwrap(), before);
}

#[tokio::test]
async fn a_failing_fsync_acknowledges_nothing() {
    let (temp, fault) = (tempfile::tempdir().unwrap(), Arc::new(Broken::default()));
    let store = open(temp.path(), &fault).unwrap();
    fault.syncs.store(true, Ordering::SeqCst);
    let writes = (0..20).map(|i| store.txn(Txn::put(format!("/{i}"), "1")));
    for outcome in futures_util::future::join_all(writes).await {
        assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
    }
    assert!(store.range(Range::prefix("/")).await.is_err());
}

#[test]
fn no_space_for_a_new_store_leaves_none() {
    let (temp, fault) = (tempfile::tempdir().unwrap(), Arc::new(Broken::default()));
    fault.writes.store(true, Ordering::SeqCst);
    assert!(matches!(open(temp.path(), &fault), Err(StoreError::NoSpace(_))));
    fault.writes.store(false, Ordering::SeqCst);
    open(temp.path(), &fault).unwrap();
}

/// Stops every fsync until it is let go.
#[derive(Debug)]
struct Gate {
    closed: AtomicBool,
    syncs: AtomicUsize,
    arrived: Mutex<mpsc::Sender<()>>,
    go: Mutex<mpsc::Receiver<()>>,
}

impl Fault for Gate {
    fn on_write(&self, _: u64, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn on_sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        if self.closed.swap(false, Ordering::SeqCst) {
            self.arrived.lock().unwrap().send(()).unwrap();
            self.go.lock().unwrap().recv().unwrap();
        }
        Ok(())
    }
}

#[tokio::test]
async fn nothing_shows_before_the_fsync_and_writers_share_it() {
    let temp = tempfile::tempdir().unwrap();
    let ((arrived, has_arrived), (let_go, go)) = (mpsc::channel(), mpsc::channel());
    let gate = Arc::new(Gate {
        closed: AtomicBool::new(false),
        syncs: AtomicUsize::new(0),
        arrived: Mutex::new(arrived),
        go: Mutex::new(go),
    });
    let options = DiskOptions { fault: Some(gate.clone()), ..Default::default() };
    let store = DiskStore::open(temp.path(), options).unwrap();
    // The first commit makes room for the journal, which is synced as well.
    store.grant_lease(Duration::from_secs(3600)).await.unwrap();
    let mut watch = store.watch("/", 0).await.unwrap();
    gate.closed.store(true, Ordering::SeqCst);
    let mut first = store.txn(Txn::put("/first", "1"));
    assert_eq!((&mut first).now_or_never(), None);
    has_arrived.recv().unwrap();
    // The first write is in its fsync now.
    assert_eq!((&mut first).now_or_never(), None);
    assert_eq!(store.range(Range::prefix("/")).await.unwrap().kvs, []);
    assert_eq!(watch.next().now_or_never(), None);
    assert_eq!(store.current_revision_hint(), Some(1));
    // Without `unconstrained`, tokio's budget of a poll leaves some of them out of the queue until the next poll.
    let mut rest: Vec<_> =
        (0..200).map(|i| unconstrained(store.txn(Txn::put(format!("/rest/{i}"), "1")))).collect();
    for write in &mut rest {
        assert_eq!(write.now_or_never(), None);
    }
    let before = gate.syncs.load(Ordering::SeqCst);
    let_go.send(()).unwrap();
    first.await.unwrap();
    // The writer may have committed the others by now; a batch of a watch has what there is.
    let shown = watch.next().now_or_never().flatten().unwrap().unwrap();
    assert_eq!(&*shown.events[0].kv.key, "/first");
    for outcome in futures_util::future::join_all(rest).await {
        outcome.unwrap();
    }
    let syncs = gate.syncs.load(Ordering::SeqCst) - before;
    assert_eq!(syncs, 1, "fsyncs of 200 writes that waited for one");
}

/// A store with some history, closed.
fn prepare(path: &Path) -> Vec<kaji_store::KeyValue> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = DiskStore::open(path, DiskOptions::default()).unwrap();
    runtime.block_on(async {
        for i in 0..300 {
            let value = vec![b'a' + (i % 26) as u8; 500 + i % 700];
            store.txn(Txn::put(format!("/key/{}", i % 100), value)).await.unwrap();
        }
        store.range(Range::prefix("/")).await.unwrap().kvs
    })
}

/// What is served, or why nothing is.
fn serve(path: &Path) -> Result<Vec<kaji_store::KeyValue>, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = DiskStore::open(path, DiskOptions::default())?;
    runtime.block_on(async { Ok(store.range(Range::prefix("/")).await?.kvs) })
}

#[test]
fn damage_is_refused_or_harmless() {
    let temp = tempfile::tempdir().unwrap();
    let (good, bad) = (temp.path().join("good"), temp.path().join("bad"));
    let expected = prepare(&good);
    assert_eq!(serve(&good).unwrap(), expected);
    let len = std::fs::metadata(good.join("store.redb")).unwrap().len();
    std::fs::create_dir(&bad).unwrap();
    std::fs::copy(good.join("FORMAT"), bad.join("FORMAT")).unwrap();
    let (mut refused, mut harmless) = (0, 0);
    for round in 0..120 {
        std::fs::copy(good.join("store.redb"), bad.join("store.redb")).unwrap();
        let file = std::fs::OpenOptions::new().write(true).read(true).open(bad.join("store.redb")).unwrap();
        // All over the file, at changing places within the pages, and often in the header.
        let at = if round % 6 == 0 { round * 3 } else { len * round / 120 + round * 97 % 4096 };
        let at = at.min(len - 16);
        let mut garbage = [0; 16];
        file.read_exact_at(&mut garbage, at).unwrap();
        garbage.iter_mut().for_each(|byte| *byte ^= 0x5a);
        file.write_all_at(&garbage, at).unwrap();
        drop(file);
        match serve(&bad) {
            Ok(found) => {
                assert!(found == expected, "damage at {at} changed what is served");
                harmless += 1;
            }
            Err(StoreError::Corrupt(_)) => refused += 1,
            Err(error) => panic!("damage at {at}: {error}"),
        }
    }
    assert!(refused > 20 && harmless > 0, "{refused} refused, {harmless} harmless");
}

#[test]
fn a_cut_off_or_missing_file_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("store");
    prepare(&path);
    let data = path.join("store.redb");
    let file = std::fs::OpenOptions::new().write(true).open(&data).unwrap();
    let len = file.metadata().unwrap().len();
    for cut in [len - 4096, len / 2, len / 7, 4096, 320, 100, 1, 0] {
        file.set_len(cut).unwrap();
        match serve(&path) {
            Err(StoreError::Corrupt(message)) => assert!(message.contains("store.redb"), "{message}"),
            other => panic!("cut to {cut}: {other:?}"),
        }
    }
    drop(file);
    std::fs::write(&data, "not a database").unwrap();
    assert!(matches!(serve(&path), Err(StoreError::Corrupt(_))));
    std::fs::remove_file(&data).unwrap();
    assert!(matches!(serve(&path), Err(StoreError::Corrupt(m)) if m.contains("missing")));
    assert!(!data.exists());
}

#[test]
fn a_lost_format_file_is_made_again() {
    let temp = tempfile::tempdir().unwrap();
    let expected = prepare(temp.path());
    std::fs::remove_file(temp.path().join("FORMAT")).unwrap();
    assert_eq!(serve(temp.path()).unwrap(), expected);
    assert!(temp.path().join("FORMAT").exists());
}

#[cfg(unix)]
#[test]
fn what_is_stored_is_the_owners() {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    drop(DiskStore::open(&dir, DiskOptions::default()).unwrap());
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    let files = ["store.redb", "store.redb.journal", "LOCK", "FORMAT"].map(|name| dir.join(name));
    for file in &files {
        assert_eq!(mode(file), 0o600, "{file:?}");
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o666)).unwrap();
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    drop(DiskStore::open(&dir, DiskOptions::default()).unwrap());
    assert_eq!(mode(&dir), 0o700);
    for file in &files {
        assert_eq!(mode(file), 0o600, "{file:?}");
    }
}

#[test]
fn one_process_at_a_time() {
    let temp = tempfile::tempdir().unwrap();
    let _store = DiskStore::open(temp.path(), DiskOptions::default()).unwrap();
    assert!(matches!(serve(temp.path()), Err(StoreError::Unavailable(m)) if m.contains("in use")));
}

//! Damaged files: a check names what is wrong with them, a salvage makes a store of the rest, and a fork is as its source was.
use futures_util::StreamExt;
use kaji_store::disk::{Checkup, Damage, DiskOptions, DiskStore, check, fork, salvage};
use kaji_store::memory::{MemoryOptions, MemoryStore};
use kaji_store::{KeyValue, Op, Range, Revision, Store, StoreError, Txn};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILES: [&str; 3] = ["FORMAT", "store.redb", "store.redb.journal"];
const BUMP: u64 = 1000;

fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for file in FILES {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

async fn all(store: &dyn Store) -> Vec<KeyValue> {
    store.range(Range::prefix("/")).await.unwrap().kvs
}

/// A store with history, deletions and a lease; the former versions are compacted but for the last ones.
async fn fill(store: &DiskStore) {
    let lease = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
    for i in 0..240_usize {
        let key = format!("/registry/core/pods/default/pod-{:03}", i % 80);
        let value = vec![b'a' + (i % 26) as u8; 300 + i * 7 % 900];
        let put = Op::Put { key, value: value.into(), lease: (i % 9 == 0).then_some(lease) };
        let delete = Op::Delete { key: format!("/registry/core/pods/default/pod-{:03}", (i + 40) % 80) };
        let ops = if i % 5 == 0 { vec![put, delete] } else { vec![put] };
        store.txn(Txn { compare: vec![], ops }).await.unwrap();
        if i == 200 {
            store.compact(store.revision().await.unwrap()).await.unwrap();
        }
    }
    store.tick().await.unwrap();
    store.txn(Txn::put(LAST, "1")).await.unwrap();
}

/// The last key that is written.
const LAST: &str = "/registry/core/pods/default/last";

/// A directory of a store, closed or as a process leaves it that is killed, and what is in it.
fn prepared(dir: &Path, killed: bool) -> (PathBuf, Vec<KeyValue>) {
    let (live, cut) = (dir.join("live"), dir.join("cut"));
    let store = DiskStore::open(&live, DiskOptions::default()).unwrap();
    let expected = block(async {
        fill(&store).await;
        all(&store).await
    });
    if killed {
        copy(&live, &cut);
        return (cut, expected);
    }
    drop(store);
    (live, expected)
}

fn serve(path: &Path) -> Result<Vec<KeyValue>, StoreError> {
    let store = DiskStore::open(path, DiskOptions::default())?;
    block(async { Ok(store.range(Range::prefix("/")).await?.kvs) })
}

/// What a salvage has saved.
fn saved(path: &Path, into: &Path, older: bool) -> (Checkup, Vec<KeyValue>) {
    let _ = fs::remove_dir_all(into);
    let done = salvage(path, into, &DiskOptions::default(), BUMP, older).unwrap();
    let store = DiskStore::open(into, DiskOptions::default()).unwrap();
    let kvs = block(async {
        assert_eq!(store.revision().await.unwrap(), done.revision);
        all(&store).await
    });
    assert_eq!(kvs.len() as u64, done.saved);
    (done.checkup, kvs)
}

/// Without leases, which are numbered anew.
fn contents(kvs: &[KeyValue]) -> BTreeMap<String, (Revision, Vec<u8>)> {
    kvs.iter().map(|kv| (kv.key.to_string(), (kv.mod_revision, kv.value.to_vec()))).collect()
}

#[test]
fn a_store_that_is_whole_has_no_damage() {
    for killed in [false, true] {
        let temp = tempfile::tempdir().unwrap();
        let (path, expected) = prepared(temp.path(), killed);
        let checkup = check(&path).unwrap();
        assert_eq!((&checkup.damage, checkup.intact), (&vec![], expected.len() as u64), "{checkup:?}");
        assert_eq!((checkup.uncertain, checkup.lost.len()), (0, 0));
        assert_eq!(checkup.journaled > 0, killed, "{checkup:?}");
        let (_, kvs) = saved(&path, &temp.path().join("saved"), false);
        assert_eq!(contents(&kvs), contents(&expected));
        // Nothing was changed by that.
        assert_eq!(serve(&path).unwrap(), expected);
    }
}

#[test]
fn a_store_in_use_and_none_at_all_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let missing = temp.path().join("missing");
    assert!(matches!(check(&missing), Err(StoreError::Invalid(m)) if m.contains("has no store")));
    assert!(!missing.exists());
    let path = temp.path().join("store");
    let store = DiskStore::open(&path, DiskOptions::default()).unwrap();
    assert!(matches!(check(&path), Err(StoreError::Unavailable(m)) if m.contains("in use")));
    drop(store);
    let into = DiskOptions::default();
    assert!(matches!(salvage(&path, &path, &into, BUMP, false), Err(StoreError::Unavailable(_))));
}

/// Where the value of a key's last version is in the file.
fn find(path: &Path, kv: &KeyValue) -> u64 {
    let bytes = fs::read(path.join("store.redb")).unwrap();
    let change = [kv.key.as_bytes(), &kv.value].concat();
    let places: Vec<_> =
        (0..bytes.len() - change.len()).filter(|at| bytes[*at..].starts_with(&change)).collect();
    // Copies in pages that are free may come before or behind.
    assert!(!places.is_empty());
    *places.last().unwrap() as u64
}

fn overwrite_all(path: &Path, kv: &KeyValue) {
    let file = fs::OpenOptions::new().write(true).open(path.join("store.redb")).unwrap();
    loop {
        let bytes = fs::read(path.join("store.redb")).unwrap();
        let change = [kv.key.as_bytes(), &kv.value].concat();
        let Some(at) = (0..bytes.len() - change.len()).find(|at| bytes[*at..].starts_with(&change)) else {
            return;
        };
        file.write_all_at(b"#", (at + kv.key.len() + 7) as u64).unwrap();
    }
}

#[test]
fn a_damaged_object_is_named_and_the_others_are_saved() {
    let temp = tempfile::tempdir().unwrap();
    let (path, expected) = prepared(temp.path(), false);
    let victim = expected.iter().find(|kv| kv.mod_revision > 210 && kv.value.len() > 100).unwrap();
    assert!(find(&path, victim) > 0);
    overwrite_all(&path, victim);
    let error = serve(&path).unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt(m) if m.contains(&format!("change {}.", victim.mod_revision))),
        "{error}"
    );
    let checkup = check(&path).unwrap();
    let key = Some(victim.key.to_string());
    assert!(
        checkup.damage.iter().any(|d| matches!(d, Damage::Change { key: found, .. } if *found == key)),
        "{checkup:?}"
    );
    let [lost] = &checkup.lost[..] else { panic!("{checkup:?}") };
    assert_eq!((&lost.key, lost.revision), (&key, victim.mod_revision));
    let (_, kvs) = saved(&path, &temp.path().join("saved"), false);
    let mut rest = contents(&expected);
    rest.remove(&*victim.key);
    assert_eq!(contents(&kvs), rest);
    // An older version was in the history.
    let (_, kvs) = saved(&path, &temp.path().join("older"), true);
    let older = contents(&kvs).remove(&*victim.key);
    assert_eq!(older.map(|(revision, _)| revision), lost.older);
}

#[test]
fn a_page_of_zeros_costs_what_was_in_it() {
    let temp = tempfile::tempdir().unwrap();
    let (path, expected) = prepared(temp.path(), false);
    let page = find(&path, &expected[3]) / 4096 * 4096;
    let file = fs::OpenOptions::new().write(true).open(path.join("store.redb")).unwrap();
    file.write_all_at(&[0; 4096], page).unwrap();
    assert!(matches!(serve(&path), Err(StoreError::Corrupt(_))));
    let (checkup, kvs) = saved(&path, &temp.path().join("saved"), false);
    assert!(checkup.missing > 0 && checkup.uncertain_before.is_some(), "{checkup:?}");
    assert!(
        kvs.len() + 40 > expected.len() && kvs.len() < expected.len(),
        "{} of {}",
        kvs.len(),
        expected.len()
    );
}

#[test]
fn a_database_that_lost_commits_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let (live, cut) = (temp.path().join("live"), temp.path().join("cut"));
    let store = DiskStore::open(&live, DiskOptions::default()).unwrap();
    block(store.txn(Txn::put("/a", "1"))).unwrap();
    copy(&live, &cut);
    drop(store);
    let store = DiskStore::open(&live, DiskOptions::default()).unwrap();
    block(async {
        store.txn(Txn::put("/b", "1")).await.unwrap();
        store.txn(Txn::put("/c", "1")).await.unwrap();
    });
    // An older file beside a newer journal, as a copy that was made one file after the other has them.
    fs::copy(live.join("store.redb.journal"), cut.join("store.redb.journal")).unwrap();
    assert!(matches!(serve(&cut), Err(StoreError::Corrupt(m)) if m.contains("lost commits")));
    assert!(check(&cut).unwrap().damage.contains(&Damage::LostCommits));
}

/// What is done to a file.
#[derive(Clone, Debug)]
enum Harm {
    Flip(prop::sample::Index, u8),
    Overwrite(prop::sample::Index, usize, u8),
    Cut(prop::sample::Index),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        4 => (any::<prop::sample::Index>(), 0..8_u8).prop_map(|(at, bit)| Harm::Flip(at, bit)),
        3 => (any::<prop::sample::Index>(), 1..9000_usize, any::<u8>()).prop_map(|(at, n, b)| Harm::Overwrite(at, n, b)),
        1 => any::<prop::sample::Index>().prop_map(Harm::Cut),
    ]
}

fn do_harm(path: &Path, harm: &Harm) {
    let mut bytes = fs::read(path).unwrap();
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    match harm {
        Harm::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
        Harm::Overwrite(at, n, byte) => {
            let at = at.index(len);
            bytes[at..(at + n).min(len)].fill(*byte);
        }
        Harm::Cut(at) => bytes.truncate(at.index(len)),
    }
    fs::write(path, bytes).unwrap();
}

/// A store as it is prepared once for all cases.
struct Prepared {
    path: PathBuf,
    expected: Vec<KeyValue>,
    _temp: tempfile::TempDir,
}

impl Prepared {
    fn new(killed: bool) -> Prepared {
        let temp = tempfile::tempdir().unwrap();
        let (path, expected) = prepared(temp.path(), killed);
        Prepared { path, expected, _temp: temp }
    }
}

fn damaged_files_show_and_nothing_wrong_is_served(
    Prepared { path, expected, .. }: &Prepared,
    scratch: &Path,
    file: &str,
    harm: &Harm,
) -> Result<(), TestCaseError> {
    let (bad, into) = (scratch.join("bad"), scratch.join("into"));
    copy(path, &bad);
    do_harm(&bad.join(file), harm);
    let checkup = check(&bad);
    let checkup = match checkup {
        Ok(checkup) => checkup,
        Err(StoreError::Corrupt(_)) => return Ok(()),
        Err(other) => return Err(TestCaseError::fail(other.to_string())),
    };
    let _ = fs::remove_dir_all(&into);
    let done = salvage(&bad, &into, &DiskOptions::default(), BUMP, false).unwrap();
    prop_assert_eq!(&done.checkup, &checkup);
    let kept = contents(&serve(&into).unwrap());
    let mut should = contents(expected);
    // The last commit of a journal cannot be told from one that was cut off; those before it can.
    if file.ends_with("journal") && !kept.contains_key(LAST) && checkup.damage.is_empty() {
        should.remove(LAST);
    }
    let unnamed = checkup.uncertain_before.unwrap_or(0);
    let named: Vec<_> = checkup.lost.iter().filter_map(|lost| lost.key.as_deref()).collect();
    for (key, value) in &kept {
        // Wrong only where that was said.
        prop_assert!(should.get(key) == Some(value) || value.0 < unnamed, "{} is wrong: {:?}", key, checkup);
    }
    for key in should.keys().filter(|key| !kept.contains_key(*key)) {
        let said = named.contains(&key.as_str()) || unnamed > 0;
        prop_assert!(said, "{} is missing: {:?}", key, checkup);
    }
    match serve(&bad) {
        Ok(found) => {
            prop_assert_eq!(contents(&found), should.clone(), "wrong data were served: {:?}", checkup);
        }
        Err(StoreError::Corrupt(_)) => {}
        Err(other) => return Err(TestCaseError::fail(other.to_string())),
    }
    if checkup.damage.is_empty() {
        prop_assert_eq!(kept, should);
    }
    Ok(())
}

#[test]
fn whatever_is_damaged_is_noticed() {
    let scratch = tempfile::tempdir().unwrap();
    let stores = [Prepared::new(false), Prepared::new(true)];
    let cases = std::env::var("KAJI_SALVAGE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(killed: bool, journal in prop::bool::weighted(0.25), harm in harm())| {
        let file = if journal { "store.redb.journal" } else { "store.redb" };
        damaged_files_show_and_nothing_wrong_is_served(&stores[usize::from(killed)], scratch.path(), file, &harm)?;
    });
}

#[test]
fn a_fork_is_as_its_source_was_and_the_two_go_their_ways() {
    let temp = tempfile::tempdir().unwrap();
    let (from, to) = (temp.path().join("from"), temp.path().join("to"));
    let source = DiskStore::open(&from, DiskOptions::default()).unwrap();
    block(fill(&source));
    // While the source is open.
    let forked = fork(&from, &to).unwrap();
    assert!(forked.bytes > 0);
    assert!(matches!(fork(&from, &to), Err(StoreError::Invalid(m)) if m.contains("already")));
    let second = DiskStore::open(&to, DiskOptions::default()).unwrap();
    block(async {
        let (before, revision) = (all(&source).await, source.revision().await.unwrap());
        assert_eq!(all(&second).await, before);
        assert_eq!(second.revision().await.unwrap(), revision);
        // History goes on: a watch of the source goes on in the fork.
        let mut watch = second.watch("/", revision).await.unwrap();
        assert_eq!(watch.next().await.unwrap().unwrap().revision, revision);
        second.txn(Txn::put("/fork", "1")).await.unwrap();
        source.txn(Txn::put("/source", "1")).await.unwrap();
        assert_eq!(all(&source).await.len(), before.len() + 1);
        assert!(second.range(Range::key("/source")).await.unwrap().kvs.is_empty());
    });
    drop((source, second));
    assert_eq!(serve(&from).unwrap().len(), serve(&to).unwrap().len());
}

#[test]
fn forks_are_of_one_moment_while_the_database_is_written() {
    // A small journal, so that commits of the database come all the time.
    forks_are_of_one_moment(4 << 10, Duration::from_millis(1), 10);
}

#[test]
fn forks_are_of_one_moment_while_the_journal_is_written() {
    forks_are_of_one_moment(DiskOptions::default().journal_bytes, Duration::from_micros(100), 60);
}

/// Ends the writer, also when an assertion fails.
struct Stop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Forks a store again and again while it is written to, with such pauses.
fn forks_are_of_one_moment(journal_bytes: usize, pause: Duration, rounds: usize) {
    // Where syncs take no time, the writer is in the middle of a commit most of the time.
    let memory = Path::new("/dev/shm");
    let temp = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let from = temp.path().join("from");
    let options = DiskOptions { journal_bytes, ..DiskOptions::default() };
    let source = DiskStore::open(&from, options).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block(async {
                let mut n = 0_u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    n += 1;
                    let value = format!("{n:0300}").into_bytes();
                    let put =
                        |key: &str| Op::Put { key: key.into(), value: value.clone().into(), lease: None };
                    let ops = vec![put("/a"), put("/b"), put(&format!("/log/{}", n % 50))];
                    source.txn(Txn { compare: vec![], ops }).await.unwrap();
                    std::thread::sleep(pause);
                }
            });
        });
        let _stop = Stop(&stop);
        let mut last = 0;
        for round in 0..rounds {
            let to = temp.path().join(format!("to-{round}"));
            let acknowledged = block(source.revision()).unwrap();
            fork(&from, &to).unwrap();
            let second = DiskStore::open(&to, DiskOptions::default()).unwrap();
            let (kvs, revision) = block(async { (all(&second).await, second.revision().await.unwrap()) });
            assert!(revision >= acknowledged.max(last), "{revision} after {acknowledged}");
            last = revision;
            let value = |key: &str| kvs.iter().find(|kv| &*kv.key == key).map(|kv| kv.value.clone());
            assert_eq!(value("/a"), value("/b"));
            drop(second);
            std::fs::remove_dir_all(&to).unwrap();
        }
    });
}

#[tokio::test]
async fn a_fork_in_memory_shares_nothing_that_changes() {
    let source = MemoryStore::new().unwrap();
    let lease = source.grant_lease(Duration::from_secs(3600)).await.unwrap();
    for i in 0..100 {
        let put = Op::Put { key: format!("/{i:02}"), value: "v".into(), lease: (i == 7).then_some(lease) };
        source.txn(Txn { compare: vec![], ops: vec![put] }).await.unwrap();
    }
    let second = source.fork(MemoryOptions::default()).await.unwrap();
    let before = all(&source).await;
    assert_eq!(all(&second).await, before);
    assert_eq!(second.revision().await, source.revision().await);
    second.revoke(lease).await.unwrap();
    second.txn(Txn::put("/50", "fork")).await.unwrap();
    assert_eq!(all(&source).await, before);
    source.txn(Txn::put("/60", "source")).await.unwrap();
    let there = second.range(Range::key("/60")).await.unwrap().kvs.remove(0);
    assert_eq!(there.value, "v");
    assert!(second.range(Range::key("/07")).await.unwrap().kvs.is_empty());
    source.keep_alive(lease).await.unwrap();
}

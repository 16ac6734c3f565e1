//! A scrub leaves nothing but current values, in the database and in the whole directory, also when the process is killed
//! at any moment of it.
use futures_util::StreamExt;
use kaji_store::disk::{DiskOptions, DiskStore, Fault};
use kaji_store::memory::MemoryStore;
use kaji_store::{Range, Store, StoreError, Txn};
use kaji_testing::process::TestProcess;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

const DIR: &str = "KAJI_STORE_SCRUB_DIR";
const ROUNDS: usize = 16;

/// Text that is nothing else's.
fn marker(n: u64) -> String {
    format!("MARKER-{n:06}-{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// What the files of a directory hold.
fn everything(dir: &Path) -> Vec<u8> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.flat_map(|file| std::fs::read(file).unwrap()).collect()
}

fn holds(all: &[u8], text: &str) -> bool {
    let first = text.as_bytes()[0];
    let mut from = 0;
    while let Some(at) = all[from..].iter().position(|b| *b == first) {
        if all[from + at..].starts_with(text.as_bytes()) {
            return true;
        }
        from += at + 1;
    }
    false
}

async fn values(store: &dyn Store) -> Vec<(String, String)> {
    let kvs = store.range(Range::prefix("/")).await.unwrap().kvs;
    kvs.iter().map(|kv| (kv.key.to_string(), String::from_utf8(kv.value.to_vec()).unwrap())).collect()
}

#[tokio::test]
async fn nothing_but_current_values_is_left() {
    let temp = tempfile::tempdir().unwrap();
    let store = DiskStore::open(temp.path(), DiskOptions::default()).unwrap();
    for n in 0..40 {
        store.txn(Txn::put(format!("/old/{n}"), marker(n))).await.unwrap();
        store.txn(Txn::put(format!("/kept/{n}"), marker(100 + n))).await.unwrap();
    }
    let mut watch = store.watch("/", 0).await.unwrap();
    for n in 0..40 {
        let replaced = store.range(Range::key(format!("/old/{n}"))).await.unwrap().kvs.remove(0);
        let txn = match n % 2 {
            0 => Txn::put(&*replaced.key, "replaced"),
            _ => Txn::delete(&*replaced.key, replaced.mod_revision),
        };
        store.txn(txn).await.unwrap();
    }
    let (before, revision) = (values(&store).await, store.revision().await.unwrap());
    assert!(
        (0..40).all(|n| holds(&everything(temp.path()), &marker(n))),
        "the test looks in the wrong place"
    );

    store.scrub().await.unwrap();
    let all = everything(temp.path());
    let left: Vec<u64> = (0..40).filter(|n| holds(&all, &marker(*n))).collect();
    assert_eq!(left, Vec::<u64>::new());
    assert!((0..40).all(|n| holds(&all, &marker(100 + n))));
    assert_eq!(values(&store).await, before);
    assert_eq!((store.compacted(), store.revision().await.unwrap()), (revision, revision));
    // History is over, as after any compaction; a watch that had queued all of it goes on.
    let compacted = StoreError::Compacted { compacted: revision };
    assert_eq!(store.watch("/", revision).await.err(), Some(compacted.clone()));
    assert_eq!(store.range(Range::key("/old/0").at(revision - 1)).await, Err(compacted));
    store.txn(Txn::put("/new", "1")).await.unwrap();
    let mut seen = 0;
    while seen < revision + 1 {
        seen = watch.next().await.unwrap().unwrap().revision;
    }

    drop(store);
    let store = DiskStore::open(temp.path(), DiskOptions::default()).unwrap();
    assert_eq!(values(&store).await.len(), before.len() + 1);
    assert_eq!(store.compacted(), revision);
    store.scrub().await.unwrap();
    store.scrub().await.unwrap();
}

#[tokio::test]
async fn shrinking_erases_the_replaced_file_if_configured() {
    for erase_replaced in [false, true] {
        let temp = tempfile::tempdir().unwrap();
        let (dir, witness) = (temp.path().join("store"), temp.path().join("witness"));
        // Without a journal, from which commits enter the file together: it would stay small.
        let store = DiskStore::open(&dir, DiskOptions { journal_bytes: 0, ..Default::default() }).unwrap();
        for n in 0..40 {
            let value = marker(n) + &"x".repeat(1 << 20);
            store.txn(Txn::put(format!("/old/{n}"), value)).await.unwrap();
            // Between the large ones, so that the file is not cut off behind the last one in use.
            store.txn(Txn::put(format!("/kept/{n}"), "kept")).await.unwrap();
        }
        for n in 0..40 {
            store.txn(Txn::put(format!("/old/{n}"), "replaced")).await.unwrap();
        }
        store.compact(store.revision().await.unwrap()).await.unwrap();
        for _ in 0..5 {
            store.tick().await.unwrap();
        }
        let before = values(&store).await;
        drop(store);
        // Shows what is in the file after its name has been removed.
        std::fs::hard_link(dir.join("store.redb"), &witness).unwrap();
        assert!(holds(&std::fs::read(&witness).unwrap(), "MARKER-"), "the file holds nothing to erase");

        let options = DiskOptions { erase_replaced, ..DiskOptions::default() };
        let store = DiskStore::open(&dir, options).unwrap();
        let (large, small) =
            (std::fs::metadata(&witness).unwrap(), std::fs::metadata(dir.join("store.redb")));
        assert!(small.unwrap().len() < large.len() / 4, "the file did not shrink");
        let former = std::fs::read(&witness).unwrap();
        assert_eq!(former.iter().all(|byte| *byte == 0), erase_replaced);
        assert_eq!(values(&store).await, before);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 4);
    }
}

#[tokio::test]
async fn reads_and_writes_go_on_beside_it() {
    let temp = tempfile::tempdir().unwrap();
    let store = DiskStore::open(temp.path(), DiskOptions { recent_bytes: 0, ..Default::default() }).unwrap();
    let write = async {
        for n in 0..200 {
            store.txn(Txn::put("/a", marker(n))).await.unwrap();
        }
    };
    let read = async {
        for _ in 0..200 {
            store.range(Range::prefix("/")).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let scrub = async {
        for _ in 0..8 {
            store.scrub().await.unwrap();
        }
    };
    futures_util::join!(write, read, scrub);
    assert_eq!(values(&store).await, [("/a".to_owned(), marker(199))]);
}

#[tokio::test]
async fn a_store_in_memory_gives_up_its_history() {
    let store = MemoryStore::new().unwrap();
    store.txn(Txn::put("/a", "1")).await.unwrap();
    store.txn(Txn::put("/a", "2")).await.unwrap();
    store.scrub().await.unwrap();
    assert_eq!(store.compacted(), 3);
    assert_eq!(values(&store).await, [("/a".to_owned(), "2".to_owned())]);
}

/// Fails one write, or one fsync, when so many more have been done.
#[derive(Debug, Default)]
struct Once {
    left: Mutex<Option<usize>>,
    /// Of fsyncs instead of writes.
    syncs: bool,
}

impl Once {
    fn count(&self) -> std::io::Result<()> {
        let mut left = self.left.lock().unwrap();
        *left = match *left {
            Some(0) => {
                *left = None;
                return Err(std::io::Error::from_raw_os_error(5));
            }
            left => left.map(|n| n - 1),
        };
        Ok(())
    }
}

impl Fault for Once {
    fn on_write(&self, _: u64, _: usize) -> std::io::Result<()> {
        if self.syncs { Ok(()) } else { self.count() }
    }

    fn on_sync(&self) -> std::io::Result<()> {
        if self.syncs { self.count() } else { Ok(()) }
    }
}

#[tokio::test]
async fn whichever_write_fails_nothing_is_lost_and_the_next_scrub_is_done() {
    let mut failures = 0;
    for syncs in [false, true] {
        for n in 0.. {
            let (temp, fault) = (tempfile::tempdir().unwrap(), Arc::new(Once { syncs, ..Once::default() }));
            let options = DiskOptions { fault: Some(fault.clone()), ..Default::default() };
            let store = DiskStore::open(temp.path(), options).unwrap();
            store.txn(Txn::put("/a", marker(n))).await.unwrap();
            store.txn(Txn::put("/a", "1")).await.unwrap();
            *fault.left.lock().unwrap() = Some(usize::try_from(n).unwrap());
            let outcome = store.scrub().await;
            let failed = fault.left.lock().unwrap().take().is_none();
            // The last write is to the former file, which is of no more use by then.
            assert!(failed || outcome.is_ok(), "{n} {outcome:?}");
            failures += usize::from(outcome.is_err());
            drop(store);
            let store = DiskStore::open(temp.path(), DiskOptions::default()).unwrap();
            assert_eq!(values(&store).await, [("/a".to_owned(), "1".to_owned())], "{n}");
            store.txn(Txn::put("/b", "1")).await.unwrap();
            store.scrub().await.unwrap();
            assert!(!holds(&everything(temp.path()), &marker(n)), "{n}");
            assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 4);
            if !failed {
                break;
            }
        }
    }
    assert!(failures > 4, "{failures}");
}

/// Not a test but the process that is killed; it runs only when the test below starts it.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let say = |line: String| std::io::stdout().write_all(line.as_bytes()).unwrap();
    say("\nopening\n".into());
    let store = DiskStore::open(dir, DiskOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let from = store.range(Range::prefix("/live/")).await.unwrap().kvs.len() as u64;
        for n in from.. {
            store.txn(Txn::put("/gone", marker(n))).await.unwrap();
            store.txn(Txn::put("/gone", "nothing")).await.unwrap();
            store.txn(Txn::put(format!("/live/{n:06}"), "x".repeat(3000))).await.unwrap();
            say(format!("written {n}\n"));
            store.scrub().await.unwrap();
            say(format!("scrubbed {n}\n"));
        }
    });
}

/// Runs the child until it has said so many lines, and kills it. What it said last, of writes and of scrubs.
fn run_and_kill(dir: &Path, lines: usize) -> (Option<u64>, Option<u64>) {
    let mut child = TestProcess::start("scrub::child", DIR, dir);
    child.skip_to("opening");
    let mut heard = vec![];
    for _ in 0..lines {
        heard.push(child.line().expect("the child stopped by itself"));
    }
    heard.extend(child.kill());
    let last = |what: &str| heard.iter().filter_map(|l| l.strip_prefix(what)?.trim().parse().ok()).max();
    (last("written "), last("scrubbed "))
}

#[test]
fn killed_at_any_moment_one_whole_file_is_left() {
    let temp = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(20_261_122);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut written, mut scrubbed) = (None, None);
    for _ in 0..ROUNDS {
        let (wrote, scrubs) = run_and_kill(temp.path(), random.random_range(1..8));
        (written, scrubbed) = (wrote.max(written), scrubs.max(scrubbed));
        let store = DiskStore::open(temp.path(), DiskOptions::default()).unwrap();
        let live = runtime.block_on(store.range(Range::prefix("/live/"))).unwrap().kvs;
        let expected = written.map_or(0, |n| n + 1);
        assert!((expected..=expected + 1).contains(&(live.len() as u64)), "{} of {expected}", live.len());
        assert!(live.iter().all(|kv| kv.value.len() == 3000));
        // The start has erased what a scrub that was cut off left behind.
        let names: Vec<_> = std::fs::read_dir(temp.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        let all = everything(temp.path());
        for n in 0..scrubbed.map_or(0, |n| n + 1) {
            assert!(!holds(&all, &marker(n)), "{n} of {scrubbed:?}");
        }
    }
    assert!(scrubbed > Some(5));
}

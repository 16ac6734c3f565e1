//! A process that writes from many tasks is killed again and again. Afterwards every acknowledged write is there, no
//! transaction is half there, and revisions have not gone back.
use futures_util::StreamExt;
use kaji_store::disk::{DiskOptions, DiskStore};
use kaji_store::{Compare, KeyValue, Op, Range, Revision, Store, StoreError, Txn, TxnOutcome};
use kaji_testing::process::TestProcess;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

const DIR: &str = "KAJI_STORE_CRASH_DIR";
const TASKS: usize = 16;
const ROUNDS: usize = 12;

fn options() -> DiskOptions {
    // Small enough for compaction to run during the test as well.
    DiskOptions { history_bytes: 512 << 10, recent_bytes: 64 << 10, ..Default::default() }
}

fn value(n: u64) -> Vec<u8> {
    let mut value = n.to_string().into_bytes();
    value.resize(20 + (n as usize * 37) % 700, b' ');
    value
}

fn number(kv: &KeyValue) -> u64 {
    std::str::from_utf8(&kv.value).unwrap().trim_end().parse().unwrap()
}

async fn get(store: &dyn Store, key: String) -> Option<KeyValue> {
    store.range(Range::key(key)).await.unwrap().kvs.pop()
}

/// Step `n` of a task: two keys that always agree, one more in its log, and one that comes and goes.
fn step(task: usize, n: u64) -> Txn {
    let put = |key: String| Op::Put { key, value: value(n).into(), lease: None };
    let flag = format!("/flag/{task}");
    Txn {
        compare: vec![Compare { key: format!("/log/{task}/{n}"), mod_revision: 0 }],
        ops: vec![
            put(format!("/pair/{task}/a")),
            put(format!("/log/{task}/{n}")),
            if n.is_multiple_of(2) { Op::Delete { key: flag } } else { put(flag) },
            put(format!("/pair/{task}/b")),
        ],
    }
}

/// Not a test but the process that is killed; it runs only when the test below starts it.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let say = |line: String| std::io::stdout().write_all(line.as_bytes()).unwrap();
    say("\nopening\n".into());
    let store = DiskStore::open(dir, options()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks = (0..TASKS).map(|task| {
            let store = &store;
            async move {
                let mut n = get(store, format!("/pair/{task}/a")).await.map_or(0, |kv| number(&kv));
                loop {
                    n += 1;
                    match store.txn(step(task, n)).await.unwrap() {
                        TxnOutcome::Committed { revision, .. } => say(format!("ack {task} {n} {revision}\n")),
                        conflict => panic!("task {task} at {n}: {conflict:?}"),
                    }
                }
            }
        });
        futures_util::future::join_all(tasks).await;
    });
}

/// What the killed processes acknowledged.
#[derive(Default)]
struct Acked {
    /// Task and step to revision.
    steps: BTreeMap<(usize, u64), Revision>,
    /// Per task the last step, and how many processes had been killed before it.
    last: BTreeMap<usize, (u64, u64)>,
    revision: Revision,
    killed: u64,
}

impl Acked {
    /// The last acknowledged step of a task, and how many may have been done since: one per killed process.
    fn last(&self, task: usize) -> (u64, u64) {
        let (last, killed) = self.last.get(&task).copied().unwrap_or_default();
        (last, self.killed - killed)
    }

    fn note(&mut self, line: &str) -> bool {
        let mut words = line.split(' ');
        if words.next() != Some("ack") {
            return false;
        }
        let mut next = || words.next()?.parse::<u64>().ok();
        let (Some(task), Some(n), Some(revision)) = (next(), next(), next()) else { return false };
        let task = task as usize;
        assert_eq!(self.steps.insert((task, n), revision), None, "step {n} of {task} was acknowledged twice");
        // None may have been lost, and the next step is one that was not acknowledged.
        let (last, unheard) = self.last(task);
        assert!((last + 1..=last + unheard + 1).contains(&n), "task {task} went from {last} to {n}");
        self.last.insert(task, (n, self.killed));
        self.revision = self.revision.max(revision);
        true
    }
}

/// Runs the child until it has acknowledged `acks` more steps, and kills it.
fn run_and_kill(dir: &Path, acks: usize, acked: &mut Acked) {
    let mut child = TestProcess::start("crash::child", DIR, dir);
    child.skip_to("opening");
    for _ in 0..acks {
        let line = child.line().expect("the child stopped by itself");
        assert!(acked.note(&line), "the child said {line:?}");
    }
    // What it said before it died counts; a last line may be cut off.
    for line in child.kill() {
        acked.note(&line);
    }
    acked.killed += 1;
}

async fn check(store: &DiskStore, acked: &Acked) {
    assert!(store.revision().await.unwrap() >= acked.revision, "revisions went back");
    for task in 0..TASKS {
        let a = get(store, format!("/pair/{task}/a")).await;
        let b = get(store, format!("/pair/{task}/b")).await;
        let n = a.as_ref().map_or(0, number);
        let (last, unheard) = acked.last(task);
        assert!((last..=last + unheard).contains(&n), "task {task} is at {n}, {last} was acknowledged");
        assert_eq!(b.as_ref().map_or(0, number), n, "task {task} is half done");
        assert_eq!(a.as_ref().map(|kv| kv.mod_revision), b.map(|kv| kv.mod_revision));
        assert_eq!(
            get(store, format!("/flag/{task}")).await.map(|kv| number(&kv)),
            (n % 2 == 1).then_some(n)
        );
        let log = store.range(Range::prefix(&format!("/log/{task}/"))).await.unwrap().kvs;
        assert_eq!(log.len() as u64, n);
        for kv in log {
            let step = number(&kv);
            assert_eq!(kv.value, value(step));
            if let Some(revision) = acked.steps.get(&(task, step)) {
                assert_eq!(kv.mod_revision, *revision, "step {step} of {task} moved");
            }
        }
    }
}

/// Goes on with a watch where the last one stopped; answers whether it could.
async fn resume(store: &DiskStore, seen: &mut Vec<(Revision, String)>, at: &mut Revision) -> bool {
    let current = store.revision().await.unwrap();
    let resumed = match store.watch("/log/", *at + 1).await {
        Ok(mut watch) => {
            while *at < current {
                let batch = watch.next().await.unwrap().unwrap();
                *at = batch.revision;
                seen.extend(batch.events.iter().map(|e| (e.kv.mod_revision, e.kv.key.to_string())));
            }
            true
        }
        Err(StoreError::Compacted { .. }) => {
            let listed = store.range(Range::prefix("/log/")).await.unwrap();
            *seen = listed.kvs.iter().map(|kv| (kv.mod_revision, kv.key.to_string())).collect();
            seen.sort();
            *at = listed.revision;
            false
        }
        Err(error) => panic!("{error}"),
    };
    let mut listed: Vec<_> = store.range(Range::prefix("/log/")).await.unwrap().kvs;
    listed.sort_by_key(|kv| kv.mod_revision);
    let listed: Vec<_> = listed.iter().map(|kv| (kv.mod_revision, kv.key.to_string())).collect();
    assert!(*seen == listed, "the watch and the list differ");
    resumed
}

#[test]
fn nothing_acknowledged_is_lost() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    let mut random = StdRng::seed_from_u64(20_260_101);
    let (mut acked, mut seen, mut at, mut resumed) = (Acked::default(), Vec::new(), 1, 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for round in 0..ROUNDS {
        // Some die while they open, before or after the first write.
        let acks = if round % 4 == 0 { random.random_range(0..3) } else { random.random_range(20..300) };
        run_and_kill(&dir, acks, &mut acked);
        if round % 3 == 2 {
            // The next child recovers by itself, and is killed on top of that.
            continue;
        }
        let store = DiskStore::open(&dir, options()).unwrap();
        runtime.block_on(async {
            check(&store, &acked).await;
            resumed += usize::from(resume(&store, &mut seen, &mut at).await);
        });
    }
    assert!(resumed > 0, "no watch could be resumed");
}

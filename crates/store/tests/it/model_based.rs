//! Random sequences of everything a store can do, on both backends and on the model, with restarts and tiny limits.

use crate::model::Model;
use futures_util::StreamExt;
use futures_util::future::join_all;
use kaji_store::disk::{DiskOptions, DiskStore};
use kaji_store::memory::{MemoryOptions, MemoryStore};
use kaji_store::{
    Compare, Event, LeaseId, ManualClock, Op, Range, Revision, Store, StoreError, Txn, WatchStream,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const START: u64 = 1_700_000_000_000;

/// A transaction with everything that depends on the moment still open.
#[derive(Clone, Debug)]
struct Draft {
    /// Key, and whether the compare is to be right, stale, or for absence.
    compare: Vec<(u8, u8)>,
    /// Key, value length or delete, lease.
    ops: Vec<(u8, Option<u16>, Option<u8>)>,
}

#[derive(Clone, Debug)]
enum Step {
    /// Issued at once, so that they share commits.
    Txns(Vec<Draft>),
    Range {
        start: u8,
        end: u8,
        limit: usize,
        back: Option<u64>,
    },
    Compact(u64),
    Grant(u64),
    KeepAlive(u8),
    Revoke(u8),
    Advance(u64),
    Watch(u64),
    Reopen,
}

fn draft() -> impl Strategy<Value = Draft> {
    let compare = prop::collection::vec((0..8u8, 0..8u8), 0..3);
    let op = (0..8u8, prop::option::weighted(0.7, 0..2000u16), prop::option::weighted(0.3, any::<u8>()));
    (compare, prop::collection::vec(op, 0..4)).prop_map(|(compare, ops)| Draft { compare, ops })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => prop::collection::vec(draft(), 1..12).prop_map(Step::Txns),
        4 => (0..9u8, 0..9u8, 0..4usize, prop::option::of(0..30u64))
            .prop_map(|(start, end, limit, back)| Step::Range { start, end, limit, back }),
        1 => (0..20u64).prop_map(Step::Compact),
        1 => (1..100u64).prop_map(Step::Grant),
        1 => any::<u8>().prop_map(Step::KeepAlive),
        1 => any::<u8>().prop_map(Step::Revoke),
        1 => (0..60u64).prop_map(Step::Advance),
        1 => (0..30u64).prop_map(Step::Watch),
        1 => Just(Step::Reopen),
    ]
}

fn key(i: u8) -> String {
    // Prefixes of each other, too.
    ["/a", "/a/b", "/a/c", "/a/c/d", "/b", "/b/x", "/b/y", "/c"]
        .get(i as usize)
        .copied()
        .unwrap_or("/d")
        .to_owned()
}

enum Backend {
    Memory(Arc<MemoryStore>),
    Disk(Arc<DiskStore>, tempfile::TempDir, DiskOptions),
}

impl Backend {
    fn store(&self) -> Arc<dyn Store> {
        match self {
            Backend::Memory(store) => store.clone(),
            Backend::Disk(store, ..) => store.clone(),
        }
    }

    async fn tick(&self) {
        match self {
            Backend::Memory(store) => store.tick().await.unwrap(),
            Backend::Disk(store, ..) => store.tick().await.unwrap(),
        }
    }
}

struct Run {
    backend: Backend,
    model: Model,
    clock: Arc<ManualClock>,
    /// A watch of everything, what it has delivered, and up to where.
    watch: WatchStream,
    seen: Vec<Event>,
    at: Revision,
}

impl Run {
    async fn new(backend: Backend, clock: Arc<ManualClock>) -> Run {
        let watch = backend.store().watch("/", 2).await.unwrap();
        Run { backend, model: Model::new(START), clock, watch, seen: Vec::new(), at: 1 }
    }

    fn lease(&self, pick: u8) -> LeaseId {
        // Sometimes one that does not exist.
        let count = self.model.leases.len() + 1;
        self.model.leases.keys().nth(pick as usize % count).copied().unwrap_or(LeaseId(1 << 40))
    }

    fn finish(&self, draft: &Draft) -> Txn {
        let latest =
            |k: &str| self.model.range(&Range::key(k)).unwrap().kvs.pop().map_or(0, |kv| kv.mod_revision);
        let compare = draft.compare.iter().map(|(k, right)| {
            let mod_revision = match right {
                0 => 0,
                1 => self.model.revision().saturating_sub(3),
                _ => latest(&key(*k)),
            };
            Compare { key: key(*k), mod_revision }
        });
        let ops = draft.ops.iter().map(|(k, put, lease)| match put {
            Some(len) => Op::Put {
                key: key(*k),
                value: vec![*len as u8; *len as usize].into(),
                lease: lease.map(|pick| self.lease(pick)),
            },
            None => Op::Delete { key: key(*k) },
        });
        Txn { compare: compare.collect(), ops: ops.collect() }
    }

    async fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let store = self.backend.store();
        match step {
            Step::Txns(drafts) => {
                let txns: Vec<_> = drafts.iter().map(|d| self.finish(d)).collect();
                let outcomes = join_all(txns.iter().map(|txn| store.txn(txn.clone()))).await;
                for (txn, outcome) in txns.iter().zip(outcomes) {
                    prop_assert_eq!(outcome, self.model.txn(txn));
                }
            }
            Step::Range { start, end, limit, back } => {
                let revision = back.map_or(0, |back| (self.model.revision() + 2).saturating_sub(back));
                let end = if start == end { String::new() } else { key(*end) };
                let range = Range { start: key(*start), end, limit: *limit, revision, ..Range::default() };
                prop_assert_eq!(store.range(range.clone()).await, self.model.range(&range));
            }
            Step::Compact(back) => {
                let to = self.model.revision().saturating_sub(*back);
                // The watch would lose what it has not read yet.
                self.read_watch(self.model.revision()).await?;
                prop_assert_eq!(store.compact(to).await, Ok(()));
                self.model.compact(to);
            }
            Step::Grant(ttl) => {
                let lease = store.grant_lease(Duration::from_secs(*ttl)).await;
                prop_assert_eq!(lease, Ok(self.model.grant(ttl * 1000)));
            }
            Step::KeepAlive(pick) => {
                let lease = self.lease(*pick);
                prop_assert_eq!(store.keep_alive(lease).await.is_ok(), self.model.keep_alive(lease));
            }
            Step::Revoke(pick) => {
                let lease = self.lease(*pick);
                prop_assert_eq!(store.revoke(lease).await.is_ok(), self.model.revoke(lease));
            }
            Step::Advance(seconds) => {
                self.clock.advance(Duration::from_secs(*seconds));
                self.backend.tick().await;
                self.model.now += seconds * 1000;
                self.model.expire();
            }
            Step::Watch(back) => self.check_watch(self.model.revision().saturating_sub(*back) + 1).await?,
            Step::Reopen => {
                drop(store);
                self.reopen().await?;
            }
        }
        let store = self.backend.store();
        prop_assert_eq!(store.compacted(), self.model.compacted);
        prop_assert_eq!(store.revision().await, Ok(self.model.revision()));
        Ok(())
    }

    async fn reopen(&mut self) -> Result<(), TestCaseError> {
        // The dropped store must release the directory by itself, whether it was closed or not.
        let (at, revision) = (self.at, self.model.revision());
        if let Backend::Disk(store, dir, options) = &mut self.backend {
            if at.is_multiple_of(2) {
                store.close().await;
            }
            let placeholder = tempfile::tempdir().unwrap();
            *store = Arc::new(DiskStore::open(placeholder.path(), options.clone()).unwrap());
            *store = Arc::new(DiskStore::open(dir.path(), options.clone()).unwrap());
        }
        if let Backend::Disk(store, ..) = &self.backend {
            if at < self.model.compacted {
                self.at = revision;
                self.seen = self.model.events.clone();
            }
            self.watch = store.watch("/", self.at + 1).await.unwrap();
        }
        Ok(())
    }

    async fn read_watch(&mut self, to: Revision) -> Result<(), TestCaseError> {
        while self.at < to {
            let batch = self.watch.next().await.unwrap();
            let batch = batch.map_err(|e| TestCaseError::fail(format!("watch at {}: {e}", self.at)))?;
            prop_assert!(batch.revision > self.at);
            self.at = batch.revision;
            self.seen.extend(batch.events);
        }
        prop_assert_eq!(&self.seen, &self.model.events);
        Ok(())
    }

    /// A watch from `from` of one prefix delivers exactly what the model did since.
    async fn check_watch(&self, from: Revision) -> Result<(), TestCaseError> {
        let watch = self.backend.store().watch("/a", from).await;
        if from <= self.model.compacted {
            prop_assert_eq!(watch.err(), Some(StoreError::Compacted { compacted: self.model.compacted }));
            return Ok(());
        }
        let (mut watch, mut at, mut seen) = (watch.unwrap(), from - 1, Vec::new());
        while at < self.model.revision() {
            let batch = watch.next().await.unwrap().unwrap();
            at = batch.revision;
            seen.extend(batch.events);
        }
        let expected =
            self.model.events.iter().filter(|e| e.kv.mod_revision >= from && e.kv.key.starts_with("/a"));
        prop_assert_eq!(seen, expected.cloned().collect::<Vec<_>>());
        Ok(())
    }

    async fn all(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for step in steps {
            self.step(step).await?;
        }
        self.read_watch(self.model.revision()).await?;
        self.check_watch(self.model.compacted + 1).await
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// History must not end by itself: the model knows nothing of age.
const FOR_EVER: Duration = Duration::from_secs(1 << 40);

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_the_model(steps in prop::collection::vec(step(), 1..60), recent in prop_oneof![Just(0), Just(1 << 20)]) {
        let clock = Arc::new(ManualClock::new(START));
        let options = MemoryOptions {
            clock: clock.clone(), history_age: FOR_EVER, recent_bytes: recent, watch_queue_bytes: 4096, ..Default::default()
        };
        runtime().block_on(async {
            let backend = Backend::Memory(Arc::new(MemoryStore::with_options(options).unwrap()));
            Run::new(backend, clock).await.all(&steps).await
        })?;
    }

    #[test]
    fn disk_is_the_model(steps in prop::collection::vec(step(), 1..40), recent in prop_oneof![Just(0), Just(1 << 20)]) {
        let clock = Arc::new(ManualClock::new(START));
        let options = DiskOptions {
            clock: clock.clone(), history_age: FOR_EVER, recent_bytes: recent, watch_queue_bytes: 4096, ..Default::default()
        };
        runtime().block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let store = Arc::new(DiskStore::open(dir.path(), options.clone()).unwrap());
            Run::new(Backend::Disk(store, dir, options), clock).await.all(&steps).await
        })?;
    }
}

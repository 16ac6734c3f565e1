//! The store: transactions, ranges, leases and compaction as calls of etcd.
//!
//! Invariants:
//! - `known` is at least the revision of every answer that this process had: what progress is requested up to.
//! - `compacted` is a revision that etcd is, or is about to be, compacted to; another server may have gone further, which
//!   etcd's answers tell.

mod current;
mod lease;
mod range;
mod txn;
mod watch;

use crate::client::{Client, Repeat};
use crate::compactor::{self, Compactor};
use crate::error::Failure;
use crate::messages::{self, RangeRequest, RangeResponse, ResponseHeader, StatusRequest, StatusResponse};
use crate::{Endpoints, KeyMap, Observer, Unobserved};
use current::Callers;
use kaji_store::{
    BoxFuture, KeyValue, LeaseId, Op, Range, RangeResult, Revision, Store, StoreError, Txn, TxnOutcome,
    WatchStream,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, watch as notices};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

/// Watches at a time. Their windows fit into that of their connection.
const WATCHES: usize = 512;
/// How often the size of the database is looked at.
const MEASURE: Duration = Duration::from_secs(30);
/// Waits between attempts to reach etcd at the start.
const START_PAUSE: Duration = Duration::from_millis(250);

/// What a store is opened with.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Where etcd is.
    pub endpoints: Endpoints,
    /// Where keys are in it.
    pub keys: KeyMap,
    /// How often history older than this is given up; `None` leaves that to others.
    pub compaction: Option<Duration>,
    /// How long opening waits for etcd.
    pub start_timeout: Duration,
    /// What takes note of requests.
    pub observer: Arc<dyn Observer>,
}

impl EtcdOptions {
    /// Upstream's defaults: compaction every five minutes.
    #[must_use]
    pub fn new(endpoints: Endpoints, keys: KeyMap) -> EtcdOptions {
        let (compaction, start_timeout) = (Some(Duration::from_secs(300)), Duration::from_secs(20));
        EtcdOptions { endpoints, keys, compaction, start_timeout, observer: Arc::new(Unobserved) }
    }
}

/// What calls, watches and the compaction have in common.
struct Inner {
    client: Client,
    keys: KeyMap,
    observer: Arc<dyn Observer>,
    known: AtomicU64,
    compacted: AtomicU64,
    /// The revision up to which progress is requested.
    wanted: notices::Sender<Revision>,
    closed: notices::Sender<bool>,
    watches: Arc<Semaphore>,
    /// Of the current revision.
    callers: Arc<Callers>,
}

/// A store on etcd.
pub struct EtcdStore {
    inner: Arc<Inner>,
}

impl EtcdStore {
    /// Opens the store, once etcd can be reached.
    ///
    /// # Errors
    /// When it cannot within the configured time.
    pub async fn open(options: EtcdOptions) -> Result<EtcdStore, StoreError> {
        let inner = Arc::new(Inner {
            client: Client::new(options.endpoints),
            keys: options.keys,
            observer: options.observer,
            known: AtomicU64::new(0),
            compacted: AtomicU64::new(0),
            wanted: notices::channel(0).0,
            closed: notices::channel(false).0,
            watches: Arc::new(Semaphore::new(WATCHES)),
            callers: Arc::default(),
        });
        let started = Instant::now();
        loop {
            match inner.learn().await {
                Ok(()) => break,
                Err(error) if started.elapsed() + START_PAUSE > options.start_timeout => return Err(error),
                Err(error) => tracing::warn!(%error, "etcd does not answer yet"),
            }
            sleep(START_PAUSE).await;
        }
        tokio::spawn(measure_regularly(inner.clone()));
        if let Some(every) = options.compaction {
            tokio::spawn(compact_regularly(inner.clone(), every));
        }
        Ok(EtcdStore { inner })
    }
}

/// Reports the size of the database until the store is closed.
async fn measure_regularly(inner: Arc<Inner>) {
    let mut closed = inner.closed.subscribe();
    let mut rounds = tokio::time::interval(MEASURE);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => return,
            _ = rounds.tick() => {}
        }
        let method = "/etcdserverpb.Maintenance/Status";
        let answer: Result<StatusResponse, _> =
            inner.client.call(method, StatusRequest {}, Repeat::Never).await;
        match answer {
            Ok(status) => inner.observer.database(&inner.client.endpoint().await, revision(status.db_size)),
            // Other requests report an etcd that is away.
            Err(error) => tracing::debug!(%error, "the size of etcd's database is not known"),
        }
    }
}

/// Compacts until the store is closed.
async fn compact_regularly(inner: Arc<Inner>, every: Duration) {
    let mut closed = inner.closed.subscribe();
    let mut rounds = interval_at(Instant::now() + every, every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut compactor = Compactor::default();
    loop {
        tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => return,
            _ = rounds.tick() => {}
        }
        match compactor.round(&inner.client).await {
            Ok(Some(revision)) => inner.note_compacted(revision),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "etcd was not compacted"),
        }
    }
}

impl Inner {
    /// Fails after the store was closed.
    fn check_open(&self) -> Result<(), StoreError> {
        if *self.closed.borrow() { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Notes and answers the revision of an answer.
    fn header(&self, header: Option<ResponseHeader>) -> Result<Revision, StoreError> {
        let header = header.ok_or_else(|| crate::error::malformed("header"))?;
        let revision = revision(header.revision);
        let before = self.known.fetch_max(revision, Ordering::AcqRel);
        if revision > before {
            self.observer.revision(revision);
        }
        Ok(revision)
    }

    fn note_compacted(&self, revision: Revision) {
        self.compacted.fetch_max(revision, Ordering::AcqRel);
    }

    fn compacted(&self) -> Revision {
        self.compacted.load(Ordering::Acquire)
    }

    /// What etcd has been compacted to, and whether it answers at all.
    async fn learn(&self) -> Result<(), StoreError> {
        self.read_revision().await?;
        match self.read_at(1).await {
            Err(Failure::Compacted) => self.read_compacted(1).await.map(drop),
            Err(failure) => Err(self.store_error(failure, 1).await),
            Ok(()) => Ok(()),
        }
    }

    /// Whether a revision can still be read.
    async fn read_at(&self, revision: Revision) -> Result<(), Failure> {
        let request = RangeRequest {
            key: self.keys.health(),
            revision: signed(revision),
            count_only: true,
            ..RangeRequest::default()
        };
        let answer: RangeResponse = self.client.call("/etcdserverpb.KV/Range", request, Repeat::Safe).await?;
        self.header(answer.header)?;
        Ok(())
    }

    /// The current revision: a read that etcd agrees about.
    async fn read_revision(&self) -> Result<Revision, StoreError> {
        let request = RangeRequest { key: self.keys.health(), count_only: true, ..RangeRequest::default() };
        let answer: Result<RangeResponse, _> =
            self.client.call("/etcdserverpb.KV/Range", request, Repeat::Safe).await;
        match answer.map_err(Failure::from) {
            Ok(answer) => self.header(answer.header),
            Err(failure) => Err(plain(failure)),
        }
    }

    /// The error for a request about a revision.
    async fn store_error(&self, failure: Failure, revision: Revision) -> StoreError {
        match failure {
            Failure::Compacted if self.compacted() > revision => {
                StoreError::Compacted { compacted: self.compacted() }
            }
            Failure::Compacted => match self.read_compacted(revision).await {
                Ok(compacted) => StoreError::Compacted { compacted },
                Err(error) => error,
            },
            Failure::FutureRevision => match self.read_revision().await {
                Ok(current) => StoreError::FutureRevision { current },
                Err(error) => error,
            },
            other => plain(other),
        }
    }

    /// One of etcd's versions of a key; `None` for a key that is no resource's.
    fn kv(&self, kv: messages::KeyValue) -> Option<KeyValue> {
        Some(KeyValue {
            key: self.keys.name(&kv.key)?.into(),
            value: kv.value,
            create_revision: revision(kv.create_revision),
            mod_revision: revision(kv.mod_revision),
            version: revision(kv.version),
            lease: (kv.lease != 0).then_some(LeaseId(kv.lease)),
        })
    }
}

/// etcd's numbers are signed, and never negative.
fn revision(number: i64) -> Revision {
    Revision::try_from(number).unwrap_or(0)
}

fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// A failure that is not about a revision.
fn plain(failure: Failure) -> StoreError {
    match failure {
        Failure::Store(error) => error,
        other => StoreError::Unavailable(format!("etcd refused the request: {other:?}")),
    }
}

/// What a transaction is in upstream's metrics.
fn operation(txn: &Txn) -> &'static str {
    match &txn.ops[..] {
        [Op::Put { .. }] if txn.compare.first().is_some_and(|compare| compare.mod_revision == 0) => "create",
        [Op::Put { .. }] => "update",
        [Op::Delete { .. }] => "delete",
        _ => "txn",
    }
}

fn first_key(txn: &Txn) -> String {
    txn.ops.first().map(|op| op.key().to_owned()).unwrap_or_default()
}

impl Store for EtcdStore {
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
        Box::pin(async move {
            let (operation, key, started) = (operation(&txn), first_key(&txn), Instant::now());
            let outcome = self.inner.txn(txn).await;
            self.inner.observer.request(operation, &key, started.elapsed(), outcome.is_err());
            outcome
        })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, StoreError>> {
        Box::pin(async move {
            let operation = if range.end.is_empty() { "get" } else { "list" };
            let (key, started) = (range.start.clone(), Instant::now());
            let outcome = self.inner.range(range).await;
            self.inner.observer.request(operation, &key, started.elapsed(), outcome.is_err());
            outcome
        })
    }

    fn watch(&self, prefix: &str, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>> {
        let (inner, prefix) = (self.inner.clone(), prefix.to_owned());
        Box::pin(watch::watch(inner, prefix, from))
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(self.inner.current())
    }

    fn current_revision_hint(&self) -> Option<Revision> {
        None
    }

    fn request_progress(&self) {
        let known = self.inner.known.load(Ordering::Acquire);
        self.inner.wanted.send_if_modified(|wanted| {
            let more = known > *wanted;
            *wanted = known.max(*wanted);
            more
        });
    }

    fn grant_lease(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        Box::pin(self.inner.grant_lease(ttl))
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(self.inner.keep_alive(lease))
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.inner.revoke(lease))
    }

    fn compact(&self, to: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.inner.check_open()?;
            if to <= self.inner.compacted() {
                return Ok(());
            }
            match compactor::compact(&self.inner.client, signed(to)).await {
                Ok(()) => self.inner.note_compacted(to),
                Err(failure) => return Err(self.inner.store_error(failure, to).await),
            }
            Ok(())
        })
    }

    fn compacted(&self) -> Revision {
        self.inner.compacted()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.closed.send_replace(true);
        Box::pin(std::future::ready(()))
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.inner.closed.send_replace(true);
    }
}

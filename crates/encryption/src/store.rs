//! The encrypting decorator of a store: values are encrypted on write and decrypted on read. Everything else is the inner
//! store's.
//!
//! Invariants: revisions, keys, leases and the order of events are the inner store's. A watch that meets a value it cannot read
//! says so in the event's place, and goes on; it never leaves an event out.

use crate::{Transformers, kms::NotOpened, replaced::Replaced, transform::Opened, transform::TransformError};
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
    stream::unfold,
};
use kaji_store::{
    Compare, Event, EventKind, KeyValue, Op, Range, RangeResult, Revision, Store, StoreError, Txn,
    TxnOutcome, UnreadableChange, WatchBatch, WatchStream,
};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{sync::RwLock, time::Instant};

/// How often a value may turn out to need its key decrypted: once, unless other keys push it out meanwhile.
const UNLOCKS: usize = 4;

/// Values that are read at once when a whole store is looked through.
const PAGE: usize = 500;

/// How long the events of a watch wait for no plugin after one has failed: all resources come by one watch.
const UNHEARD: Duration = Duration::from_secs(10);

/// Former configurations that are kept to read with.
const FORMER: usize = 8;

/// The configuration in force, which may be replaced while stores use it.
#[derive(Clone)]
pub struct InForce(Arc<Inner>);

struct Inner {
    readers: ArcSwap<Readers>,
    /// Held shared from encrypting values until they are written, and alone while the configuration changes: whatever was
    /// written with the one before is seen by the look at what the next one reads.
    writing: RwLock<()>,
    /// What was written anew or removed.
    replaced: Replaced,
}

/// What values are read with.
struct Readers {
    /// The configuration in force; it alone writes.
    now: Arc<Transformers>,
    /// Those before, the latest first: the watch may still have to tell of values that are gone from the store.
    before: Vec<Former>,
}

/// A configuration that was in force.
#[derive(Clone)]
struct Former {
    transformers: Arc<Transformers>,
    /// The revision at which it was replaced. What came later was written, and can be read, without it.
    until: Revision,
}

impl<T: Into<Arc<Transformers>>> From<T> for InForce {
    fn from(transformers: T) -> Self {
        let readers = Readers { now: transformers.into(), before: vec![] };
        let (readers, writing) = (ArcSwap::from_pointee(readers), RwLock::default());
        InForce(Arc::new(Inner { readers, writing, replaced: Replaced::default() }))
    }
}

impl InForce {
    /// That of now.
    pub fn get(&self) -> Arc<Transformers> {
        self.readers().now.clone()
    }

    /// How many former configurations are still read with.
    pub fn former(&self) -> usize {
        self.readers().before.len()
    }

    fn readers(&self) -> Arc<Readers> {
        self.0.readers.load_full()
    }

    /// Values that were stored otherwise than they would be now, and are no longer current. The store's files may hold them
    /// still: see [`Store::scrub`].
    pub fn replaced(&self) -> &Replaced {
        &self.0.replaced
    }

    /// Whether any value with this prefix is stored otherwise than it would be now. `inner` is the store that holds
    /// encrypted values.
    ///
    /// # Errors
    /// For a value that cannot be read.
    pub async fn stale_below(&self, inner: &dyn Store, prefix: &str) -> Result<bool, StoreError> {
        let readers = self.readers();
        let mut range = Range::prefix(prefix).limit(PAGE);
        loop {
            let page = inner.range(range.clone()).await?;
            for kv in page.kvs.iter().filter(|kv| readers.now.covers(&kv.key)) {
                if readers.opened(kv).await?.stale {
                    return Ok(true);
                }
            }
            match page.kvs.last() {
                Some(last) if page.kvs.len() == PAGE => range.start = format!("{}\0", last.key),
                _ => return Ok(false),
            }
        }
    }

    /// Puts another one in force, if it reads whatever `inner` holds: a value that cannot be read any more would end every
    /// watch that meets it. Nothing is written with it before that is certain, so there is never a way back to go. Writes
    /// go on while the whole store is looked at, and so does what was written during that; they wait only while the rest is.
    ///
    /// # Errors
    /// For the first value that it does not read; then nothing has changed.
    pub async fn replace(&self, new: Arc<Transformers>, inner: &dyn Store) -> Result<(), StoreError> {
        // Followed from the beginning: looking at all may take longer than the store remembers what changed.
        let mut changes = inner.watch("/", 0).await?;
        let mut seen = new.reads_beside(inner, &mut changes).await?;
        new.reads_changes(inner, &mut changes, &mut seen).await?;
        let _nothing_is_written = self.0.writing.write().await;
        new.reads_changes(inner, &mut changes, &mut seen).await?;
        let readers = self.readers();
        // It is still read from, which needs no health of its plugins.
        readers.now.unfollow();
        let mut before = vec![Former { transformers: readers.now.clone(), until: seen }];
        // Compacted revisions have no watchers.
        let compacted = inner.compacted();
        before.extend(readers.before.iter().filter(|former| former.until > compacted).cloned());
        before.truncate(FORMER);
        self.0.readers.store(Arc::new(Readers { now: new, before }));
        Ok(())
    }
}

impl Readers {
    /// The value in the clear; stale where only a configuration before reads it.
    async fn opened(&self, kv: &KeyValue) -> Result<Opened, StoreError> {
        self.opened_by(kv, Unlock::Wait).await
    }

    async fn opened_by(&self, kv: &KeyValue, unlock: Unlock) -> Result<Opened, StoreError> {
        let error = match self.now.opened(kv, unlock).await {
            Ok(opened) => return Ok(opened),
            Err(error) => error,
        };
        for former in &self.before {
            if let Ok(opened) = former.transformers.opened(kv, unlock).await {
                return Ok(Opened { stale: true, ..opened });
            }
        }
        Err(error)
    }

    async fn open_kv(&self, kv: &mut KeyValue, unlock: Unlock) -> Result<(), StoreError> {
        kv.value = self.opened_by(kv, unlock).await?.value;
        Ok(())
    }

    async fn open_all(&self, kvs: &mut [Option<KeyValue>]) -> Result<(), StoreError> {
        for kv in kvs.iter_mut().flatten() {
            self.open_kv(kv, Unlock::Wait).await?;
        }
        Ok(())
    }

    async fn open_event(&self, event: &mut Event, unlock: Unlock) -> Result<(), StoreError> {
        for kv in event.values_mut() {
            self.open_kv(kv, unlock).await?;
        }
        Ok(())
    }

    /// `failed` is when a plugin has failed last.
    async fn open_batch(&self, batch: WatchBatch, failed: &mut Option<Instant>) -> WatchBatch {
        let WatchBatch { revision, mut events, mut unreadable } = batch;
        let mut at = 0;
        while let Some(event) = events.get_mut(at) {
            let unheard = failed.is_some_and(|failed| failed.elapsed() < UNHEARD);
            let unlock = if unheard { Unlock::Fail } else { Unlock::Wait };
            match self.open_event(event, unlock).await {
                Ok(()) => at += 1,
                Err(error) => {
                    if matches!(error, StoreError::Encryption(_)) && !unheard {
                        *failed = Some(Instant::now());
                    }
                    unreadable.push(UnreadableChange { key: events.remove(at).kv.key, error });
                }
            }
        }
        WatchBatch { revision, events, unreadable }
    }
}

/// A store around a store: the inner one sees encrypted values.
pub struct EncryptedStore {
    inner: Arc<dyn Store>,
    transformers: InForce,
}

impl EncryptedStore {
    /// Puts a configuration around a store, which may hold values already.
    pub fn new(inner: Arc<dyn Store>, transformers: impl Into<InForce>) -> Self {
        EncryptedStore { inner, transformers: transformers.into() }
    }

    /// Writes every value anew that is stored otherwise than it would be now. How many those were.
    ///
    /// # Errors
    /// For a value that cannot be read or written.
    pub async fn rewrite(&self) -> Result<usize, StoreError> {
        let readers = self.transformers.readers();
        let mut range = Range::prefix("/").limit(PAGE);
        let mut written = 0;
        loop {
            let page = self.inner.range(range.clone()).await?;
            for kv in page.kvs.iter().filter(|kv| readers.now.covers(&kv.key)) {
                let opened = readers.opened(kv).await?;
                if !opened.stale {
                    continue;
                }
                let key = kv.key.to_string();
                let compare = vec![Compare { key: key.clone(), mod_revision: kv.mod_revision }];
                let ops = vec![Op::Put { key, value: opened.value, lease: kv.lease }];
                // What another write was faster with is stored as it would be now.
                if let TxnOutcome::Committed { .. } = self.txn(Txn { compare, ops }).await? {
                    written += 1;
                }
            }
            match page.kvs.last() {
                Some(last) if page.kvs.len() == PAGE => range.start = format!("{}\0", last.key),
                _ => return Ok(written),
            }
        }
    }
}

/// What becomes of a value with a key that a plugin has to decrypt first.
#[derive(Clone, Copy)]
enum Unlock {
    /// The plugin is waited for.
    Wait,
    /// It is not.
    Fail,
}

fn unreadable(key: &str, error: &TransformError) -> String {
    format!("unable to transform key {key:?}: {error}")
}

impl Transformers {
    /// The value in the clear. Values with a known key, which are nearly all, take no turn.
    async fn opened(&self, kv: &KeyValue, unlock: Unlock) -> Result<Opened, StoreError> {
        for _ in 0..UNLOCKS {
            match self.open(&kv.key, &kv.value) {
                Ok(opened) => return Ok(opened),
                Err(NotOpened::Failed(error)) => {
                    return Err(StoreError::Corrupt(unreadable(&kv.key, &error)));
                }
                Err(NotOpened::Locked(_)) if matches!(unlock, Unlock::Fail) => {
                    let error =
                        TransformError::new("its key is not known, and the KMS plugin failed a moment ago");
                    return Err(StoreError::Encryption(unreadable(&kv.key, &error)));
                }
                Err(NotOpened::Locked(locked)) => {
                    let prefix = locked.prefix().to_owned();
                    let unlocked = locked.unlock().await;
                    unlocked.map_err(|e| {
                        self.not_unlocked(&kv.key, &prefix, &e);
                        StoreError::Encryption(unreadable(&kv.key, &e))
                    })?;
                }
            }
        }
        let error = TransformError::new("its key is forgotten as soon as it is known");
        Err(StoreError::Encryption(unreadable(&kv.key, &error)))
    }

    /// Whether everything that a store holds can be read with this. Answers with a revision up to which that is so.
    async fn reads(&self, inner: &dyn Store) -> Result<Revision, StoreError> {
        let mut range = Range::prefix("/").limit(PAGE);
        let mut looked_at = None;
        loop {
            let page = inner.range(range.clone()).await?;
            for kv in &page.kvs {
                self.opened(kv, Unlock::Wait).await?;
            }
            // Of the first page: what is written between two pages may be in either.
            let seen = *looked_at.get_or_insert(page.revision);
            match page.kvs.last() {
                Some(last) if page.kvs.len() == PAGE => range.start = format!("{}\0", last.key),
                _ => return Ok(seen),
            }
        }
    }

    /// [`Transformers::reads`], while changes are looked at as they come.
    async fn reads_beside(
        &self,
        inner: &dyn Store,
        changes: &mut WatchStream,
    ) -> Result<Revision, StoreError> {
        let mut all = pin!(self.reads(inner));
        let mut changed = 0;
        loop {
            tokio::select! {
                biased;
                seen = &mut all => return Ok(seen?.max(changed)),
                batch = changes.next() => changed = self.reads_batch(inner, batch).await?,
            }
        }
    }

    /// Whether what the changes up to now have written, as far as it is still there, can be read with this.
    async fn reads_changes(
        &self,
        inner: &dyn Store,
        changes: &mut WatchStream,
        seen: &mut Revision,
    ) -> Result<(), StoreError> {
        let now = inner.revision().await?;
        inner.request_progress();
        while *seen < now {
            *seen = (*seen).max(self.reads_batch(inner, changes.next().await).await?);
        }
        Ok(())
    }

    /// Whether what these changes have written, as far as it is still there, can be read with this; up to which revision.
    async fn reads_batch(
        &self,
        inner: &dyn Store,
        batch: Option<Result<WatchBatch, StoreError>>,
    ) -> Result<Revision, StoreError> {
        let batch = batch.unwrap_or(Err(StoreError::Closed))?.all_readable()?;
        for event in batch.events.iter().filter(|event| event.kind == EventKind::Put) {
            let Err(error) = self.opened(&event.kv, Unlock::Wait).await else { continue };
            let kept = inner.range(Range::key(&*event.kv.key)).await?;
            if kept.kvs.first().is_some_and(|kv| kv.mod_revision == event.kv.mod_revision) {
                return Err(error);
            }
        }
        Ok(batch.revision)
    }

    fn seal_op(&self, op: &mut Op) -> Result<(), StoreError> {
        let Op::Put { key, value, .. } = op else { return Ok(()) };
        let sealed: Option<Bytes> =
            self.seal(key, value).map_err(|e| StoreError::Encryption(e.to_string()))?;
        if let Some(sealed) = sealed {
            *value = sealed;
        }
        Ok(())
    }
}

impl Store for EncryptedStore {
    fn txn(&self, mut txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
        async move {
            let writing = self.transformers.0.writing.read().await;
            let transformers = self.transformers.get();
            txn.ops.iter_mut().try_for_each(|op| transformers.seal_op(op))?;
            let mut outcome = self.inner.txn(txn).await?;
            drop(writing);
            // As of now: what was there may have been written by a newer configuration.
            let readers = self.transformers.readers();
            match &mut outcome {
                TxnOutcome::Committed { previous, .. } => {
                    for kv in previous.iter_mut().flatten() {
                        let opened = readers.opened(kv).await?;
                        kv.value = opened.value;
                        if opened.stale && readers.now.covers(&kv.key) {
                            self.transformers.0.replaced.note(&kv.key);
                        }
                    }
                }
                TxnOutcome::Conflict { current, .. } => readers.open_all(current).await?,
            }
            Ok(outcome)
        }
        .boxed()
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, StoreError>> {
        async move {
            let mut result = self.inner.range(range).await?;
            let readers = self.transformers.readers();
            for kv in &mut result.kvs {
                readers.open_kv(kv, Unlock::Wait).await?;
            }
            Ok(result)
        }
        .boxed()
    }

    fn watch(&self, prefix: &str, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>> {
        let started = self.inner.watch(prefix, from);
        async move {
            let transformers = self.transformers.clone();
            let state = (started.await?, transformers, None);
            let clear = unfold(state, |(mut sealed, transformers, mut failed)| async move {
                let item = match sealed.next().await? {
                    Ok(batch) => Ok(transformers.readers().open_batch(batch, &mut failed).await),
                    Err(error) => Err(error),
                };
                Some((item, (sealed, transformers, failed)))
            });
            Ok(clear.boxed())
        }
        .boxed()
    }

    fn stale(&self, key: &str) -> BoxFuture<'_, Result<bool, StoreError>> {
        let readers = self.transformers.readers();
        if !readers.now.covers(key) {
            return ready(Ok(false)).boxed();
        }
        let range = Range::key(key);
        async move {
            let result = self.inner.range(range).await?;
            let Some(kv) = result.kvs.first() else { return Ok(false) };
            Ok(readers.opened(kv).await?.stale)
        }
        .boxed()
    }

    kaji_store::delegate_store!(inner: keys, remove_unread, revision, current_revision_hint, write_failure, request_progress);
    kaji_store::delegate_store!(inner: grant_lease, keep_alive, revoke, compact, scrub, compacted, close);
}

//! The revision machinery that the memory and the disk backend share: everything but keeping the log.
//!
//! One writer per store (see [`writer`]), on a thread of its own or, in a simulation, on the callers' ([`Drive`]); reads run on
//! the caller's side against the in-memory index and a snapshot of the log.
//!
//! Invariant: the index is never ahead of the log, and the watches are never ahead of the index.

pub(crate) mod hub;
pub(crate) mod index;
pub(crate) mod lease;
pub(crate) mod log;
mod plan;
mod queue;
mod watch;
pub(crate) mod writer;

use crate::{
    Clock, KeyValue, LeaseId, Range, RangeResult, Revision, Store, StoreError, Txn, TxnOutcome, WatchStream,
};
use futures_util::future::BoxFuture;
use hub::{Hub, HubLimits};
use index::{Index, Version};
use log::{Log, LogSnapshot, Reader, read_key_value};
use queue::{Answer, Command, Queue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch as signal};
use writer::{Fork, Loaded, Writer};

/// Ranges up to this many keys are read by the caller, larger ones on a thread for blocking work.
const INLINE_KEYS: usize = 16;

/// Sizes and ages; see the options of the backends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub history_age_millis: u64,
    pub history_bytes: u64,
    pub max_txn_bytes: usize,
    /// How often it is looked whether the log can be made smaller.
    pub shrink_interval: Duration,
    pub hub: HubLimits,
}

impl Limits {
    pub const DEFAULT_HISTORY_AGE: Duration = Duration::from_secs(300);
    pub const DEFAULT_HISTORY_BYTES: u64 = 256 << 20;
    pub const DEFAULT_TXN_BYTES: usize = 8 << 20;
    pub const DEFAULT_SHRINK_INTERVAL: Duration = Duration::from_secs(60);
    /// Recent changes are in the database's cache as well: more of them here would be kept twice.
    pub const DEFAULT_HUB: HubLimits = HubLimits { recent_bytes: 1 << 20, queue_bytes: 4 << 20 };
}

/// What the writer, the readers and the watches have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    index: RwLock<Index>,
    pub hub: Hub,
    /// Taken away when the store is closed, so that the files are.
    reader: RwLock<Option<ReaderHandle>>,
    failure: Mutex<Option<StoreError>>,
    /// Why the last write failed, until one succeeds.
    write_failure: Mutex<Option<StoreError>>,
}

#[derive(Clone)]
struct ReaderHandle(Arc<dyn Reader>);

impl std::fmt::Debug for ReaderHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}

impl Shared {
    pub fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn reader(&self) -> Result<Arc<dyn Reader>, StoreError> {
        self.check()?;
        let reader = self.reader.read().unwrap_or_else(PoisonError::into_inner);
        reader.as_ref().map(|r| r.0.clone()).ok_or(StoreError::Closed)
    }

    /// The reason why the store does not serve, if it does not.
    fn check(&self) -> Result<(), StoreError> {
        lock(&self.failure).clone().map_or(Ok(()), Err)
    }

    /// Why writes fail at present.
    pub fn write_failure(&self) -> Option<StoreError> {
        self.check().err().or_else(|| lock(&self.write_failure).clone())
    }

    /// Sets or clears the reason why writes fail.
    pub fn set_write_failure(&self, error: Option<StoreError>) {
        *lock(&self.write_failure) = error;
    }

    /// The store refuses to serve from now on; the first reason stays.
    pub fn fail(&self, error: &StoreError) {
        let first = lock(&self.failure).get_or_insert_with(|| error.clone()).clone();
        self.hub.end(first);
    }

    /// Handles an error of a read: damage ends service.
    pub fn note(&self, error: &StoreError) {
        if matches!(error, StoreError::Corrupt(_)) {
            tracing::error!(%error, "store stops serving");
            self.fail(error);
        }
    }

    fn close(&self) {
        *self.reader.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.fail(&StoreError::Closed);
    }
}

/// Which thread writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Drive {
    /// One of the store's own: callers share commits, and leases and history end by themselves.
    #[default]
    Thread,
    /// That of each caller, before its call is pending for the first time: the order of writes is that of the calls, and
    /// nothing happens between them. Leases and history end with [`Engine::tick`].
    Caller,
}

/// A store on top of a log.
#[derive(Debug)]
pub(crate) struct Engine {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    done: signal::Receiver<bool>,
    thread: Option<JoinHandle<()>>,
    /// With [`Drive::Caller`].
    inline: Option<InlineWriter>,
}

/// A writer that callers drive; gone once the store is closed.
struct InlineWriter(Mutex<Option<(Writer, signal::Sender<bool>)>>);

impl std::fmt::Debug for InlineWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InlineWriter")
    }
}

impl InlineWriter {
    /// Carries out what is queued.
    fn drive(&self, shared: &Shared, queue: &Queue) {
        let mut slot = lock(&self.0);
        let Some((writer, _)) = &mut *slot else { return };
        let open = guarded(shared, || writer.run_queued());
        if open != Some(true)
            && let Some((writer, done)) = slot.take()
        {
            end(writer, shared, queue);
            done.send_replace(true);
        }
    }
}

impl Engine {
    /// Starts the writer.
    pub fn start(
        log: Box<dyn Log>,
        loaded: Loaded,
        clock: Arc<dyn Clock>,
        limits: Limits,
        drive: Drive,
    ) -> Result<Engine, StoreError> {
        let hub = Hub::new(loaded.revision(), limits.hub);
        let reader = RwLock::new(Some(ReaderHandle(log.reader())));
        let Loaded { state, index, leases, marks } = loaded;
        let shared = Arc::new(Shared {
            index: RwLock::new(index),
            hub,
            reader,
            failure: Mutex::new(None),
            write_failure: Mutex::new(None),
        });
        let queue = Arc::new(Queue::new());
        let (done_sender, done) = signal::channel(false);
        let writer = Writer::new(shared.clone(), queue.clone(), log, (state, leases, marks), (clock, limits));
        if drive == Drive::Caller {
            let inline = Some(InlineWriter(Mutex::new(Some((writer, done_sender)))));
            return Ok(Engine { shared, queue, done, thread: None, inline });
        }
        let (thread_shared, thread_queue) = (shared.clone(), queue.clone());
        let thread = std::thread::Builder::new()
            .name("kaji-store".into())
            .spawn(move || {
                write_until_closed(writer, &thread_shared, &thread_queue);
                done_sender.send_replace(true);
            })
            .map_err(|e| StoreError::Unavailable(format!("cannot start the writer thread: {e}")))?;
        Ok(Engine { shared, queue, done, thread: Some(thread), inline: None })
    }

    fn drive(&self) {
        if let Some(inline) = &self.inline {
            inline.drive(&self.shared, &self.queue);
        }
    }

    async fn send<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, StoreError> {
        self.shared.check()?;
        let (answer, outcome) = oneshot::channel();
        // Between the failure of a writer and the closing of its queue both are true; the failure says more.
        let stopped = |e| self.shared.check().err().unwrap_or(e);
        self.queue.push(command(answer)).await.map_err(stopped)?;
        self.drive();
        match outcome.await {
            Ok(outcome) => outcome,
            Err(_) => {
                // Only a writer that stops drops a command, and it says why before it is done.
                self.close().await;
                Err(stopped(StoreError::Closed))
            }
        }
    }

    /// Runs the periodic work (leases, compaction) now.
    pub async fn tick(&self) -> Result<(), StoreError> {
        self.send(Command::Tick).await
    }

    /// What a second store needs that begins as this one is.
    pub async fn fork(&self) -> Result<Fork, StoreError> {
        self.send(Command::Fork).await
    }

    /// Reads a range; once more if the file was replaced under it.
    async fn read_range(&self, range: Range) -> Result<RangeResult, StoreError> {
        match self.read_range_once(&range).await {
            Err(StoreError::Unavailable(_)) => self.read_range_once(&range).await,
            outcome => outcome,
        }
    }

    async fn read_range_once(&self, range: &Range) -> Result<RangeResult, StoreError> {
        let (selection, snapshot) = {
            let reader = self.shared.reader()?;
            let index = self.shared.index();
            // With the index locked nothing that it names can have been removed yet.
            (index.select(range)?, reader.snapshot()?)
        };
        let (revision, more, count) = (selection.revision, selection.more, selection.count);
        let versions = selection.versions;
        let kvs = if versions.len() <= INLINE_KEYS {
            load(&*snapshot, versions)
        } else {
            blocking(move || load(&*snapshot, versions)).await
        };
        let kvs = kvs.inspect_err(|error| self.shared.note(error))?;
        Ok(RangeResult { revision, kvs, more, count })
    }
}

impl Store for Engine {
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
        Box::pin(self.send(move |answer| Command::Txn(txn, answer)))
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, StoreError>> {
        Box::pin(self.read_range(range))
    }

    fn watch(&self, prefix: &str, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>> {
        let start = self.shared.check().and_then(|()| {
            let index = self.shared.index();
            let from = if from == 0 { index.revision() + 1 } else { from };
            match index.compacted() {
                compacted if from <= compacted => Err(StoreError::Compacted { compacted }),
                _ => Ok(from),
            }
        });
        Box::pin(std::future::ready(start.map(|from| watch::watch(&self.shared, prefix, from))))
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(std::future::ready(self.shared.check().map(|()| self.shared.index().revision())))
    }

    fn current_revision_hint(&self) -> Option<Revision> {
        Some(self.shared.index().revision())
    }

    fn write_failure(&self) -> Option<StoreError> {
        self.shared.write_failure()
    }

    fn request_progress(&self) {
        self.shared.hub.wake_all();
    }

    fn grant_lease(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        Box::pin(self.send(move |answer| Command::Grant(ttl, answer)))
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(self.send(move |answer| Command::KeepAlive(lease, answer)))
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.send(move |answer| Command::Revoke(lease, answer)))
    }

    fn compact(&self, to: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.send(move |answer| Command::Compact(to, answer)))
    }

    fn scrub(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.send(Command::Scrub))
    }

    fn compacted(&self) -> Revision {
        self.shared.index().compacted()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.queue.close();
        self.drive();
        let mut done = self.done.clone();
        Box::pin(async move {
            // An error means that the thread is gone, which is as good.
            let _ = done.wait_for(|done| *done).await;
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.queue.close();
        // Waits for the commit under way, so that the next process or store that opens the files finds them free.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The body of the writer thread.
fn write_until_closed(mut writer: Writer, shared: &Shared, queue: &Queue) {
    guarded(shared, || writer.run());
    end(writer, shared, queue);
}

/// Runs a writer's work; an error and a panic end the store's service.
fn guarded<T>(shared: &Shared, work: impl FnOnce() -> Result<T, StoreError>) -> Option<T> {
    let error = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => error,
        Err(panic) => StoreError::Unavailable(format!("the writer panicked: {}", panic_text(&*panic))),
    };
    tracing::error!(%error, "store stops serving");
    shared.fail(&error);
    None
}

/// Closes the store behind its writer, and refuses what is still queued.
fn end(writer: Writer, shared: &Shared, queue: &Queue) {
    queue.close();
    drop(writer);
    shared.close();
    let reason = shared.check().err().unwrap_or(StoreError::Closed);
    let mut left = Vec::new();
    while queue.take(None, &mut left) || !left.is_empty() {
        left.drain(..).for_each(|command| command.refuse(reason.clone()));
    }
}

fn load(snapshot: &dyn LogSnapshot, versions: Vec<(Arc<str>, Version)>) -> Result<Vec<KeyValue>, StoreError> {
    versions.into_iter().map(|(key, version)| read_key_value(snapshot, version.loc(), &key)).collect()
}

/// Runs blocking work beside the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let joined = crate::blocking(work).await;
    joined.unwrap_or_else(|e| Err(StoreError::Unavailable(format!("a read did not finish: {e}"))))
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Locks; what a panicking thread left is used as it is, because no invariant spans an unlock here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Records what the store tells: a watch over all objects, joined with the requests that made the revisions.
//!
//! Invariants:
//! - Every revision of an object is recorded, in order, but for those of excluded resources and those that only a machine's clock
//!   made. What is not there says so: a gap.
//! - Memory is bounded: while much waits, the watch is not read, and the store serves it from its history later.
//! - A read waits until what was written before it is recorded, for a bounded time.

use crate::{
    archive::{Archive, Found, Limits, Purged},
    changes::{Changes, Window},
    machine::only_heartbeat,
    parts_of,
    record::{Change, Record, hash},
    redact::{Redaction, Redactor},
};
use futures_util::{FutureExt, StreamExt};
use kaji_engine::{Attribution, Attributions};
use kaji_meta::{GroupResource, Status, time::Clock};
use kaji_store::{
    Event, EventKind, KeyValue, Revision, Store, StoreError, WatchBatch, WatchStream, blocking,
};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

/// All objects are below this.
const PREFIX: &str = "/registry/";
/// How long events wait to be read and written together: each wake-up for one of them costs more than what is done with it. No longer,
/// or the store's queue of a busy server is too short for them, and they are read from its history.
const LINGER: Duration = Duration::from_millis(200);
/// How often events are looked at again that wait for the request that made them, and for how long.
const RETRY: Duration = Duration::from_millis(20);
const ATTRIBUTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of events that wait; more are left in the store.
const WAITING: usize = 16 << 20;
/// How often it is recorded that nothing was.
const PROGRESS: Duration = Duration::from_secs(60);
/// How long a read waits for what was written before it.
const FRESH: Duration = Duration::from_secs(3);
/// Between attempts to follow a store that does not answer.
const BACKOFF: Duration = Duration::from_secs(2);
/// How long the end of the server waits for the last records.
const END: Duration = Duration::from_secs(5);

/// What is recorded, and where.
#[derive(Clone, Debug)]
pub struct HistoryOptions {
    /// The directory.
    pub dir: PathBuf,
    /// How much is kept.
    pub limits: Limits,
    /// Resources of which nothing is recorded.
    pub excluded: Vec<GroupResource>,
    /// Whether values of Secrets are kept in the clear, where the store does not encrypt them.
    pub whole_secrets: bool,
}

/// Where it comes from.
pub struct Sources {
    /// The store, in the clear.
    pub store: Arc<dyn Store>,
    /// Which request has made a revision.
    pub attributions: Arc<Attributions>,
    /// The clock of objects.
    pub clock: Arc<dyn Clock>,
    /// Whether the store encrypts what is under a key.
    pub encrypts: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

enum State {
    Opening,
    Open(Box<Archive>),
    Failed(String),
}

/// The history of a server.
pub struct History {
    state: Mutex<State>,
    options: HistoryOptions,
    sources: Sources,
    /// What is recorded, or was passed over.
    recorded: watch::Sender<Revision>,
    asked: Notify,
}

struct Waiting {
    event: Event,
    /// Writes from before have a lower one.
    number: u64,
    since: Instant,
}

/// What the recording task has.
struct Recorder<'a> {
    history: &'a Arc<History>,
    redactor: Arc<Redactor>,
    waiting: VecDeque<Waiting>,
    bytes: usize,
    known: HashMap<Revision, Arc<Attribution>>,
    /// Up to here everything has arrived.
    delivered: Revision,
    /// Up to here the archive says so.
    noted: Revision,
    noted_at: Instant,
    /// What could not be written.
    missed: Option<(Revision, Revision, String)>,
    /// Of the last recorded revision: keys that are recorded already.
    last: Option<(Revision, HashSet<u64>)>,
    /// That revision is asked for once more.
    repeats_last: bool,
    /// A read waits for what waits here.
    hurries: bool,
}

impl History {
    /// Nothing is opened yet.
    pub fn new(options: HistoryOptions, sources: Sources) -> Arc<History> {
        let (state, recorded) = (Mutex::new(State::Opening), watch::Sender::new(0));
        Arc::new(History { state, options, sources, recorded, asked: Notify::new() })
    }

    /// Where the engine is to leave which request has made a revision.
    pub fn attributions(&self) -> Arc<Attributions> {
        self.sources.attributions.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> i64 {
        self.sources.clock.now().as_millisecond()
    }

    /// Records until the server ends, and then what was written before: `stopped` is true and no request is in flight any more, when
    /// `drained` is true or has no sender.
    pub async fn run(self: Arc<Self>, stopped: watch::Receiver<bool>, drained: watch::Receiver<bool>) {
        let mut end = [stopped, drained];
        match self.open().await {
            Ok(redactor) => Recorder::new(&self, redactor).run(&mut end).await,
            Err(reason) => {
                tracing::error!(reason, "no history is recorded");
                *self.lock() = State::Failed(reason);
            }
        }
    }

    async fn open(self: &Arc<Self>) -> Result<Arc<Redactor>, String> {
        let revision = self.sources.store.revision().await.map_err(|error| error.to_string())?;
        let history = self.clone();
        let opened = blocking(move || {
            let HistoryOptions { dir, limits, .. } = &history.options;
            let mut archive = Archive::open(dir, *limits).map_err(|error| error.to_string())?;
            if archive.last().is_some_and(|(last, _)| last > revision) {
                drop(archive);
                let former = dir.with_extension(format!("of-another-store-{}", history.now()));
                tracing::warn!(path = %former.display(), "the history is that of another store; it is moved, and a new one begins");
                std::fs::rename(dir, &former).map_err(|error| format!("{}: {error}", dir.display()))?;
                archive = Archive::open(dir, *limits).map_err(|error| error.to_string())?;
            }
            let redactor = Redactor::open(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            *history.lock() = State::Open(Box::new(archive));
            Ok(Arc::new(redactor))
        });
        opened.await.map_err(|error| error.to_string())?
    }

    /// Works on the archive, beside the threads that serve.
    async fn with<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Archive) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let history = self.clone();
        let done = blocking(move || match &mut *history.lock() {
            State::Open(archive) => Ok(work(archive)),
            State::Opening => Err("the history is being opened".to_owned()),
            State::Failed(reason) => Err(format!("there is no history: {reason}")),
        });
        done.await.map_err(Status::internal)?.map_err(Status::service_unavailable)
    }

    /// Waits until what is written by now is recorded.
    pub async fn fresh(&self) {
        let recorded = async {
            let Ok(revision) = self.sources.store.revision().await else { return };
            let mut recorded = self.recorded.subscribe();
            while *recorded.borrow_and_update() < revision {
                self.asked.notify_one();
                self.sources.store.request_progress();
                if recorded.changed().await.is_err() {
                    return;
                }
            }
        };
        // Late at worst: the answer says up to where it goes.
        let _ = timeout(FRESH, recorded).await;
    }

    /// Up to `limit` records of an object, of revisions after `after`; no more than about `bytes` of values.
    ///
    /// # Errors
    /// 503 while there is no archive.
    pub(crate) async fn records(
        self: &Arc<Self>,
        key: String,
        after: Revision,
        limit: usize,
        bytes: usize,
    ) -> Result<Found, Status> {
        self.fresh().await;
        let question = self.with(move |archive| archive.question(&key, after, limit, bytes)).await?;
        blocking(move || question.answer()).await.map_err(Status::internal)
    }

    /// A page of what changed.
    ///
    /// # Errors
    /// 503 while there is no archive.
    pub(crate) async fn changes(self: &Arc<Self>, window: Window) -> Result<Changes, Status> {
        self.fresh().await;
        let scan = self.with(move |archive| archive.scan(window)).await?;
        blocking(move || scan.answer()).await.map_err(Status::internal)
    }

    /// The record of a revision of the object with this hash of its key.
    ///
    /// # Errors
    /// 503 while there is no archive.
    pub(crate) async fn record(
        self: &Arc<Self>,
        revision: Revision,
        hash: u64,
    ) -> Result<Option<Record>, Status> {
        self.fresh().await;
        let question = self.with(move |archive| archive.question_of(hash, revision)).await?;
        let found = blocking(move || question.answer()).await.map_err(Status::internal)?;
        Ok(found.records.into_iter().find(|record| record.revision == revision && !record.key.is_empty()))
    }

    /// Removes the records of an object, or of all objects that begin with `key` if it ends in a slash.
    ///
    /// # Errors
    /// 503 while there is no archive, 500 when a file cannot be written.
    pub(crate) async fn purge(self: &Arc<Self>, key: String, by: Attribution) -> Result<Purged, Status> {
        self.fresh().await;
        let now = self.now();
        let purge = move |archive: &mut Archive| {
            let all = key.ends_with('/');
            let selects = |other: &str| if all { other.starts_with(&key) } else { other == key };
            archive.purge(&selects, (!all).then_some(&*key), &by, now)
        };
        self.with(purge).await?.map_err(Status::internal)
    }
}

impl<'a> Recorder<'a> {
    fn new(history: &'a Arc<History>, redactor: Arc<Redactor>) -> Self {
        let last = match &*history.lock() {
            State::Open(archive) => archive.last(),
            State::Opening | State::Failed(_) => None,
        };
        let delivered = last.as_ref().map_or(0, |(last, _)| *last);
        Recorder {
            history,
            redactor,
            waiting: VecDeque::new(),
            bytes: 0,
            known: HashMap::new(),
            delivered,
            noted: delivered,
            noted_at: Instant::now(),
            missed: None,
            last,
            repeats_last: true,
            hurries: false,
        }
    }

    async fn run(mut self, end: &mut [watch::Receiver<bool>; 2]) {
        loop {
            match self.follow(end).await {
                Ok(()) => break,
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::warn!(%error, "the history cannot watch the store; retrying");
                    tokio::select! {
                        biased;
                        () = ended(end) => break,
                        () = sleep(BACKOFF) => {}
                    }
                }
            }
        }
        self.flush(true).await;
        let synced = self.history.with(|archive| archive.sync()).await;
        if let Err(error) = synced.and_then(|synced| synced.map_err(Status::internal)) {
            tracing::error!(error = error.message, "the last records of the history were not synced to disk");
        }
    }

    /// Where to go on. What the store has forgotten is a gap, but for what was before the archive.
    fn start(&mut self) -> Revision {
        let compacted = self.history.sources.store.compacted();
        self.forgotten(compacted);
        match &self.last {
            // Once more, for the keys that are not recorded of it.
            Some((last, _)) if self.repeats_last && *last == self.delivered && compacted < *last => *last,
            _ => self.delivered + 1,
        }
    }

    /// Notes what the store has forgotten up to a revision and is not recorded; what was before the archive is not missed.
    fn forgotten(&mut self, compacted: Revision) {
        if self.delivered < compacted {
            if self.last.is_some() {
                let text = "the store had forgotten them when they were to be recorded";
                self.miss(self.delivered + 1, compacted, text);
            }
            self.delivered = compacted;
        }
    }

    async fn follow(&mut self, end: &mut [watch::Receiver<bool>; 2]) -> Result<(), StoreError> {
        let store = self.history.sources.store.clone();
        let mut stream = loop {
            match store.watch(PREFIX, self.start()).await {
                Err(StoreError::Compacted { compacted })
                    if self.repeats_last || compacted > self.delivered =>
                {
                    self.repeats_last = false;
                    self.forgotten(compacted);
                }
                other => break other?.map(|batch| batch.and_then(WatchBatch::all_readable)).boxed(),
            }
        };
        let (mut last, history) = (None, self.history);
        loop {
            let due = last.map_or(self.due(), |(_, until)| self.due().min(until));
            tokio::select! {
                biased;
                // While some wait for what comes after them, there is no need to hear of each.
                next = stream.next(), if self.waiting.is_empty() || (last.is_some() && self.bytes < WAITING) => {
                    self.receive(next.unwrap_or(Err(StoreError::Closed))?);
                }
                () = ended(end), if last.is_none() => {
                    last = Some((store.revision().await?, Instant::now() + END));
                }
                () = history.asked.notified() => {
                    self.hurries = true;
                    self.gather(&mut stream)?;
                    self.flush(false).await;
                }
                () = sleep_until(due) => {
                    self.gather(&mut stream)?;
                    self.flush(false).await;
                }
            }
            if let Some((revision, until)) = last
                && (self.delivered >= revision || Instant::now() >= until)
            {
                return Ok(());
            }
            if last.is_some() {
                store.request_progress();
            }
        }
    }

    /// Takes what the store has by now, within the bound.
    fn gather(&mut self, stream: &mut WatchStream) -> Result<(), StoreError> {
        while self.bytes < WAITING
            && let Some(next) = stream.next().now_or_never()
        {
            self.receive(next.unwrap_or(Err(StoreError::Closed))?);
        }
        Ok(())
    }

    fn due(&self) -> Instant {
        match self.waiting.front() {
            Some(first) if !self.hurries && first.since.elapsed() < LINGER => first.since + LINGER,
            Some(_) => Instant::now() + RETRY,
            None => self.noted_at + PROGRESS,
        }
    }

    fn receive(&mut self, batch: WatchBatch) {
        let number = self.history.sources.attributions.next_number();
        let since = Instant::now();
        for event in batch.events {
            if self.is_excluded(&event.kv.key) || self.is_recorded(&event.kv) {
                continue;
            }
            self.bytes += size(&event);
            self.waiting.push_back(Waiting { event, number, since });
        }
        self.delivered = self.delivered.max(batch.revision);
        if self.waiting.is_empty() {
            self.recorded(self.delivered);
        }
    }

    fn recorded(&mut self, reached: Revision) {
        self.hurries &= !self.waiting.is_empty();
        self.history.recorded.send_if_modified(|former| std::mem::replace(former, reached) != reached);
    }

    fn is_excluded(&self, key: &str) -> bool {
        let Some([group, resource, ..]) = parts_of(key) else { return true };
        self.history.options.excluded.iter().any(|gr| gr.group == group && gr.resource == resource)
    }

    fn is_recorded(&self, kv: &KeyValue) -> bool {
        self.last.as_ref().is_some_and(|(last, keys)| {
            kv.mod_revision < *last || (kv.mod_revision == *last && keys.contains(&hash(&kv.key)))
        })
    }

    fn miss(&mut self, from: Revision, to: Revision, reason: &str) {
        tracing::error!(from, to, reason, "revisions are missing in the history");
        let from = self.missed.as_ref().map_or(from, |(former, ..)| *former.min(&from));
        self.missed = Some((from, to, reason.to_owned()));
    }

    /// Writes what is complete; at the end, all of it.
    async fn flush(&mut self, end: bool) {
        let attributions = &self.history.sources.attributions;
        // In this order: a write that is over has left its attribution.
        let under_way = attributions.first_under_way();
        self.known.extend(attributions.take());
        let is_complete = |w: &Waiting| {
            self.known.contains_key(&w.event.kv.mod_revision)
                || under_way.is_none_or(|first| first >= w.number)
                || w.since.elapsed() >= ATTRIBUTION_TIMEOUT
                || end
        };
        let count = self.waiting.iter().take_while(|w| is_complete(w)).count();
        let events: Vec<(Event, Attribution)> = self
            .waiting
            .drain(..count)
            .map(|w| w.event)
            .map(|event| {
                self.bytes -= size(&event);
                let attribution = self.known.get(&event.kv.mod_revision).map(|a| Attribution::clone(a));
                (event, attribution.unwrap_or_default())
            })
            .collect();
        let reached = self.waiting.front().map_or(self.delivered, |next| next.event.kv.mod_revision - 1);
        self.known.retain(|revision, _| *revision > reached);
        let quiet = events.is_empty() && self.missed.is_none();
        let due = end || self.noted_at.elapsed() >= PROGRESS;
        if quiet && (reached <= self.noted || !due) {
            if due {
                self.noted_at = Instant::now();
            }
            self.recorded(reached);
            return;
        }
        self.write(events, reached, due).await;
        self.recorded(reached);
    }

    /// Writes events up to a revision; if all of them are left out, that they were seen, when that is due.
    async fn write(&mut self, events: Vec<(Event, Attribution)>, reached: Revision, due: bool) {
        let first = events.first().map_or(reached, |(event, _)| event.kv.mod_revision);
        let (history, redactor) = (self.history.clone(), self.redactor.clone());
        let missed = self.missed.clone();
        let now = history.now();
        let append = move |archive: &mut Archive| {
            let gap = missed.map(|(from, to, text)| Record::remark(Change::Gap, from, to, now, &text));
            let mut records: Vec<Record> = gap.into_iter().collect();
            for (event, attribution) in events {
                history.records_of(archive, &redactor, event, attribution, now, &mut records);
            }
            if records.is_empty() && !due {
                return Ok(false);
            }
            if records.last().is_none_or(|last| last.revision < reached) {
                records.push(Record::remark(Change::Progress, 0, reached, now, ""));
            }
            archive.append(&records, now).map(|()| true)
        };
        let appended = self.history.with(append).await;
        match appended.and_then(|appended| appended.map_err(Status::internal)) {
            Ok(false) => {}
            Ok(true) => {
                self.missed = None;
                (self.noted, self.noted_at) = (reached, Instant::now());
            }
            Err(error) => self.miss(first, reached, &error.message),
        }
    }
}

impl History {
    /// What is recorded of an event.
    fn records_of(
        &self,
        archive: &mut Archive,
        redactor: &Redactor,
        event: Event,
        attribution: Attribution,
        time: i64,
        records: &mut Vec<Record>,
    ) {
        let Event { kind, kv, previous } = event;
        let Some([group, resource, ..]) = parts_of(&kv.key) else { return };
        let left_out = |former: &KeyValue| only_heartbeat(group, resource, &former.value, &kv.value);
        if kind == EventKind::Put && previous.as_ref().is_some_and(left_out) {
            return;
        }
        let redaction = match (group, resource) {
            ("", "secrets") if !self.options.whole_secrets || (self.sources.encrypts)(&kv.key) => {
                Redaction::Secret
            }
            _ if (self.sources.encrypts)(&kv.key) => Redaction::Everything,
            _ => Redaction::None,
        };
        let first =
            || records.iter().find(|record| record.change != Change::Former).map(|record| record.revision);
        let oldest = archive.oldest().or_else(first);
        let mut add = |change, revision, attribution, value: &[u8]| {
            let (key, value) = (kv.key.to_string(), redactor.redacted(redaction, &kv.key, value));
            records.push(Record { revision, time, change, since: 0, key, attribution, value });
        };
        if let Some(former) = &previous
            && oldest.is_none_or(|oldest| former.mod_revision < oldest)
        {
            add(Change::Former, former.mod_revision, Attribution::default(), &former.value);
        }
        let (change, value) = match (kind, &previous) {
            (EventKind::Put, None) => (Change::Created, &kv.value),
            (EventKind::Put, Some(_)) => (Change::Modified, &kv.value),
            (EventKind::Delete, Some(former)) => (Change::Deleted, &former.value),
            (EventKind::Delete, None) => (Change::Deleted, &kv.value),
        };
        add(change, kv.mod_revision, attribution, value);
    }
}

/// Resolves when all of them are true, or have no sender.
async fn ended(end: &mut [watch::Receiver<bool>; 2]) {
    for signal in end {
        drop(signal.wait_for(|is_over| *is_over).await);
    }
}

fn size(event: &Event) -> usize {
    let previous = event.previous.as_ref().map_or(0, |former| former.value.len());
    event.kv.key.len() + event.kv.value.len() + previous
}

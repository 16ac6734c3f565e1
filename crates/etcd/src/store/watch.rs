//! Watches: one stream of etcd each. One that breaks ends with an error: the cache's feed resumes it (`crates/engine/src/cache/feed.rs`).
//!
//! Where etcd reports progress correctly, a watch follows its prefix, and requests progress while readers wait for a revision.
//! With other versions it follows all keys: each revision has an event there, and events of other keys are progress.
//!
//! A watch begins one revision before the first one that is wanted, for etcd lets one begin at the revision that it is compacted to: if that
//! revision deleted a key, versions before 3.4.34 and 3.5.15 have removed the deletion, and its event would be missing (etcd-io/etcd#18089).
//!
//! Invariants: a batch ends with a whole transaction; nothing is delivered twice, also when etcd splits a large answer; a
//! watch from a revision that is compacted, or of which an event lacks the former value for that reason, ends with `Compacted`.

use super::{Inner, plain, revision, signed};
use crate::client::Streamed;
use crate::error::Failure;
use crate::keys::Interval;
use crate::messages::{
    self, EventType, WatchCreateRequest, WatchMessage, WatchProgressRequest, WatchRequest, WatchResponse,
};
use futures_util::StreamExt;
use futures_util::stream::{self, unfold};
use kaji_store::{Event, EventKind, KeyValue, Revision, StoreError, WatchBatch, WatchStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch as notices};
use tokio::time::{Instant, sleep_until, timeout};

/// How long etcd may take to begin a watch.
const BEGIN: Duration = Duration::from_secs(8);
/// How long it may take to tell what it is compacted to.
const COMPACTED: Duration = Duration::from_secs(5);
/// How often progress is requested while it is waited for. As upstream.
const PROGRESS: Duration = Duration::from_millis(100);

/// Starts a watch; see [`kaji_store::Store::watch`].
pub(super) async fn watch(
    inner: Arc<Inner>,
    prefix: String,
    from: Revision,
) -> Result<WatchStream, StoreError> {
    inner.check_open()?;
    let permit = inner.watches.clone().try_acquire_owned();
    let permit = permit.map_err(|_| StoreError::Unavailable("too many watches of etcd".into()))?;
    let from = match from {
        0 => inner.current().await? + 1,
        from => inner.check_history(from).await.map(|()| from)?,
    };
    let interval = inner.keys.interval(&prefix, &kaji_store::Range::prefix(&prefix).end)?;
    let Started { streamed, requests } = start(&inner, interval, from).await?;
    let (wanted, closed) = (inner.wanted.subscribe(), inner.closed.subscribe());
    let following = Following {
        inner,
        streamed,
        requests,
        prefix,
        at: from.saturating_sub(1),
        held: vec![],
        asked: None,
        wanted,
        closed,
        _permit: permit,
    };
    // An error is the last item.
    let batches = unfold(Some(following), |following| async move {
        let mut following = following?;
        let item = following.next().await;
        let rest = item.is_ok().then_some(following);
        Some((item, rest))
    });
    Ok(batches.boxed())
}

/// A stream that etcd has begun.
struct Started {
    streamed: Streamed<WatchResponse>,
    requests: mpsc::Sender<WatchRequest>,
}

/// Begins a stream. All keys are asked for where etcd's progress is not to be relied on.
async fn start(inner: &Inner, interval: Interval, from: Revision) -> Result<Started, StoreError> {
    // Whether it is, is known with the connection. Of two connections in a row, the second may be to another etcd.
    let mut relied_on = true;
    for _ in 0..2 {
        let (key, range_end) = match relied_on {
            true => (interval.start.clone(), interval.end.clone()),
            false => (vec![0], vec![0]),
        };
        let create = WatchCreateRequest {
            key,
            range_end,
            // See the file's head: events that are not wanted are dropped.
            start_revision: signed(from.saturating_sub(1).max(1)),
            progress_notify: relied_on,
            prev_kv: true,
            fragment: true,
        };
        let started = begin(inner, create).await?;
        if started.streamed.reports_progress || !relied_on {
            return Ok(started);
        }
        relied_on = false;
    }
    Err(StoreError::Unavailable("etcd servers of different versions answer in turn".into()))
}

/// Begins a stream, which etcd has confirmed.
async fn begin(inner: &Inner, create: WatchCreateRequest) -> Result<Started, StoreError> {
    let (requests, receiver) = mpsc::channel(4);
    let first = WatchRequest { message: Some(WatchMessage::Create(create)) };
    // A new channel has room.
    requests.try_send(first).map_err(|e| StoreError::Unavailable(e.to_string()))?;
    let messages = stream::unfold(receiver, |mut receiver| async move {
        let message = receiver.recv().await?;
        Some((message, receiver))
    });
    let failed = |error: kaji_grpc::CallError| plain(Failure::from(error));
    let mut streamed: Streamed<WatchResponse> =
        inner.client.watch("/etcdserverpb.Watch/Watch", messages).await.map_err(failed)?;
    match timeout(BEGIN, streamed.messages.next()).await {
        Ok(Ok(Some(answer))) if answer.canceled => Err(canceled(inner, &answer)),
        Ok(Ok(Some(answer))) if answer.created => Ok(Started { streamed, requests }),
        Ok(Ok(_)) => Err(StoreError::Unavailable("etcd did not begin the watch".into())),
        Ok(Err(error)) => {
            inner.client.watch_failed(&streamed).await;
            Err(failed(error))
        }
        Err(_) => {
            inner.client.watch_failed(&streamed).await;
            Err(StoreError::Unavailable("etcd did not begin the watch in time".into()))
        }
    }
}

fn canceled(inner: &Inner, answer: &WatchResponse) -> StoreError {
    let compacted = revision(answer.compact_revision);
    if compacted > 0 {
        inner.note_compacted(compacted);
        return StoreError::Compacted { compacted };
    }
    StoreError::Unavailable(format!("etcd ended the watch: {}", answer.cancel_reason))
}

impl Inner {
    /// Whether all events from a revision on are still there.
    async fn check_history(&self, from: Revision) -> Result<(), StoreError> {
        let compacted = self.compacted();
        if from <= compacted {
            return Err(StoreError::Compacted { compacted });
        }
        // Most watches begin at the present.
        if from > self.known.load(Ordering::Acquire) {
            return Ok(());
        }
        let before = (from - 1).max(1);
        match self.read_at(before).await {
            Ok(()) | Err(Failure::FutureRevision) => Ok(()),
            Err(failure) => Err(self.store_error(failure, before).await),
        }
    }

    /// What etcd is compacted to, when a revision below that is known: a watch from there ends with it.
    pub(super) async fn read_compacted(&self, below: Revision) -> Result<Revision, StoreError> {
        let create = WatchCreateRequest {
            key: self.keys.health(),
            start_revision: signed(below.max(1)),
            ..WatchCreateRequest::default()
        };
        let told = async {
            let mut started = begin(self, create).await?;
            loop {
                match started.streamed.messages.next().await {
                    Ok(Some(answer)) if answer.canceled => return Err(canceled(self, &answer)),
                    Ok(Some(_)) => {}
                    Ok(None) => return Err(StoreError::Unavailable("etcd ended the watch".into())),
                    Err(error) => return Err(plain(error.into())),
                }
            }
        };
        let told: Result<Result<Revision, StoreError>, _> = timeout(COMPACTED, told).await;
        match told
            .map_err(|_| StoreError::Unavailable("etcd does not tell what it is compacted to".into()))?
        {
            Err(StoreError::Compacted { compacted }) => Ok(compacted),
            other => other,
        }
    }
}

/// A watch that is followed.
struct Following {
    inner: Arc<Inner>,
    streamed: Streamed<WatchResponse>,
    requests: mpsc::Sender<WatchRequest>,
    prefix: String,
    /// Everything up to here has been delivered.
    at: Revision,
    /// Events of a transaction, the rest of which is to come.
    held: Vec<messages::Event>,
    /// When progress was requested.
    asked: Option<Instant>,
    wanted: notices::Receiver<Revision>,
    closed: notices::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

impl Following {
    async fn next(&mut self) -> Result<WatchBatch, StoreError> {
        loop {
            let request = progress_due(self.streamed.reports_progress, self.at, self.asked, &mut self.wanted);
            let message = tokio::select! {
                biased;
                _ = self.closed.wait_for(|closed| *closed) => return Err(StoreError::Closed),
                message = self.streamed.messages.next() => message,
                () = request => {
                    self.asked = Some(Instant::now());
                    let message = Some(WatchMessage::Progress(WatchProgressRequest {}));
                    // A full channel holds such requests already.
                    let _full_or_ended = self.requests.try_send(WatchRequest { message });
                    continue;
                }
            };
            let answer = match message {
                Ok(Some(answer)) => answer,
                Ok(None) => {
                    self.inner.client.watch_failed(&self.streamed).await;
                    return Err(StoreError::Unavailable("etcd ended the watch".into()));
                }
                Err(error) => {
                    self.inner.client.watch_failed(&self.streamed).await;
                    return Err(plain(error.into()));
                }
            };
            if let Some(batch) = self.take(answer).await? {
                return Ok(batch);
            }
        }
    }

    /// The batch that an answer completes, if it does.
    async fn take(&mut self, answer: WatchResponse) -> Result<Option<WatchBatch>, StoreError> {
        if answer.canceled {
            if answer.compact_revision <= 0 {
                self.inner.client.watch_failed(&self.streamed).await;
            }
            return Err(canceled(&self.inner, &answer));
        }
        let current = self.inner.header(answer.header)?;
        if answer.events.is_empty() && self.held.is_empty() && !answer.fragment {
            let progress = self.streamed.reports_progress && !answer.created && current > self.at;
            return Ok(progress.then(|| {
                self.inner.observer.progress();
                self.at = current;
                WatchBatch::new(current, vec![])
            }));
        }
        self.held.extend(answer.events);
        let revision_of =
            |event: &messages::Event| event.kv.as_ref().map_or(0, |kv| revision(kv.mod_revision));
        let last = self.held.last().map_or(0, revision_of);
        let complete = match answer.fragment {
            false => self.held.len(),
            true => self.held.iter().position(|event| revision_of(event) == last).unwrap_or(0),
        };
        let rest = self.held.split_off(complete);
        let whole = std::mem::replace(&mut self.held, rest);
        let Some(to) = whole.last().map(revision_of).filter(|to| *to > self.at) else { return Ok(None) };
        let new = whole.into_iter().filter(|event| revision_of(event) > self.at);
        let events = new.filter_map(|event| self.event(event).transpose()).collect::<Result<_, _>>()?;
        self.at = to;
        Ok(Some(WatchBatch::new(to, events)))
    }

    /// An event, unless it is about a key that is not watched.
    fn event(&self, event: messages::Event) -> Result<Option<Event>, StoreError> {
        let deleted = event.kind == EventType::Delete as i32;
        let Some(kv) = event.kv.and_then(|kv| self.inner.kv(kv)) else { return Ok(None) };
        if !kv.key.starts_with(&self.prefix) {
            return Ok(None);
        }
        let previous: Option<KeyValue> = event.prev_kv.and_then(|kv| self.inner.kv(kv));
        if previous.is_none() && (deleted || kv.version > 1) {
            self.inner.note_compacted(kv.mod_revision);
            return Err(StoreError::Compacted { compacted: kv.mod_revision });
        }
        self.inner.observer.event(&kv.key);
        let kind = if deleted { EventKind::Delete } else { EventKind::Put };
        Ok(Some(Event { kind, kv, previous }))
    }
}

/// Resolves when progress is to be requested: at once when a later revision is wanted, then regularly until it has come.
async fn progress_due(
    reports_progress: bool,
    at: Revision,
    asked: Option<Instant>,
    wanted: &mut notices::Receiver<Revision>,
) {
    if !reports_progress {
        return std::future::pending().await;
    }
    if wanted.wait_for(|wanted| *wanted > at).await.is_err() {
        return std::future::pending().await;
    }
    if let Some(asked) = asked {
        sleep_until(asked + PROGRESS).await;
    }
}

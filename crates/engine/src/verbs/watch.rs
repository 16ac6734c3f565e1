//! Watches: the present state (if asked for), then what happens, as encoded once in the cache.
//!
//! Invariants:
//! - No event is missing and none comes twice, whether it comes from the snapshot, from the store's history, from the
//!   window or from the queue.
//! - A bookmark's revision is one after which this watcher has everything up to it.
//! - A watch ends at its deadline, whatever is still queued for it.

use crate::{
    cache::{Cache, Fields, Filter, SelectedEntry, Start, Subscription, WatchEvent},
    conversion::{self, Reader},
    encode::{Include, SEPARATE_OBJECTS, View, error_event, protobuf},
    engine::{Engine, store_status},
    list_options::{self, ListOptions, Rv},
    registry::Resource,
    request::{ApiRequest, Encoding, Form},
    response::{ApiResponse, Body},
};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture, stream};
use kaji_meta::Status;
use kaji_store::{Revision, Store, StoreError, WatchBatch, WatchStream};
use std::{
    collections::VecDeque,
    future::Future,
    ops::Bound,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
    vec,
};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Events taken from the queue at a time.
const BATCH: usize = 256;
/// Frames are gathered up to about this many bytes, so that many small events cost one write.
const CHUNK: usize = 64 << 10;
/// Frames this long are passed on by themselves, sharing the cache's memory.
const LARGE: usize = 16 << 10;

/// Serves a watch. Once the request is understood, errors are events.
pub(crate) async fn watch(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let options = ListOptions::for_watch(req)?;
    if engine.is_shut_down() {
        // Not a watch that ends: clients would begin it again, and again.
        return Err(Status::service_unavailable("the server is shutting down"));
    }
    let include =
        if req.accept.form == Form::Table { Include::from_request(req)? } else { Include::default() };
    if req.accept.encoding == Encoding::Yaml {
        return Err(not_acceptable());
    }
    let binary = req.accept.encoding == Encoding::Protobuf;
    let view = View::new(engine, res.clone(), &req.version, &req.accept, include)?.for_events();
    let separate = view.separate();
    let mut filter = list_options::filter(res, req, &options)?;
    let webhook = Reader::of(res, &req.version).map(|reader| {
        let place = filter.place();
        let filter = Arc::new(std::mem::replace(&mut filter, place));
        WebhookStage { reader, filter, work: None, waiting: VecDeque::new() }
    });
    let timeout = options.timeout.unwrap_or_else(|| {
        let least = engine.options.min_request_timeout;
        // Spread, so that clients that began together do not all come back together.
        least + least.mul_f64((engine.random.u64() >> 11) as f64 / (1_u64 << 53) as f64)
    });
    let body = match begin(engine, res, req, &options, filter).await {
        // Its time was over before it began.
        Ok(_) if timeout.is_zero() => stream::empty().boxed(),
        // Its clients begin anew, with the definition that has come meanwhile.
        Ok(_) if outdated(engine, res) => stream::empty().boxed(),
        Err(status) => stream::iter([error_event(binary, &status)]).boxed(),
        Ok(phase) => {
            let headers = view.has_headers();
            Box::pin(Watching {
                cache: res.cache.clone(),
                out: Out { separate, ..Out::default() },
                items: vec![],
                webhook,
                headers,
                last: 0,
                deadline: Box::pin(sleep_until(Instant::now() + timeout)),
                bookmark: options.bookmarks.then(|| Box::pin(sleep(engine.options.bookmark_interval))),
                interval: engine.options.bookmark_interval,
                view,
                phase,
            })
        }
    };
    let content_type = match (binary, separate) {
        (true, _) => protobuf::WATCH_CONTENT_TYPE,
        (false, true) => SEPARATE_OBJECTS,
        (false, false) => "application/json",
    };
    Ok(ApiResponse {
        code: 200,
        content_type,
        warnings: vec![],
        annotations: vec![],
        body: Body::Watch(body),
    })
}

/// Whether a watch that has just begun looks through a definition that was replaced before it could be ended.
fn outdated(engine: &Engine, res: &Arc<Resource>) -> bool {
    let registry = engine.registry();
    registry.by_group_resource(&res.group_resource).is_some_and(|now| !Arc::ptr_eq(now, res))
}

/// 406: none of the forms that have event framing.
pub(crate) fn not_acceptable() -> Status {
    Status::not_acceptable(
        "only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
    )
}

/// Finds where a watch begins.
async fn begin(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
    options: &ListOptions,
    filter: Filter,
) -> Result<Phase, Status> {
    let namespaced = res.def.namespaced();
    if options.rv == Rv::Unset {
        engine.wait_consistent().await?;
    }
    if options.send_initial_events == Some(true) {
        if let Rv::At(revision) = options.rv {
            engine.wait_not_older(revision).await?;
        }
        let prefix = res.key_prefix(if namespaced { &req.namespace } else { "" });
        let (subscription, snapshot) =
            res.cache.subscribe(filter.clone(), namespaced, Start::Now).map_err(|e| too_old(0, e.floor))?;
        let range = snapshot.objects.range::<_, str>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        let wanted = range.take_while(|(key, _)| key.starts_with(&prefix));
        let entries: Vec<SelectedEntry> = wanted.filter_map(|(_, e)| filter.accept(e)).collect();
        return Ok(Phase::Initial {
            entries: entries.into_iter(),
            revision: snapshot.revision,
            bookmark: options.bookmarks,
            subscription,
        });
    }
    let after = match options.rv {
        Rv::At(revision) => revision,
        Rv::Unset | Rv::Any => res.cache.snapshot().revision,
    };
    match res.cache.subscribe(filter.clone(), namespaced, Start::After(after)) {
        Ok((subscription, _)) => Ok(Phase::Live(subscription)),
        Err(_) => {
            let store = engine.store.clone();
            let stream = store.watch(res.cache.prefix(), after + 1).await.map_err(|e| match e {
                StoreError::Compacted { compacted } => too_old(after, compacted),
                other => store_status(&other),
            })?;
            store.request_progress();
            let fields = res.cache.fields();
            let epoch = res.cache.epoch();
            Ok(Phase::History(Box::new(History { store, stream, fields, filter, namespaced, after, epoch })))
        }
    }
}

fn too_old(wanted: Revision, oldest: Revision) -> Status {
    Status::resource_expired(format!("too old resource version: {wanted} ({oldest})"))
}

/// Where the events come from.
enum Phase {
    /// The objects that were there, then the bookmark that says so.
    Initial {
        entries: vec::IntoIter<SelectedEntry>,
        revision: Revision,
        bookmark: bool,
        subscription: Subscription,
    },
    /// The store, until the window reaches back far enough.
    History(Box<History>),
    /// The queue.
    Live(Subscription),
    End,
}

/// Replays what the window no longer holds.
struct History {
    store: Arc<dyn Store>,
    stream: WatchStream,
    fields: Arc<Fields>,
    filter: Filter,
    namespaced: bool,
    after: Revision,
    /// Of the definitions that this watch began with.
    epoch: u64,
}

/// The conversion stage of a watch of objects that a webhook converts: they come out of the phases as stored, and are sent
/// when they have been converted. Meanwhile nothing else is taken; the queue is bounded.
struct WebhookStage {
    reader: Reader,
    /// What the client wants; the phases know only where.
    filter: Arc<Filter>,
    work: Option<BoxFuture<'static, Result<Converted, Status>>>,
    /// Events that came out of the phases and are to be converted when those before them have been.
    waiting: VecDeque<WatchEvent>,
}

enum Converted {
    Initial(Vec<SelectedEntry>),
    Events(Vec<WatchEvent>),
}

impl WebhookStage {
    fn initial(&mut self, entries: Vec<SelectedEntry>) {
        let (reader, filter) = (self.reader.clone(), self.filter.clone());
        self.work =
            Some(Box::pin(async move { reader.select(entries, &filter).await.map(Converted::Initial) }));
    }

    /// Converts the next events, as many as may be at once.
    fn events(&mut self) {
        let size = |event: &&WatchEvent| event.bytes();
        let some = Reader::at_once(&self.waiting, size);
        let items = self.waiting.drain(..some).collect();
        let converted = self.reader.clone().events(items, self.filter.clone());
        self.work = Some(converted.map(|done| done.map(Converted::Events)).boxed());
    }
}

/// Frames to be sent, small ones gathered.
#[derive(Default)]
struct Out {
    ready: VecDeque<Bytes>,
    /// A first small frame, which stays shared if no other joins it.
    one: Option<Bytes>,
    buffer: Vec<u8>,
    /// None are gathered.
    separate: bool,
}

impl Out {
    fn push(&mut self, frame: Bytes) {
        if self.separate || frame.len() >= LARGE {
            self.flush();
            self.ready.push_back(frame);
        } else if self.one.is_none() && self.buffer.is_empty() {
            self.one = Some(frame);
        } else {
            if let Some(first) = self.one.take() {
                self.buffer.extend_from_slice(&first);
            }
            self.buffer.extend_from_slice(&frame);
            if self.buffer.len() >= CHUNK {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        self.ready.extend(self.one.take());
        if !self.buffer.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.buffer).into());
        }
    }
}

/// The stream of a watch.
struct Watching {
    cache: Arc<Cache>,
    view: View,
    phase: Phase,
    out: Out,
    items: Vec<WatchEvent>,
    webhook: Option<WebhookStage>,
    /// The next object is the first of a table, which says what its columns are.
    headers: bool,
    /// The last revision sent.
    last: Revision,
    deadline: Pin<Box<Sleep>>,
    bookmark: Option<Pin<Box<Sleep>>>,
    interval: Duration,
}

impl Watching {
    /// Queues a frame, or the error that there is instead, after which the watch ends.
    fn send(&mut self, revision: Revision, frame: Result<Bytes, Status>) {
        match frame {
            Ok(frame) => {
                self.headers = false;
                self.last = self.last.max(revision);
                self.out.push(frame);
            }
            Err(status) => self.fail(&status),
        }
    }

    fn fail(&mut self, status: &Status) {
        self.out.push(self.view.error(status));
        self.end();
    }

    /// Nothing more is sent than what is ready.
    fn end(&mut self) {
        self.phase = Phase::End;
        if let Some(webhook) = &mut self.webhook {
            webhook.waiting.clear();
        }
    }

    /// Moves some of the initial objects on.
    fn initial(&mut self) {
        let mut bytes = 0;
        while bytes < CHUNK {
            let Phase::Initial { entries, .. } = &mut self.phase else { return };
            if let Some(webhook) = &mut self.webhook {
                let some = Reader::at_once(entries.as_slice(), |entry| entry.object_len());
                let some: Vec<SelectedEntry> = entries.by_ref().take(some).collect();
                if some.is_empty() {
                    self.initial_end();
                } else {
                    webhook.initial(some);
                }
                break;
            }
            let Some(entry) = entries.next() else {
                self.initial_end();
                break;
            };
            let frame = self.view.added(&entry, self.headers);
            bytes += frame.as_ref().map_or(0, Bytes::len);
            self.cache.count_sent(1);
            self.send(0, frame);
        }
        self.out.flush();
    }

    fn initial_end(&mut self) {
        let ended = std::mem::replace(&mut self.phase, Phase::End);
        if let Phase::Initial { revision, bookmark, subscription, .. } = ended {
            self.phase = Phase::Live(subscription);
            if bookmark {
                let frame = self.view.bookmark(revision, true, self.headers);
                self.send(revision, frame);
            }
            self.last = revision;
        }
    }

    fn history(&mut self, next: Option<Result<WatchBatch, StoreError>>) {
        let Phase::History(history) = &mut self.phase else { return };
        let batch = match next {
            Some(Ok(batch)) => batch,
            Some(Err(StoreError::Compacted { compacted })) => {
                let status = too_old(history.after, compacted);
                return self.fail(&status);
            }
            Some(Err(error)) => return self.fail(&store_status(&error)),
            None => {
                self.phase = Phase::End;
                return;
            }
        };
        history.after = history.after.max(batch.revision);
        let (fields, filter) = (history.fields.clone(), history.filter.clone());
        for event in &batch.events {
            let Some(event) = self.cache.replay(&fields, event) else { continue };
            let Some(event) = WatchEvent::accept(&filter, &Arc::new(event)) else { continue };
            if let Some(webhook) = &mut self.webhook {
                webhook.waiting.push_back(event);
                continue;
            }
            let frame = self.view.event(&event, self.headers);
            self.cache.count_sent(1);
            self.send(event.revision(), frame);
        }
        self.out.flush();
        let Phase::History(history) = &self.phase else { return };
        if history.epoch != self.cache.epoch() {
            self.phase = Phase::End;
            return;
        }
        match self.cache.subscribe(filter, history.namespaced, Start::After(history.after)) {
            Ok((subscription, _)) => self.phase = Phase::Live(subscription),
            Err(_) => history.store.request_progress(),
        }
    }

    fn events(&mut self) {
        let mut items = std::mem::take(&mut self.items);
        if let Some(webhook) = &mut self.webhook {
            return webhook.waiting.extend(items);
        }
        self.cache.count_sent(items.len());
        for event in items.drain(..) {
            let frame = self.view.event(&event, self.headers);
            let failed = frame.is_err();
            self.send(event.revision(), frame);
            if failed {
                break;
            }
        }
        self.out.flush();
        items.clear();
        self.items = items;
    }

    /// Sends what has been converted.
    fn converted(&mut self, done: Result<Converted, Status>) {
        match done {
            Ok(Converted::Initial(entries)) => {
                self.cache.count_sent(entries.len());
                for entry in entries {
                    let frame = self.view.added(&entry, self.headers);
                    self.send(0, frame);
                }
            }
            Ok(Converted::Events(events)) => {
                self.cache.count_sent(events.len());
                for event in events {
                    let frame = self.view.event(&event, self.headers);
                    self.send(event.revision(), frame);
                }
            }
            Err(status) => self.fail(&conversion::as_event(status)),
        }
        self.out.flush();
    }

    /// A bookmark, if the watch has everything up to `applied`.
    fn send_bookmark(&mut self, applied: Revision) {
        if applied >= self.last {
            let frame = self.view.bookmark(applied, false, self.headers);
            self.send(applied, frame);
            self.out.flush();
        }
    }

    /// Whether it is time for a bookmark; if so the next one is set.
    fn bookmark_due(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(timer) = &mut self.bookmark else { return false };
        if timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        timer.as_mut().reset(Instant::now() + self.interval);
        // Registers the waker for the next one.
        let _ = timer.as_mut().poll(cx);
        true
    }
}

impl Stream for Watching {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = &mut *self;
        loop {
            let over = !matches!(this.phase, Phase::End) && this.deadline.as_mut().poll(cx).is_ready();
            if over && !this.out.ready.is_empty() {
                // A reader that does not keep up has had its time, too. What it did not get follows the last that it got.
                this.out.ready.clear();
                return Poll::Ready(None);
            }
            if let Some(frame) = this.out.ready.pop_front() {
                return Poll::Ready(Some(frame));
            }
            if let Some(work) = this.webhook.as_mut().and_then(|f| f.work.as_mut()) {
                let done = match work.poll_unpin(cx) {
                    Poll::Ready(done) => Some(done),
                    Poll::Pending if over => None,
                    Poll::Pending => return Poll::Pending,
                };
                if let Some(webhook) = &mut this.webhook {
                    webhook.work = None;
                }
                match done {
                    Some(done) => this.converted(done),
                    None => this.end(),
                }
                continue;
            }
            if let Some(webhook) = this.webhook.as_mut().filter(|f| !f.waiting.is_empty()) {
                if over {
                    this.end()
                } else {
                    webhook.events()
                }
                continue;
            }
            match &mut this.phase {
                Phase::End => {
                    this.out.flush();
                    if this.out.ready.is_empty() {
                        return Poll::Ready(None);
                    }
                }
                Phase::Initial { .. } if !over => this.initial(),
                Phase::History(history) if !over => match history.stream.poll_next_unpin(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(next) => this.history(next),
                },
                Phase::Live(subscription) => {
                    // Read before the queue is found empty: then everything up to it has been taken.
                    let applied = subscription.applied();
                    match subscription.poll_take(BATCH, &mut this.items, cx) {
                        Poll::Ready(Some(())) if over => this.phase = Phase::End,
                        Poll::Ready(Some(())) => this.events(),
                        Poll::Ready(None) => this.phase = Phase::End,
                        Poll::Pending if over => {
                            if this.bookmark.is_some() {
                                this.send_bookmark(applied);
                            }
                            this.phase = Phase::End;
                        }
                        Poll::Pending => {
                            if !this.bookmark_due(cx) {
                                return Poll::Pending;
                            }
                            this.send_bookmark(applied);
                        }
                    }
                }
                _ => this.phase = Phase::End,
            }
        }
    }
}

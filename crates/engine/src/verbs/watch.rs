//! Watches: the present state (if asked for), then what happens, as encoded once in the cache.
//!
//! A watch is three stages: its events as they are stored (`source`), their conversion to the version of the request
//! (`conversion::EventStage`), and frames (`frames`).
//!
//! Invariants:
//! - No event is missing and none comes twice.
//! - A bookmark's revision is one after which this watcher has everything up to it.
//! - A watch ends at its deadline, whatever is still queued for it.

mod frames;
mod source;

use crate::{
    conversion::{Batch, EventStage},
    encode::{Include, SEPARATE_OBJECTS, View, error_event, protobuf},
    engine::Engine,
    list_options::{self, ListOptions},
    registry::Resource,
    request::{ApiRequest, Encoding, Form},
    response::{ApiResponse, Body},
    trace,
};
use bytes::Bytes;
use frames::Frames;
use futures_util::{Stream, StreamExt, stream};
use kaji_meta::{Status, random::fraction};
use kaji_store::Revision;
use source::{Next, Source};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Serves a watch. Once the request is understood, errors are events.
pub(crate) async fn watch(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let options = ListOptions::for_watch(req)?;
    if engine.is_shut_down() {
        // Not a watch that ends: clients would begin it again, and again.
        let mut status = Status::service_unavailable("apiserver is shutting down");
        status.details.get_or_insert_default().retry_after_seconds = 1;
        return Err(status);
    }
    let include =
        if req.accept.form == Form::Table { Include::from_request(req)? } else { Include::default() };
    if req.accept.encoding == Encoding::Yaml {
        return Err(not_acceptable());
    }
    let binary = req.accept.encoding == Encoding::Protobuf;
    let view = View::new(engine, res.clone(), &req.version, &req.accept, include)?.for_events();
    let separate = view.separate();
    let filter = list_options::filter(res, req, &options)?;
    let (stage, filter) = EventStage::new(res, &req.version, filter);
    let timeout = options.timeout.unwrap_or_else(|| default_timeout(engine));
    let span = trace::cached("cacher.Watch", &res.group_resource);
    let begun = Source::begin(engine, res, req, &options, filter, stage.batch_bytes()).await;
    drop(span);
    let body = match begun {
        // Its time was over before it began.
        Ok(_) if timeout.is_zero() => stream::empty().boxed(),
        // Its clients begin anew, with the definition that has come meanwhile.
        Ok(_) if outdated(engine, res) => stream::empty().boxed(),
        Err(status) => stream::iter([error_event(binary, &status)]).boxed(),
        Ok(source) => Box::pin(Watching {
            source,
            stage,
            frames: Frames::new(separate),
            headers: view.has_headers(),
            last: 0,
            deadline: Box::pin(sleep_until(Instant::now() + timeout)),
            bookmark: options.bookmarks.then(|| Box::pin(sleep(engine.options.bookmark_interval))),
            interval: engine.options.bookmark_interval,
            view,
        }),
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

/// How long a watch lasts that does not say: spread, so that clients that began together do not all come back together.
fn default_timeout(engine: &Engine) -> Duration {
    let least = engine.options.min_request_timeout;
    least + least.mul_f64(fraction(&*engine.random))
}

/// Whether a watch that has just begun looks through a definition that was replaced before it could be ended.
fn outdated(engine: &Engine, res: &Arc<Resource>) -> bool {
    let registry = engine.registry();
    registry.by_group_resource(&res.group_resource).is_some_and(|now| !Arc::ptr_eq(now, res))
}

/// 406: none of the forms that have event framing.
fn not_acceptable() -> Status {
    Status::not_acceptable(
        "only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
    )
}

/// The stream of a watch.
struct Watching {
    source: Source,
    stage: EventStage,
    view: View,
    frames: Frames,
    /// The next object is the first of a table, which says what its columns are.
    headers: bool,
    /// The last revision sent.
    last: Revision,
    deadline: Pin<Box<Sleep>>,
    bookmark: Option<Pin<Box<Sleep>>>,
    interval: Duration,
}

impl Watching {
    /// Queues a frame, or the error that there is instead, after which the watch ends. Whether it goes on.
    fn send(&mut self, revision: Revision, frame: Result<Bytes, Status>) -> bool {
        match frame {
            Ok(frame) => {
                self.headers = false;
                self.last = self.last.max(revision);
                self.frames.push(frame);
                true
            }
            Err(status) => {
                self.fail(&status);
                false
            }
        }
    }

    fn fail(&mut self, status: &Status) {
        self.frames.push(self.view.error(status));
        self.end();
    }

    /// Nothing more is sent than what is ready.
    fn end(&mut self) {
        self.source.end();
        self.stage.clear();
    }

    /// Encodes what has passed all stages.
    fn encode(&mut self, batch: Batch) {
        match batch {
            Batch::Initial(entries) => {
                for entry in entries {
                    let frame = self.view.added(&entry, self.headers);
                    if !self.send(0, frame) {
                        break;
                    }
                }
            }
            Batch::Events(mut events) => {
                for event in events.drain(..) {
                    let frame = self.view.event(&event, self.headers);
                    if !self.send(event.revision(), frame) {
                        break;
                    }
                }
                self.source.reuse(events);
            }
        }
    }

    fn next(&mut self, next: Next) {
        match next {
            Next::Batch(batch) => self.stage.accept(batch),
            Next::InitialEnd { revision, bookmark } => {
                if bookmark {
                    let frame = self.view.bookmark(revision, true, self.headers);
                    self.send(revision, frame);
                }
                self.last = revision;
            }
            Next::Failed(status) => self.fail(&status),
            Next::End => self.end(),
        }
    }

    /// A bookmark, if the watch has everything up to `applied`.
    fn send_bookmark(&mut self, applied: Revision) {
        if applied >= self.last {
            let frame = self.view.bookmark(applied, false, self.headers);
            self.send(applied, frame);
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

    /// Moves one batch on; false when nothing more comes. Pending when there is nothing to move.
    fn poll_batch(&mut self, over: bool, cx: &mut Context<'_>) -> Poll<bool> {
        // What has not been sent follows the last that was.
        if over && !(self.stage.is_empty() && self.source.is_live()) {
            self.end();
        }
        match std::task::ready!(self.stage.poll_next(cx)) {
            Some(Ok(batch)) => self.encode(batch),
            Some(Err(status)) => self.fail(&status),
            None => match self.source.poll_next(cx) {
                Poll::Ready(Next::End) => return Poll::Ready(false),
                Poll::Ready(_) if over => self.end(),
                Poll::Ready(next) => self.next(next),
                Poll::Pending if over => {
                    if self.bookmark.is_some() {
                        self.send_bookmark(self.source.applied());
                    }
                    self.end();
                }
                Poll::Pending => {
                    if !self.source.is_live() || !self.bookmark_due(cx) {
                        return Poll::Pending;
                    }
                    self.send_bookmark(self.source.applied());
                }
            },
        }
        Poll::Ready(true)
    }
}

impl Stream for Watching {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = &mut *self;
        loop {
            let over = !this.source.has_ended() && this.deadline.as_mut().poll(cx).is_ready();
            if over && !this.frames.is_empty() {
                // A reader that does not keep up has had its time, too. What it did not get follows the last that it got.
                this.frames.clear();
                return Poll::Ready(None);
            }
            if let Some(frame) = this.frames.pop() {
                return Poll::Ready(Some(frame));
            }
            let moved = this.poll_batch(over, cx);
            if moved == Poll::Ready(true) {
                continue;
            }
            this.frames.flush();
            match this.frames.pop() {
                Some(frame) => return Poll::Ready(Some(frame)),
                None if moved.is_pending() => return Poll::Pending,
                None => return Poll::Ready(None),
            }
        }
    }
}

//! The conversion stage of a watch: between where its events come from and where they are encoded.
//!
//! Invariants: what comes out is in the order in which it went in, and the next batch is accepted when all of the one before is out;
//! what is converted in the process passes at once.

use super::webhook::Reader;
use crate::{
    cache::{Filter, SelectedEntry, WatchEvent},
    registry::Resource,
};
use futures_util::{FutureExt, future::BoxFuture};
use kaji_meta::{Reason, Status};
use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
};

/// Bytes of objects that pass at once: about what is sent at once.
const PASSED_BYTES: usize = 64 << 10;

/// A piece of a watch.
pub(crate) enum Batch {
    /// Objects that were there when it began.
    Initial(Vec<SelectedEntry>),
    /// What happened since.
    Events(Vec<WatchEvent>),
}

/// The stage.
pub(crate) struct EventStage {
    webhook: Option<Webhook>,
    /// What passes as it is.
    passed: Option<Batch>,
}

/// Objects that a webhook converts. The source knows only where they are.
struct Webhook {
    reader: Reader,
    filter: Arc<Filter>,
    work: Option<BoxFuture<'static, Result<Batch, Status>>>,
    /// Objects that were there, not converted yet.
    initial: VecDeque<SelectedEntry>,
    /// Events that are to be converted after them.
    events: VecDeque<WatchEvent>,
}

impl EventStage {
    /// The stage of a watch with this filter, and the filter of its source.
    pub fn new(res: &Arc<Resource>, version: &str, filter: Filter) -> (EventStage, Filter) {
        let Some(reader) = Reader::of(res, version) else {
            return (EventStage { webhook: None, passed: None }, filter);
        };
        let place = filter.place();
        let (initial, events) = (VecDeque::new(), VecDeque::new());
        let webhook = Webhook { reader, filter: Arc::new(filter), work: None, initial, events };
        (EventStage { webhook: Some(webhook), passed: None }, place)
    }

    /// Bytes of objects in a batch: what is converted in the process is sent at once, while a webhook gets what fits into a request.
    pub fn batch_bytes(&self) -> usize {
        if self.webhook.is_some() { usize::MAX } else { PASSED_BYTES }
    }

    /// Accepts a batch, when the stage is empty.
    pub fn accept(&mut self, batch: Batch) {
        match (&mut self.webhook, batch) {
            (None, batch) => self.passed = Some(batch),
            (Some(webhook), Batch::Initial(entries)) => webhook.initial.extend(entries),
            (Some(webhook), Batch::Events(events)) => webhook.events.extend(events),
        }
    }

    /// The next that comes out, or why nothing more does; `None` when the stage is empty.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Batch, Status>>> {
        let Some(webhook) = &mut self.webhook else { return Poll::Ready(self.passed.take().map(Ok)) };
        let Some(work) = webhook.next() else { return Poll::Ready(None) };
        let done = std::task::ready!(work.poll_unpin(cx));
        webhook.work = None;
        Poll::Ready(Some(done.map_err(as_event)))
    }

    /// Whether all that was accepted is out.
    pub fn is_empty(&self) -> bool {
        let idle = |webhook: &Webhook| {
            webhook.work.is_none() && webhook.initial.is_empty() && webhook.events.is_empty()
        };
        self.passed.is_none() && self.webhook.as_ref().is_none_or(idle)
    }

    /// Drops what is in it.
    pub fn clear(&mut self) {
        self.passed = None;
        if let Some(webhook) = &mut self.webhook {
            webhook.work = None;
            webhook.initial.clear();
            webhook.events.clear();
        }
    }
}

impl Webhook {
    /// The conversion that is under way, or that of the next objects, as many as may be at once.
    fn next(&mut self) -> Option<&mut BoxFuture<'static, Result<Batch, Status>>> {
        if self.work.is_none() && !self.initial.is_empty() {
            let some = Reader::at_once(&self.initial, |entry| entry.object_len());
            let items: Vec<SelectedEntry> = self.initial.drain(..some).collect();
            let (reader, filter) = (self.reader.clone(), self.filter.clone());
            self.work =
                Some(Box::pin(async move { reader.select(items, &filter).await.map(Batch::Initial) }));
        } else if self.work.is_none() && !self.events.is_empty() {
            let some = Reader::at_once(&self.events, |event| event.bytes());
            let items = self.events.drain(..some).collect();
            let converted = self.reader.clone().events(items, self.filter.clone());
            self.work = Some(converted.map(|done| done.map(Batch::Events)).boxed());
        }
        self.work.as_mut()
    }
}

/// The status of an ERROR event for a conversion that failed.
fn as_event(status: Status) -> Status {
    if status.reason == Reason::Unknown && status.code == 500 {
        return Status { reason: Reason::InternalError, ..status };
    }
    status
}

//! The stream of one watch: history first, then the live queue, back to history whenever it was too slow.
//!
//! Invariant: `delivered` only grows, and every batch handed out covers exactly the revisions after the old
//! `delivered` up to the new one; that is why nothing is missing and nothing comes twice at the switches.

use super::Shared;
use super::hub::{Batch, Next, Subscriber};
use super::log::{Loc, Record};
use crate::{Event, EventKind, KeyValue, Revision, StoreError, WatchBatch, WatchStream};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// How much history one step of catching up reads.
const CHUNK_RECORDS: usize = 16 * 1024;
const CHUNK_EVENTS: usize = 1024;
const CHUNK_BYTES: usize = 4 << 20;

struct Watcher {
    shared: Arc<Shared>,
    subscriber: Arc<Subscriber>,
    delivered: Revision,
    ended: bool,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.hub.unsubscribe(&self.subscriber);
    }
}

/// Starts a watch; `from` is not 0.
pub(crate) fn watch(shared: &Arc<Shared>, prefix: &str, from: Revision) -> WatchStream {
    let subscriber = shared.hub.subscribe(prefix);
    // At once rather than when first polled: what is written in between is then kept in memory for it.
    shared.hub.go_live(&subscriber, from - 1);
    let watcher = Watcher { shared: shared.clone(), subscriber, delivered: from - 1, ended: false };
    Box::pin(futures_util::stream::unfold(watcher, |mut watcher| async move {
        if watcher.ended {
            return None;
        }
        let next = watcher.next().await;
        watcher.ended = next.is_err();
        Some((next, watcher))
    }))
}

impl Watcher {
    async fn next(&mut self) -> Result<WatchBatch, StoreError> {
        loop {
            let (hub, delivered) = (&self.shared.hub, self.delivered);
            let poll = std::future::poll_fn(|cx| hub.poll_next(&self.subscriber, delivered, cx));
            let batch = match poll.await {
                Next::Batches(batches) => live_batch(&batches, &self.subscriber.prefix, delivered),
                Next::Progress(revision) => WatchBatch::new(revision, Vec::new()),
                Next::Ended(reason) => return Err(reason),
                Next::Lagging => {
                    if let Some(reason) = hub.ended() {
                        return Err(reason);
                    }
                    if hub.go_live(&self.subscriber, delivered) {
                        continue;
                    }
                    self.history().await?
                }
            };
            if batch.revision > self.delivered {
                self.delivered = batch.revision;
                return Ok(batch);
            }
        }
    }

    async fn history(&self) -> Result<WatchBatch, StoreError> {
        let (shared, subscriber, delivered) = (self.shared.clone(), self.subscriber.clone(), self.delivered);
        super::blocking(move || {
            let read = match read_history(&shared, &subscriber.prefix, delivered) {
                // Once more: the file may have been replaced under it.
                Err(StoreError::Unavailable(_)) => read_history(&shared, &subscriber.prefix, delivered),
                read => read,
            };
            read.inspect_err(|error| shared.note(error))
        })
        .await
    }
}

/// Puts queued batches together, leaving out what was delivered already.
fn live_batch(batches: &VecDeque<Arc<Batch>>, prefix: &str, delivered: Revision) -> WatchBatch {
    let mut events = Vec::new();
    let mut positions = Vec::new();
    for batch in batches {
        positions.clear();
        positions.extend_from_slice(batch.matching(prefix));
        positions.sort_unstable();
        let entries = positions.iter().map(|i| &batch.entries[*i as usize].event);
        events.extend(entries.filter(|e| e.kv.mod_revision > delivered).cloned());
    }
    WatchBatch::new(batches.back().map_or(delivered, |b| b.last), events)
}

/// Reads some of what came after `delivered`, in whole transactions.
fn read_history(shared: &Shared, prefix: &str, delivered: Revision) -> Result<WatchBatch, StoreError> {
    // Not beyond what is published: a commit may be in the log and not be acknowledged yet.
    let to = shared.hub.published();
    let snapshot = shared.reader()?.snapshot()?;
    // Compaction raises this before it removes anything; so if it is low enough now, the snapshot has everything.
    let compacted = shared.index().compacted();
    if delivered < compacted {
        return Err(StoreError::Compacted { compacted });
    }
    let mut found: Vec<(Event, Option<Loc>)> = Vec::new();
    let (mut records, mut bytes, mut last) = (0, 0, delivered);
    let mut reached = to;
    snapshot.scan(delivered + 1, to, &mut |record| {
        let full = records >= CHUNK_RECORDS || found.len() >= CHUNK_EVENTS || bytes >= CHUNK_BYTES;
        if full && record.loc.revision != last {
            reached = last;
            return ControlFlow::Break(());
        }
        (records, last) = (records + 1, record.loc.revision);
        if record.key.starts_with(prefix) {
            bytes += record.value.len();
            found.push((event(record), record.previous));
        }
        ControlFlow::Continue(())
    })?;
    let mut events = Vec::with_capacity(found.len());
    for (mut event, previous) in found {
        if let Some(loc) = previous {
            event.previous = Some(super::log::read_key_value(&*snapshot, loc, &event.kv.key)?);
        }
        events.push(event);
    }
    Ok(WatchBatch::new(reached, events))
}

fn event(record: Record<'_>) -> Event {
    let kv = record.to_key_value(Arc::from(record.key));
    match record.kind {
        EventKind::Put => Event { kind: EventKind::Put, kv, previous: None },
        EventKind::Delete => Event {
            kind: EventKind::Delete,
            kv: KeyValue { create_revision: 0, version: 0, ..kv },
            previous: None,
        },
    }
}

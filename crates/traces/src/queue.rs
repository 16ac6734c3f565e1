//! Spans that have ended and wait for their export.
//!
//! Invariant: bounded; a span for which there is no place is dropped and counted, and nothing waits for a place.

use crate::otlp;
use prost::Message;
use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::Notify;

/// Bytes of spans in a batch: collectors take messages of 4 MiB, gRPC's default.
const BATCH_BYTES: usize = 3 << 20;

pub(crate) struct Queue {
    spans: Mutex<VecDeque<otlp::Span>>,
    places: usize,
    batch: usize,
    /// A batch is full.
    full: Notify,
    dropped: AtomicU64,
}

impl Queue {
    pub(crate) fn new(places: usize, batch: usize) -> Queue {
        let (spans, full, dropped) = (Mutex::default(), Notify::new(), AtomicU64::new(0));
        Queue { spans, places, batch: batch.max(1), full, dropped }
    }

    pub(crate) fn put(&self, span: otlp::Span) {
        let length = {
            let mut spans = self.lock();
            if spans.len() >= self.places {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            spans.push_back(span);
            spans.len()
        };
        if length >= self.batch {
            self.full.notify_one();
        }
    }

    /// The oldest spans, a batch of them at most, and no more than a message may hold.
    pub(crate) fn take(&self) -> Vec<otlp::Span> {
        let mut spans = self.lock();
        let mut bytes = 0;
        let fits = |span: &&otlp::Span| {
            bytes += span.encoded_len();
            bytes <= BATCH_BYTES
        };
        let end = spans.iter().take(self.batch).take_while(fits).count();
        let end = end.max(1).min(spans.len());
        spans.drain(..end).collect()
    }

    /// Resolves when there is a batch.
    pub(crate) async fn full(&self) {
        self.full.notified().await;
    }

    pub(crate) fn has_batch(&self) -> bool {
        self.lock().len() >= self.batch
    }

    /// Counts spans as dropped that were taken.
    pub(crate) fn lose(&self, spans: usize) {
        self.dropped.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<otlp::Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_place_is_dropped_and_counted() {
        let queue = Queue::new(3, 2);
        for i in 0..5 {
            queue.put(otlp::Span { name: i.to_string(), ..otlp::Span::default() });
        }
        let names = |spans: Vec<otlp::Span>| spans.into_iter().map(|s| s.name).collect::<Vec<_>>();
        assert_eq!(queue.dropped(), 2);
        assert!(queue.has_batch());
        assert_eq!(names(queue.take()), ["0", "1"]);
        assert_eq!(names(queue.take()), ["2"]);
        assert_eq!(names(queue.take()), Vec::<String>::new());
    }
}

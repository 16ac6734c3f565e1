//! When a response releases the seats of its request.
//!
//! Invariant: seats are released once, when the response is produced or after a limit, whichever comes first.

use super::Seat;
use crate::body::ResponseBody;
use bytes::Bytes;
use futures_util::{
    Stream,
    stream::{BoxStream, StreamExt},
};
use kaji_engine::ChunkIter;
use kaji_flowcontrol::WatchGuard;
use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::task::AbortHandle;

/// The same body, which releases the seats when it has been produced: a large list with its last piece, a watch after its
/// initial events, the body of an extension server at its end, any other body at once. A client that does not read holds
/// them for `limit`.
pub fn hold(body: ResponseBody, seat: Option<Seat>, limit: Duration) -> ResponseBody {
    let Some(mut seat) = seat else { return body };
    match body {
        ResponseBody::Lazy(pieces) => ResponseBody::Lazy(until_end(pieces, Lease::new(seat, limit))),
        ResponseBody::Gzip { pieces, encoder } => {
            ResponseBody::Gzip { pieces: until_end(pieces, Lease::new(seat, limit)), encoder }
        }
        ResponseBody::Stream(inner) => {
            let watch = seat.watch.take();
            let lease = Some(Lease::new(seat, limit));
            ResponseBody::Stream(Box::pin(InitialEvents { inner, lease, _watch: watch }))
        }
        ResponseBody::Proxied { inner, mut held } => {
            held.push(Box::new(Lease::new(seat, limit)));
            ResponseBody::Proxied { inner, held }
        }
        done => done,
    }
}

fn until_end(mut pieces: ChunkIter, lease: Lease) -> ChunkIter {
    let mut lease = Some(lease);
    Box::new(std::iter::from_fn(move || {
        let piece = pieces.next();
        if piece.is_none() {
            drop(lease.take());
        }
        piece
    }))
}

/// Seats that are released when this is dropped, or after a limit.
struct Lease {
    seat: Arc<Mutex<Option<Seat>>>,
    timer: AbortHandle,
}

impl Lease {
    fn new(seat: Seat, limit: Duration) -> Lease {
        let seat = Arc::new(Mutex::new(Some(seat)));
        let shared = seat.clone();
        let timer = tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            release(&shared);
        });
        Lease { seat, timer: timer.abort_handle() }
    }
}

fn release(seat: &Mutex<Option<Seat>>) {
    // Dropped without the lock: this wakes other requests.
    let seat = seat.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(seat);
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.timer.abort();
        release(&self.seat);
    }
}

/// A watch that releases its seats after its initial events.
struct InitialEvents {
    inner: BoxStream<'static, Bytes>,
    lease: Option<Lease>,
    /// Counts the watch until it ends.
    _watch: Option<WatchGuard>,
}

impl Stream for InitialEvents {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = self.get_mut();
        let next = this.inner.poll_next_unpin(cx);
        if next.is_pending() {
            this.lease = None;
        }
        next
    }
}

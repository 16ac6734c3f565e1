//! Until when an answer holds its request's seats.

use super::{Seat, Watching};
use crate::body::ResponseBody;
use bytes::Bytes;
use futures_util::{
    Stream,
    stream::{BoxStream, StreamExt},
};
use kaji_engine::ChunkIter;
use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::task::AbortHandle;

/// The same body, which gives the seats back when it is made: a large list once its last piece is, a watch once it has
/// sent what was there, what comes from elsewhere at its end, anything else at once. A client that does not read what it asked for keeps them for `most`.
pub fn hold(body: ResponseBody, seat: Option<Seat>, most: Duration) -> ResponseBody {
    let Some(mut seat) = seat else { return body };
    match body {
        ResponseBody::Lazy(pieces) => ResponseBody::Lazy(during(pieces, Lease::new(seat, most))),
        ResponseBody::Gzip { pieces, encoder } => {
            ResponseBody::Gzip { pieces: during(pieces, Lease::new(seat, most)), encoder }
        }
        ResponseBody::Stream(inner) => {
            let watching = seat.watching.take();
            let lease = Some(Lease::new(seat, most));
            ResponseBody::Stream(Box::pin(Beginning { inner, lease, _watching: watching }))
        }
        ResponseBody::Foreign { inner, mut held } => {
            held.push(Box::new(Lease::new(seat, most)));
            ResponseBody::Foreign { inner, held }
        }
        done => done,
    }
}

fn during(mut pieces: ChunkIter, lease: Lease) -> ChunkIter {
    let mut lease = Some(lease);
    Box::new(std::iter::from_fn(move || {
        let piece = pieces.next();
        if piece.is_none() {
            drop(lease.take());
        }
        piece
    }))
}

/// Seats that come back when it is dropped, or when its time is over.
struct Lease {
    seat: Arc<Mutex<Option<Seat>>>,
    timer: AbortHandle,
}

impl Lease {
    fn new(seat: Seat, most: Duration) -> Lease {
        let seat = Arc::new(Mutex::new(Some(seat)));
        let shared = seat.clone();
        let timer = tokio::spawn(async move {
            tokio::time::sleep(most).await;
            give_back(&shared);
        });
        Lease { seat, timer: timer.abort_handle() }
    }
}

fn give_back(seat: &Mutex<Option<Seat>>) {
    // Not under the lock: others wake up.
    let seat = seat.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(seat);
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.timer.abort();
        give_back(&self.seat);
    }
}

struct Beginning {
    inner: BoxStream<'static, Bytes>,
    lease: Option<Lease>,
    /// It counts as a watch until it ends, which is longer.
    _watching: Option<Watching>,
}

impl Stream for Beginning {
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

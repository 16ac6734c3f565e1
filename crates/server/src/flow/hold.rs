//! Until when an answer holds its request's seats.

use super::Seat;
use crate::body::ResponseBody;
use bytes::Bytes;
use futures_util::{
    Stream,
    stream::{BoxStream, StreamExt},
};
use kaji_engine::ChunkIter;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// The same body, which gives the seats back when it is made: a large list once its last piece is, a watch once it has
/// sent what was there, anything else at once.
pub fn hold(body: ResponseBody, seat: Option<Seat>) -> ResponseBody {
    let Some(seat) = seat else { return body };
    match body {
        ResponseBody::Lazy(pieces) => ResponseBody::Lazy(during(pieces, seat)),
        ResponseBody::Gzip { pieces, encoder } => {
            ResponseBody::Gzip { pieces: during(pieces, seat), encoder }
        }
        ResponseBody::Stream(inner) => {
            ResponseBody::Stream(Box::pin(Beginning { inner, seat: Some(seat), watching: None }))
        }
        done => done,
    }
}

fn during(mut pieces: ChunkIter, seat: Seat) -> ChunkIter {
    let mut seat = Some(seat);
    Box::new(std::iter::from_fn(move || {
        let piece = pieces.next();
        if piece.is_none() {
            drop(seat.take());
        }
        piece
    }))
}

struct Beginning {
    inner: BoxStream<'static, Bytes>,
    seat: Option<Seat>,
    /// It counts as a watch until it ends, which is longer.
    watching: Option<super::Watching>,
}

impl Stream for Beginning {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = self.get_mut();
        let next = this.inner.poll_next_unpin(cx);
        if next.is_pending()
            && let Some(mut seat) = this.seat.take()
        {
            this.watching = seat.watching.take();
        }
        next
    }
}

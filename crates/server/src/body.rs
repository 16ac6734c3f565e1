//! Response bodies over HTTP: whole, in shared pieces, or streamed.
//!
//! Invariants: pieces are handed to the connection as they are (no copy); at most one piece is in flight per poll, so
//! the connection's own back-pressure bounds memory; a compressed body is compressed piece by piece. Only a
//! proxied body can fail, which aborts its connection.

use crate::metrics::ResponseSize;
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_util::stream::{BoxStream, StreamExt};
use http_body::{Body, Frame, SizeHint};
use kaji_engine::ChunkIter;
use kaji_outbound::reverse_proxy::{ProxiedBody, ProxiedBodyError};
use std::{
    any::Any,
    io::Write,
    pin::Pin,
    task::{Context, Poll},
};

/// Answers smaller than this are sent as they are (upstream's threshold).
pub const GZIP_FROM: usize = 128 * 1024;

/// A response body.
pub enum ResponseBody {
    /// Everything at once; `None` once sent.
    Full(Option<Bytes>),
    /// Shared pieces with their total length.
    Chunks {
        /// Pieces left.
        pieces: std::vec::IntoIter<Bytes>,
        /// Bytes left.
        left: u64,
    },
    /// Pieces made while they are sent; their total is not known beforehand.
    Lazy(ChunkIter),
    /// Pieces compressed on the way.
    Gzip {
        /// Pieces left.
        pieces: ChunkIter,
        /// `None` once finished.
        encoder: Option<Box<GzEncoder<Vec<u8>>>>,
    },
    /// Until the stream ends.
    Stream(BoxStream<'static, Bytes>),
    /// Another server's.
    Proxied {
        /// As it comes.
        inner: ProxiedBody,
        /// What its request holds until it has ended.
        held: Vec<Box<dyn Any + Send>>,
    },
    /// A body with its size, which is counted while it is sent.
    Measured {
        /// The body.
        inner: Box<ResponseBody>,
        /// What has been sent of it.
        size: ResponseSize,
    },
}

impl ResponseBody {
    /// A body that is all there.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        ResponseBody::Full(Some(bytes.into()))
    }

    /// A body of pieces.
    pub fn chunks(pieces: Vec<Bytes>) -> Self {
        let left = pieces.iter().map(|p| p.len() as u64).sum();
        ResponseBody::Chunks { pieces: pieces.into_iter(), left }
    }

    /// Keeps something until the body has been sent, if that takes time.
    pub fn hold(&mut self, what: impl Send + 'static) {
        match self {
            ResponseBody::Stream(stream) => {
                let inner = std::mem::replace(stream, futures_util::stream::empty().boxed());
                *stream = inner
                    .map(move |piece| {
                        let _held = &what;
                        piece
                    })
                    .boxed();
            }
            ResponseBody::Proxied { held, .. } => held.push(Box::new(what)),
            ResponseBody::Measured { inner, .. } => inner.hold(what),
            _ => {}
        }
    }

    /// The same body, with its size counted while it is sent.
    pub(crate) fn measured(self, size: ResponseSize) -> Self {
        ResponseBody::Measured { inner: Box::new(self), size }
    }

    /// The same body compressed, when it is large enough to be worth it. Streams stay as they are.
    pub fn gzip(self) -> (Self, bool) {
        let pieces: ChunkIter = match self {
            ResponseBody::Full(Some(bytes)) if bytes.len() >= GZIP_FROM => Box::new(std::iter::once(bytes)),
            ResponseBody::Chunks { pieces, left } if left >= GZIP_FROM as u64 => Box::new(pieces),
            ResponseBody::Lazy(pieces) => pieces,
            other => return (other, false),
        };
        let encoder = Some(Box::new(GzEncoder::new(Vec::new(), Compression::new(1))));
        (ResponseBody::Gzip { pieces, encoder }, true)
    }
}

/// Compresses pieces until some output is there; 64 KiB a frame keeps memory flat.
fn compress(pieces: &mut ChunkIter, encoder: &mut Option<Box<GzEncoder<Vec<u8>>>>) -> Option<Bytes> {
    const FRAME: usize = 64 * 1024;
    let gz = encoder.as_mut()?;
    for piece in pieces {
        // Writing into a Vec cannot fail.
        let _ = gz.write_all(&piece);
        if gz.get_ref().len() >= FRAME {
            return Some(Bytes::from(std::mem::take(gz.get_mut())));
        }
    }
    encoder.take()?.finish().ok().map(Bytes::from)
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ProxiedBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxiedBodyError>>> {
        let next = match self.get_mut() {
            ResponseBody::Full(bytes) => bytes.take().filter(|b| !b.is_empty()),
            ResponseBody::Chunks { pieces, left } => {
                let piece = pieces.next();
                *left -= piece.as_ref().map_or(0, |p| p.len() as u64);
                piece
            }
            ResponseBody::Lazy(pieces) => pieces.next(),
            ResponseBody::Gzip { pieces, encoder } => compress(pieces, encoder),
            ResponseBody::Stream(stream) => match stream.poll_next_unpin(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(piece) => piece,
            },
            ResponseBody::Proxied { inner, .. } => return Pin::new(inner).poll_frame(cx),
            ResponseBody::Measured { inner, size } => {
                let polled = Pin::new(&mut **inner).poll_frame(cx);
                if let Poll::Ready(Some(Ok(frame))) = &polled {
                    size.sent(frame.data_ref().map_or(0, Bytes::len));
                }
                return polled;
            }
        };
        Poll::Ready(next.map(|b| Ok(Frame::data(b))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Full(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            ResponseBody::Chunks { pieces, .. } => pieces.len() == 0,
            ResponseBody::Gzip { encoder, .. } => encoder.is_none(),
            ResponseBody::Lazy(_) | ResponseBody::Stream(_) => false,
            ResponseBody::Proxied { inner, .. } => inner.is_end_stream(),
            ResponseBody::Measured { inner, .. } => inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            ResponseBody::Chunks { left, .. } => SizeHint::with_exact(*left),
            ResponseBody::Lazy(_) | ResponseBody::Gzip { .. } | ResponseBody::Stream(_) => {
                SizeHint::default()
            }
            ResponseBody::Proxied { inner, .. } => inner.size_hint(),
            ResponseBody::Measured { inner, .. } => inner.size_hint(),
        }
    }
}

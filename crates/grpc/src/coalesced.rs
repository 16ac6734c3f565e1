//! A connection that sends what several tasks have to say in one write.
//!
//! HTTP/2 flushes after each frame that it finds, so that the head and the message of a call, and calls made at the same moment, would
//! be as many writes here and as many reads at the peer, which cost both more than the frames do. So the first flush waits for one
//! turn of the tasks that are ready; what they add goes along.
//!
//! Invariants: bytes go out in the order in which they came; nothing waits for longer than a turn, or than the socket takes; what is
//! held is bounded.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are held before they are written whatever follows.
const HELD: usize = 64 << 10;

/// See the module.
pub(crate) struct Coalesced<S> {
    inner: S,
    held: Vec<u8>,
    /// How much of it has been written.
    written: usize,
    /// The turn has been waited for.
    waited: bool,
}

impl<S> Coalesced<S> {
    pub fn new(inner: S) -> Coalesced<S> {
        Coalesced { inner, held: vec![], written: 0, waited: false }
    }
}

impl<S: AsyncWrite + Unpin> Coalesced<S> {
    /// Writes what is held.
    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.held.len() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &self.held[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                length => self.written += length,
            }
        }
        self.held.clear();
        // A large message does not leave its size behind.
        self.held.shrink_to(HELD);
        (self.written, self.waited) = (0, false);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Coalesced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Coalesced<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.held.len() >= HELD {
            ready!(self.poll_written(cx))?;
        }
        let before = self.held.len();
        parts.iter().for_each(|part| self.held.extend_from_slice(part));
        Poll::Ready(Ok(self.held.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() && !self.waited && self.held.len() < HELD {
            self.waited = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_written(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_written(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Takes so many bytes at a time, and remembers what each write was of.
    #[derive(Default)]
    struct Socket {
        at_once: usize,
        writes: Vec<Vec<u8>>,
    }

    impl AsyncWrite for Socket {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let taken = bytes.len().min(self.at_once);
            self.writes.push(bytes[..taken].to_vec());
            Poll::Ready(Ok(taken))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_comes_before_the_flush_is_one_write() {
        let mut coalesced = Coalesced::new(Socket { at_once: usize::MAX, ..Socket::default() });
        coalesced.write_all(b"head").await.unwrap();
        let first = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut coalesced).poll_flush(cx))).await;
        assert!(first.is_pending() && coalesced.inner.writes.is_empty());
        coalesced.write_all(b"body").await.unwrap();
        coalesced.flush().await.unwrap();
        assert_eq!(coalesced.inner.writes, [b"headbody".to_vec()]);
        // The next one waits anew; the end waits for nothing.
        coalesced.write_all(b"last").await.unwrap();
        coalesced.shutdown().await.unwrap();
        assert_eq!(coalesced.inner.writes.last().unwrap(), b"last");
    }

    proptest! {
        #[test]
        fn bytes_keep_their_order(
            parts in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..40_000), any::<bool>()), 0..12),
            at_once in 1_usize..50_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let seen = runtime.block_on(async {
                let mut coalesced = Coalesced::new(Socket { at_once, ..Socket::default() });
                for (bytes, flush) in &parts {
                    coalesced.write_all(bytes).await.unwrap();
                    if *flush {
                        coalesced.flush().await.unwrap();
                        assert!(coalesced.held.is_empty());
                    }
                    assert!(coalesced.held.len() < HELD + 40_000);
                }
                coalesced.shutdown().await.unwrap();
                coalesced.inner.writes.concat()
            });
            prop_assert_eq!(seen, parts.iter().flat_map(|(bytes, _)| bytes.clone()).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn reads_are_those_of_the_connection() {
        let (near, mut far) = tokio::io::duplex(64);
        far.write_all(b"answer").await.unwrap();
        drop(far);
        let mut read = vec![];
        Coalesced::new(near).read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"answer");
    }
}

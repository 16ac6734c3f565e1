//! A connection that fails when its peer does not read.
//!
//! Invariant: a write that has made no progress for so long fails; one that does, however slowly, goes on.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// A connection that fails when its other side stops reading.
pub struct Stall<S> {
    inner: S,
    most: Duration,
    timer: Pin<Box<Sleep>>,
    /// A write waits, and the timer runs.
    waits: bool,
}

impl<S> Stall<S> {
    /// Lets a write wait for so long.
    pub fn new(inner: S, most: Duration) -> Self {
        Stall { inner, most, timer: Box::pin(sleep(most)), waits: false }
    }

    /// What came of a write.
    fn settle<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.waits = false;
            return outcome;
        }
        if !self.waits {
            self.waits = true;
            self.timer.as_mut().reset(Instant::now() + self.most);
        }
        ready!(self.timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stall<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stall<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.settle(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_flush(cx);
        self.settle(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.settle(cx, outcome)
    }
}

//! Ends watches of clients that do not read. The engine ends a watch at its deadline when the HTTP connection polls it; a
//! connection that waits for its client to read polls nothing.
//!
//! Invariants:
//! - What a watch holds is released `GRACE` after its deadline at the latest, whether its client reads or not.
//! - A connection on which a write has waited for `GRACE` by then, and so no stream can make progress, is aborted. Others
//!   stay open: the body ends when it is polled again.

use crate::body::ResponseBody;
use bytes::Bytes;
use futures_util::{
    Stream,
    stream::{BoxStream, StreamExt},
    task::AtomicWaker,
};
use kaji_meta::Query;
use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::AbortHandle,
    time::Instant,
};

/// How long after its deadline a watch may still wait for its client to read.
const GRACE: Duration = Duration::from_secs(5);
/// The engine chooses the timeout of a watch without `timeoutSeconds` between 30 minutes and this.
const LONGEST: Duration = Duration::from_secs(3600);

/// Aborts a connection with blocked writes. In the extensions of its requests.
#[derive(Clone, Default)]
pub struct ConnectionAbort(Arc<WriteState>);

#[derive(Default)]
struct WriteState {
    /// Since when a write waits for the client to read.
    blocked_since: Mutex<Option<Instant>>,
    aborted: AtomicBool,
    /// Wakes the connection's task.
    waker: AtomicWaker,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionAbort {
    /// Wraps the connection's socket.
    pub fn socket<S>(&self, inner: S) -> AbortableSocket<S> {
        AbortableSocket { inner, state: self.0.clone(), blocked: false }
    }

    /// Aborts the connection if a write has been blocked for so long.
    fn abort_if_blocked(&self, duration: Duration) {
        let since = *lock(&self.0.blocked_since);
        if since.is_some_and(|since| since.elapsed() >= duration) {
            self.0.aborted.store(true, Ordering::Release);
            self.0.waker.wake();
        }
    }
}

/// A socket: its blocked writes can be aborted.
pub struct AbortableSocket<S> {
    inner: S,
    state: Arc<WriteState>,
    blocked: bool,
}

impl<S> AbortableSocket<S> {
    /// Notes whether a write is blocked.
    fn track(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if outcome.is_ready() {
            if std::mem::take(&mut self.blocked) {
                *lock(&self.state.blocked_since) = None;
            }
            return outcome;
        }
        if !std::mem::replace(&mut self.blocked, true) {
            *lock(&self.state.blocked_since) = Some(Instant::now());
        }
        self.state.waker.register(cx.waker());
        if self.state.aborted.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AbortableSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AbortableSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.track(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(cx, parts);
        self.track(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// A watch's events until they end or are taken away.
struct Revocable {
    events: Arc<Mutex<Option<BoxStream<'static, Bytes>>>>,
    timer: AbortHandle,
}

impl Stream for Revocable {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match &mut *lock(&self.events) {
            Some(events) => events.poll_next_unpin(cx),
            None => Poll::Ready(None),
        }
    }
}

impl Drop for Revocable {
    fn drop(&mut self) {
        self.timer.abort();
        // An aborted task drops what it holds later: the watch ends now, and is recorded before what follows it.
        let events = lock(&self.events).take();
        drop(events);
    }
}

/// When the engine ends a watch at the latest.
pub fn timeout(query: &Query) -> Duration {
    let seconds = query.number("timeoutSeconds").ok().flatten().and_then(|n| u64::try_from(n).ok());
    seconds.filter(|n| *n > 0).map_or(LONGEST, Duration::from_secs)
}

/// The body of a watch that the engine ends after `timeout`, ended also when its client does not read.
pub fn enforce(body: ResponseBody, timeout: Duration, connection: Option<ConnectionAbort>) -> ResponseBody {
    let ResponseBody::Stream(events) = body else { return body };
    let events = Arc::new(Mutex::new(Some(events)));
    let blocked = events.clone();
    let timer = tokio::spawn(async move {
        tokio::time::sleep(timeout.saturating_add(GRACE)).await;
        // Dropped without the lock: what the watch holds wakes other tasks.
        let events = lock(&blocked).take();
        drop(events);
        if let Some(connection) = connection {
            connection.abort_if_blocked(GRACE);
        }
    });
    ResponseBody::Stream(Box::pin(Revocable { events, timer: timer.abort_handle() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use hyper_util::{
        rt::{TokioExecutor, TokioIo},
        server::conn::auto,
    };
    use std::convert::Infallible;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// An HTTP/2 client's preface, its empty settings, and `GET /` on stream 1.
    const HTTP2_REQUEST: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
        \x00\x00\x00\x04\x00\x00\x00\x00\x00\
        \x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x84\x87\x41\x01\x61";

    /// Serves watches that never end by themselves, until the connection has ended and released them. Returns how long that
    /// took.
    async fn serve(server: DuplexStream) -> Duration {
        let held = Arc::new(());
        let (abort, watched) = (ConnectionAbort::default(), Arc::downgrade(&held));
        let socket = abort.socket(server);
        let service = hyper::service::service_fn(move |_: http::Request<hyper::body::Incoming>| {
            let watched = watched.upgrade();
            let events = stream::repeat(Bytes::from_static(&[b'x'; 4096])).map(move |event| {
                let _held = &watched;
                event
            });
            let body = enforce(ResponseBody::Stream(events.boxed()), TIMEOUT, Some(abort.clone()));
            async move { Ok::<_, Infallible>(http::Response::new(body)) }
        });
        let began = Instant::now();
        let builder = auto::Builder::new(TokioExecutor::new());
        builder.serve_connection(TokioIo::new(socket), service).await.unwrap_err();
        // Streams of HTTP/2 are tasks, which end after their connection.
        while Arc::strong_count(&held) > 1 {
            tokio::task::yield_now().await;
        }
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn ends_watches_of_clients_that_never_read() {
        for request in [&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..], HTTP2_REQUEST] {
            let (mut client, server) = duplex(1024);
            client.write_all(request).await.unwrap();
            let took = serve(server).await;
            assert!(took >= TIMEOUT && took <= TIMEOUT + 2 * GRACE, "{took:?}");
            drop(client);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn releases_a_watch_that_is_not_polled() {
        let held = Arc::new(());
        let watched = held.clone();
        let events = stream::pending::<Bytes>().map(move |event| {
            let _held = &watched;
            event
        });
        let body = enforce(ResponseBody::Stream(events.boxed()), TIMEOUT, None);
        tokio::time::sleep(TIMEOUT + 2 * GRACE).await;
        assert_eq!(Arc::strong_count(&held), 1);
        let ResponseBody::Stream(mut events) = body else { panic!("another body") };
        assert_eq!(events.next().await, None);
    }
}

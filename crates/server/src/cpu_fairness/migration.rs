//! A connection that migrates between lanes: its task, its TLS session and its socket continue on the threads of the lane
//! that its last request belongs to.
//!
//! Invariants:
//! - A connection moves between two polls only, as a whole; the first poll on the new threads is certain, so no wake-up is
//!   lost.
//! - Its socket is registered with the threads that read it, so that the default lane is not woken by a flood.
//! - What counts it (its slot, its part in a graceful shutdown) moves along.

use super::{AtomicLane, Lane, Lanes};
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    runtime::Handle,
};

/// A connection's task. It is done when the connection is, or when the connection has moved to another task.
pub struct MigratingConnection<F> {
    /// `None` once it has moved.
    connection: Option<Pin<Box<F>>>,
    lanes: Arc<Lanes>,
    /// The default lane's threads.
    default: Handle,
    target: AtomicLane,
    current: AtomicLane,
}

impl<F: Future<Output = ()> + Send + 'static> MigratingConnection<F> {
    /// A connection that starts in the default lane, on these threads. `target` is the lane that it should be in, `current`
    /// the one that it is in, for its socket.
    pub fn new(connection: F, lanes: Arc<Lanes>, target: AtomicLane, current: AtomicLane) -> Self {
        let connection = Some(Box::pin(connection));
        MigratingConnection { connection, lanes, default: Handle::current(), target, current }
    }

    /// Continues in that lane; stays if that has no threads.
    fn migrate(&mut self, cx: &mut Context<'_>, lane: Lane) -> Poll<()> {
        let from = self.current.get();
        self.current.set(lane);
        let (lanes, default) = (self.lanes.clone(), self.default.clone());
        let moved = MigratingConnection {
            connection: self.connection.take(),
            lanes: lanes.clone(),
            default: default.clone(),
            target: self.target.clone(),
            current: self.current.clone(),
        };
        match lane {
            Lane::Default => drop(default.spawn(moved)),
            Lane::Busy => {
                if let Err(refused) = lanes.spawn_busy(moved) {
                    *self = refused;
                    self.current.set(from);
                    self.target.set(from);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(())
    }
}

impl<F: Future<Output = ()> + Send + 'static> Future for MigratingConnection<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(()) };
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match self.target.get() {
            lane if lane == self.current.get() => Poll::Pending,
            lane => self.migrate(cx, lane),
        }
    }
}

/// The socket of a migrating connection.
pub struct MigratingSocket {
    /// `None` after it could not be moved.
    stream: Option<TcpStream>,
    /// The lane that it is registered with (its threads poll it).
    registered: Lane,
    current: AtomicLane,
}

impl MigratingSocket {
    /// A socket that is registered with these threads. `current` is the lane of its connection.
    pub fn new(stream: TcpStream, current: AtomicLane) -> Self {
        MigratingSocket { stream: Some(stream), registered: current.get(), current }
    }

    /// The stream, registered with the calling threads if the connection has moved.
    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let current = self.current.get();
        if current != self.registered {
            let moved = self.stream.take().map(|s| TcpStream::from_std(s.into_std()?));
            self.stream = moved.transpose()?;
            self.registered = current;
        }
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for MigratingSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for MigratingSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    /// Each byte is a request: it belongs to the busy lane or not. The answer says whether it was read in the busy lane.
    async fn serve(mut socket: MigratingSocket, target: AtomicLane) {
        while let Ok(busy) = socket.read_u8().await {
            target.set(if busy == 1 { Lane::Busy } else { Lane::Default });
            let current = std::thread::current().name() == Some("kaji-busy");
            socket.write_u8(u8::from(current)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_connection_moves_to_the_lane_of_its_last_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (current, target) = (AtomicLane::default(), AtomicLane::default());
        let connection = serve(MigratingSocket::new(stream, current.clone()), target.clone());
        let served = tokio::spawn(MigratingConnection::new(connection, Lanes::new(1), target, current));
        for busy in [0, 1, 0, 1] {
            // The request that sets the target is still served in the lane of the one before.
            loop {
                client.write_u8(busy).await.unwrap();
                if client.read_u8().await.unwrap() == busy {
                    break;
                }
            }
        }
        // Its first task is done, though the connection is not.
        served.await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_stays_without_busy_threads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (current, target, lanes) = (AtomicLane::default(), AtomicLane::default(), Lanes::new(1));
        lanes.shut_down();
        let connection = serve(MigratingSocket::new(stream, current.clone()), target.clone());
        let served = tokio::spawn(MigratingConnection::new(connection, lanes, target, current));
        for busy in [1, 1, 0, 1] {
            client.write_u8(busy).await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), 0);
        }
        drop(client);
        served.await.unwrap();
    }

    #[tokio::test]
    async fn a_task_ends_with_its_connection() {
        let (current, target) = (AtomicLane::default(), AtomicLane::default());
        target.set(Lane::Busy);
        MigratingConnection::new(async {}, Lanes::new(1), target, current.clone()).await;
        assert_eq!(current.get(), Lane::Default);
    }
}

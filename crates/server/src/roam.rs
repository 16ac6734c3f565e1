//! A connection that changes threads: its task, its TLS and its socket go on in the lane that its last request belongs to.
//!
//! Invariants:
//! - A connection moves between two polls only, whole; the first poll on the new threads is certain, so no wake is lost.
//! - Its socket is watched by the threads that it is read on, so that the calm ones hear nothing of a flood.
//! - What counts it (its slot, its part in a graceful end) moves along.

use crate::flow::{Lane, Lanes, SharedLane};
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

/// A connection's task. It is done when the connection is, or when it goes on elsewhere.
pub struct Roaming<F> {
    /// `None` once it has left.
    connection: Option<Pin<Box<F>>>,
    lanes: Arc<Lanes>,
    /// The calm lane's threads.
    calm: Handle,
    wish: SharedLane,
    here: SharedLane,
}

impl<F: Future<Output = ()> + Send + 'static> Roaming<F> {
    /// A connection that starts in the calm lane, on these threads. `wish` says where it should be, `here` tells its socket
    /// where it is.
    pub fn new(connection: F, lanes: Arc<Lanes>, wish: SharedLane, here: SharedLane) -> Self {
        Roaming { connection: Some(Box::pin(connection)), lanes, calm: Handle::current(), wish, here }
    }

    /// Goes on in that lane; stays if that has no threads.
    fn leave(&mut self, cx: &mut Context<'_>, lane: Lane) -> Poll<()> {
        let from = self.here.get();
        self.here.set(lane);
        let (lanes, calm) = (self.lanes.clone(), self.calm.clone());
        let there = Roaming {
            connection: self.connection.take(),
            lanes: lanes.clone(),
            calm: calm.clone(),
            wish: self.wish.clone(),
            here: self.here.clone(),
        };
        match lane {
            Lane::Calm => drop(calm.spawn(there)),
            Lane::Busy => {
                if let Err(back) = lanes.run_busy(there) {
                    *self = back;
                    self.here.set(from);
                    self.wish.set(from);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(())
    }
}

impl<F: Future<Output = ()> + Send + 'static> Future for Roaming<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(()) };
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match self.wish.get() {
            lane if lane == self.here.get() => Poll::Pending,
            lane => self.leave(cx, lane),
        }
    }
}

/// A socket that moves along.
pub struct Socket {
    /// `None` after it could not be moved.
    stream: Option<TcpStream>,
    /// The lane whose threads watch it.
    watched: Lane,
    here: SharedLane,
}

impl Socket {
    /// A socket that these threads watch, of a connection that is there.
    pub fn new(stream: TcpStream, here: SharedLane) -> Self {
        Socket { stream: Some(stream), watched: here.get(), here }
    }

    /// The stream, watched by the threads that ask for it if the connection has moved.
    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let here = self.here.get();
        if here != self.watched {
            let moved = self.stream.take().map(|s| TcpStream::from_std(s.into_std()?));
            self.stream = moved.transpose()?;
            self.watched = here;
        }
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
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

    /// Each byte is a request: it belongs to the busy lane or not, and is answered with whether it was read there.
    async fn serve(mut socket: Socket, wish: SharedLane) {
        while let Ok(busy) = socket.read_u8().await {
            wish.set(if busy == 1 { Lane::Busy } else { Lane::Calm });
            let here = std::thread::current().name() == Some("kaji-busy");
            socket.write_u8(u8::from(here)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_connection_goes_where_its_last_request_belongs() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (here, wish) = (SharedLane::default(), SharedLane::default());
        let connection = serve(Socket::new(stream, here.clone()), wish.clone());
        let served = tokio::spawn(Roaming::new(connection, Lanes::new(1), wish, here));
        for busy in [0, 1, 0, 1] {
            // The request that brings the wish is still dealt with where the one before was.
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
    async fn without_busy_threads_it_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (here, wish, lanes) = (SharedLane::default(), SharedLane::default(), Lanes::new(1));
        lanes.end();
        let connection = serve(Socket::new(stream, here.clone()), wish.clone());
        let served = tokio::spawn(Roaming::new(connection, lanes, wish, here));
        for busy in [1, 1, 0, 1] {
            client.write_u8(busy).await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), 0);
        }
        drop(client);
        served.await.unwrap();
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_the_end_of_its_task() {
        let (here, wish) = (SharedLane::default(), SharedLane::default());
        wish.set(Lane::Busy);
        Roaming::new(async {}, Lanes::new(1), wish, here.clone()).await;
        assert_eq!(here.get(), Lane::Calm);
    }
}

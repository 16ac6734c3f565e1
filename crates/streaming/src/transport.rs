//! What sessions share, whatever carries their streams: queues of bytes to and from a client, and the time of the last message.
//!
//! Invariants:
//! - A queue to the client is one per connection and bounded; what fills it waits until the client reads.
//! - A queue from the client is one per stream. It is bounded in chunks, and all queues of a connection in bytes. A full one
//!   stops the connection's reader.

use bytes::{Bytes, BytesMut};
use kaji_containers::{Reader, Writer};
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, sleep_until},
};

/// Bytes that are read of a process at once, and the most that goes into one message.
const CHUNK: usize = 32 << 10;
/// Messages to the client that wait.
const OUTGOING: usize = 16;
/// Chunks of a stream that a process has not read.
const INCOMING: usize = 1024;
/// Bytes of all streams of a connection that processes have not read.
const BUDGET: u32 = 4 << 20;
/// What a chunk counts at least.
const OVERHEAD: usize = 256;
/// Shorter pieces are copied, so that they do not keep the buffer that they arrived in.
const COPIED: usize = 4 << 10;

/// The client, or the connection to it, is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has closed the connection")]
pub(crate) struct Gone;

/// A message to the client. `stream` is a stream of SPDY or a channel of a WebSocket.
#[derive(Debug)]
pub(crate) enum Message {
    /// Bytes of a stream.
    Data { stream: u32, data: Bytes },
    /// No more bytes of a stream follow.
    Finish { stream: u32 },
    /// A stream ends in both directions.
    Reset { stream: u32, status: u32 },
    /// A stream of the client is accepted.
    Reply { stream: u32 },
    /// The client's ping is answered.
    Pong(u32),
    /// The connection ends once everything before is sent.
    Close { status: u32 },
}

/// Sends messages to the client.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing(mpsc::Sender<Message>);

/// Messages that the connection's writer sends.
pub(crate) type OutgoingQueue = mpsc::Receiver<Message>;

pub(crate) fn outgoing() -> (Outgoing, OutgoingQueue) {
    let (sender, receiver) = mpsc::channel(OUTGOING);
    (Outgoing(sender), receiver)
}

impl Outgoing {
    /// Waits until the message is queued.
    pub(crate) async fn send(&self, message: Message) -> Result<(), Gone> {
        self.0.send(message).await.map_err(|_| Gone)
    }

    pub(crate) async fn data(&self, stream: u32, data: impl Into<Bytes>) -> Result<(), Gone> {
        self.send(Message::Data { stream, data: data.into() }).await
    }

    /// Sends unless the queue is full: for what is worth nothing when the client does not read.
    pub(crate) fn offer(&self, message: Message) {
        // A full queue is the point; a closed one is found by the next send.
        let _ = self.0.try_send(message);
    }

    /// Copies until the source ends. Errors of the source end it as its end does.
    pub(crate) async fn copy(&self, stream: u32, source: &mut Reader) -> Result<(), Gone> {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK);
            match source.read_buf(&mut buffer).await {
                Ok(0) => return Ok(()),
                Ok(_) => {
                    while !buffer.is_empty() {
                        let piece = buffer.split_to(buffer.len().min(CHUNK));
                        self.data(stream, piece).await?;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "streaming: a process's output ended");
                    return Ok(());
                }
            }
        }
    }
}

/// Bytes of a client, counted until they are dropped.
#[derive(Debug)]
pub(crate) struct Chunk {
    bytes: Bytes,
    _counted: OwnedSemaphorePermit,
}

impl Chunk {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes of one of the client's streams, until it ends.
#[derive(Debug)]
pub(crate) struct Incoming(mpsc::Receiver<Chunk>);

impl Incoming {
    pub(crate) async fn next(&mut self) -> Option<Chunk> {
        self.0.recv().await
    }

    /// Copies to a process until the stream ends, and closes the process's input then. An error is one of writing.
    pub(crate) async fn copy(&mut self, mut to: Writer) -> io::Result<()> {
        while let Some(chunk) = self.next().await {
            to.write_all(chunk.bytes()).await?;
            to.flush().await?;
        }
        to.shutdown().await
    }

    /// Reads and drops until the stream ends.
    pub(crate) async fn drain(&mut self) {
        while self.next().await.is_some() {}
    }
}

/// Where a connection's reader puts the bytes of a stream.
pub(crate) type IncomingSender = mpsc::Sender<Chunk>;

pub(crate) fn incoming() -> (IncomingSender, Incoming) {
    let (sender, receiver) = mpsc::channel(INCOMING);
    (sender, Incoming(receiver))
}

/// The bytes of a connection's streams that no process has read.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new() -> Budget {
        Budget(Arc::new(Semaphore::new(BUDGET as usize)))
    }

    /// Queues bytes of a stream once there is room; they are dropped if the stream is not read any more.
    pub(crate) async fn deliver(&self, sender: &IncomingSender, mut data: Bytes) {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(CHUNK));
            let bytes = if piece.len() < COPIED { Bytes::copy_from_slice(&piece) } else { piece };
            let count = bytes.len().max(OVERHEAD) as u32;
            let charge = self.0.clone().acquire_many_owned(count);
            let charged = tokio::select! {
                charged = charge => charged,
                () = sender.closed() => return,
            };
            // The semaphore is never closed.
            let Ok(permit) = charged else { return };
            if sender.send(Chunk { bytes, _counted: permit }).await.is_err() {
                return;
            }
        }
    }
}

/// When a message last came or went.
#[derive(Debug, Clone)]
pub(crate) struct Activity(Arc<Mutex<Instant>>);

impl Activity {
    pub(crate) fn new() -> Activity {
        Activity(Arc::new(Mutex::new(Instant::now())))
    }

    pub(crate) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until there was none for that long.
    pub(crate) async fn idle(&self, timeout: Duration) {
        loop {
            let deadline = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + timeout;
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }
}

/// What a session does when nothing can be sent to its client any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WithoutClient {
    /// It ends.
    Ends,
    /// It reads what the client had written.
    ReadsOn,
}

/// Runs a session's work beside the reader and the writer of its connection. The session ends with its work, after which what
/// is queued is sent; or without it when the client is gone or idle.
pub(crate) async fn run(
    work: impl Future<Output = ()> + Send,
    reader: impl Future<Output = ()> + Send,
    writer: impl Future<Output = ()> + Send,
    (activity, idle): (Activity, Duration),
    without_client: WithoutClient,
) {
    let (mut reader, mut writer) = (std::pin::pin!(reader), std::pin::pin!(writer));
    {
        let (mut work, mut idle) = (std::pin::pin!(work), std::pin::pin!(activity.idle(idle)));
        let mut writes = true;
        loop {
            tokio::select! {
                () = &mut work => if writes { break } else { return },
                () = &mut reader => return,
                () = &mut writer, if writes => match without_client {
                    WithoutClient::Ends => return,
                    WithoutClient::ReadsOn => writes = false,
                },
                () = &mut idle => {
                    tracing::debug!("streaming: a session was idle for too long");
                    return;
                }
            }
        }
    }
    // What the client still sends is read, so that closing the connection does not reset what was sent to it.
    let closing = async {
        tokio::select! {
            () = &mut writer => (&mut reader).await,
            () = &mut reader => (&mut writer).await,
        }
    };
    if tokio::time::timeout(CLOSING, closing).await.is_err() {
        tracing::debug!("streaming: a connection did not close in time");
    }
}

/// How long the end of a connection may take.
const CLOSING: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    /// Whether the reader gets to its end when nothing can be written.
    async fn reads_to_the_end(without_client: WithoutClient) -> bool {
        let (sender, mut written) = mpsc::channel(1);
        let reader = async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            sender.send(()).await.unwrap();
        };
        let times = (Activity::new(), Duration::from_secs(60));
        run(pending(), reader, ready(()), times, without_client).await;
        written.try_recv().is_ok()
    }

    #[tokio::test]
    async fn reads_what_a_client_wrote_that_reads_nothing_any_more() {
        assert!(reads_to_the_end(WithoutClient::ReadsOn).await);
        assert!(!reads_to_the_end(WithoutClient::Ends).await);
    }

    #[tokio::test]
    async fn ends_with_its_work_when_the_client_is_gone() {
        let times = (Activity::new(), Duration::from_secs(60));
        let work = tokio::task::yield_now();
        run(work, pending(), ready(()), times, WithoutClient::ReadsOn).await;
    }
}

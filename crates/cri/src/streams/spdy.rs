//! The client's side of a SPDY/3.1 connection: opens streams, and moves bytes between them and the connection.
//!
//! Invariants:
//! - Bytes of a stream are delivered in order, and those of all streams in the order in which they come: what came before a
//!   stream's last byte can be read once that byte can.
//! - A stream that is not read holds up the others of its connection; the buffers are bounded.
//! - The connection ends with its last handle.

use bytes::{Bytes, BytesMut};
use kaji_streaming::spdy::{Decoder, Encoder, Frame, Headers, SpdyError};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Bytes that are read at once, and the most that goes into one frame.
const CHUNK: usize = 32 << 10;
/// Frames are gathered up to this.
const WRITE: usize = 64 << 10;
/// Bytes of a stream that wait to be read.
const BUFFER: usize = 256 << 10;
/// Frames that wait to be written.
const OUTGOING: usize = 16;

/// A task that ends with what holds it.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where the bytes of each stream go; `None` once the server has finished it.
type Sinks = Arc<Mutex<HashMap<u32, DuplexStream>>>;

fn lock(sinks: &Sinks) -> MutexGuard<'_, HashMap<u32, DuplexStream>> {
    sinks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection.
pub struct Connection {
    outgoing: mpsc::Sender<Frame>,
    sinks: Sinks,
    next: u32,
    tasks: Vec<Task>,
}

/// A stream: what comes of it, and what goes into it.
pub struct Stream {
    /// Ends when the server has finished or reset the stream, or the connection has ended.
    pub reader: DuplexStream,
    /// Goes to the server.
    pub writer: StreamWriter,
}

/// What goes into a stream.
#[derive(Clone)]
pub struct StreamWriter {
    id: u32,
    outgoing: mpsc::Sender<Frame>,
}

fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::BrokenPipe,
        "the connection to the container runtime's streaming server has ended",
    )
}

impl StreamWriter {
    /// Sends bytes; waits while the server does not read.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn write(&self, data: Bytes) -> io::Result<()> {
        self.outgoing.send(Frame::Data { stream: self.id, fin: false, data }).await.map_err(|_| gone())
    }

    /// Says that no more bytes follow.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn finish(&self) -> io::Result<()> {
        let frame = Frame::Data { stream: self.id, fin: true, data: Bytes::new() };
        self.outgoing.send(frame).await.map_err(|_| gone())
    }

    /// Copies until the source ends, and finishes the stream.
    ///
    /// # Errors
    /// The source's, or that the connection has ended.
    pub async fn copy(&self, mut source: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK);
            let read = (&mut source).take(CHUNK as u64).read_buf(&mut buffer).await?;
            if read == 0 {
                return self.finish().await;
            }
            self.write(buffer.split().freeze()).await?;
        }
    }
}

impl Connection {
    /// Speaks SPDY on a connection that has been upgraded.
    ///
    /// # Errors
    /// When the compression cannot be set up.
    pub fn start(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Result<Connection, SpdyError> {
        let (read, write) = tokio::io::split(io);
        let (outgoing, queue) = mpsc::channel(OUTGOING);
        let sinks = Sinks::default();
        let encoder = Encoder::new()?;
        let (kept, answers) = (sinks.clone(), outgoing.downgrade());
        let reading = tokio::spawn(async move {
            if let Err(error) = receive(read, &kept, &answers).await {
                tracing::debug!(%error, "a streaming connection to the container runtime ended");
            }
            lock(&kept).clear();
        });
        let writing = tokio::spawn(async move {
            if let Err(error) = send(write, queue, encoder).await {
                tracing::debug!(%error, "a streaming connection to the container runtime cannot be written");
            }
        });
        Ok(Connection { outgoing, sinks, next: 1, tasks: vec![Task(reading), Task(writing)] })
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn open(&mut self, headers: &[(&str, &str)]) -> io::Result<Stream> {
        let id = self.next;
        self.next += 2;
        let (sink, reader) = tokio::io::duplex(BUFFER);
        lock(&self.sinks).insert(id, sink);
        let frame = Frame::SynStream {
            stream: id,
            associated: 0,
            priority: 0,
            fin: false,
            unidirectional: false,
            headers: Headers::of(headers),
        };
        self.outgoing.send(frame).await.map_err(|_| gone())?;
        if self.tasks.iter().any(|task| task.0.is_finished()) {
            // The reader has cleared the table, perhaps before this stream came into it.
            lock(&self.sinks).remove(&id);
        }
        Ok(Stream { reader, writer: StreamWriter { id, outgoing: self.outgoing.clone() } })
    }
}

async fn receive(
    mut io: ReadHalf<impl AsyncRead>,
    sinks: &Sinks,
    answers: &mpsc::WeakSender<Frame>,
) -> io::Result<()> {
    let mut decoder = Decoder::default();
    loop {
        match decoder.decode() {
            Ok(Some(frame)) => {
                if !take(frame, sinks, answers).await {
                    return Ok(());
                }
            }
            Ok(None) => {
                let buffer = decoder.buffer();
                buffer.reserve(CHUNK);
                if io.read_buf(buffer).await? == 0 {
                    return Ok(());
                }
            }
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

/// False when the server ends the connection.
async fn take(frame: Frame, sinks: &Sinks, answers: &mpsc::WeakSender<Frame>) -> bool {
    match frame {
        Frame::Data { stream, fin, data } => {
            // It is not in the table meanwhile; this is the only task that looks for it.
            let sink = lock(sinks).remove(&stream);
            if let Some(mut sink) = sink {
                // What is not read any more is dropped.
                let delivered = sink.write_all(&data).await.is_ok();
                if delivered && !fin {
                    lock(sinks).insert(stream, sink);
                }
            }
        }
        Frame::RstStream { stream, .. }
        | Frame::SynReply { stream, fin: true, .. }
        | Frame::Headers { stream, fin: true, .. } => drop(lock(sinks).remove(&stream)),
        // Odd ids are those of our own pings, and none is sent.
        Frame::Ping(id) if id % 2 == 0 => {
            if let Some(answers) = answers.upgrade() {
                // A writer that has ended ends the connection.
                let _ = answers.send(Frame::Ping(id)).await;
            }
        }
        Frame::GoAway { .. } => return false,
        Frame::SynStream { .. }
        | Frame::SynReply { .. }
        | Frame::Headers { .. }
        | Frame::Ping(_)
        | Frame::Settings(_)
        | Frame::WindowUpdate { .. } => {}
    }
    true
}

async fn send(
    mut io: WriteHalf<impl AsyncWrite>,
    mut queue: mpsc::Receiver<Frame>,
    mut encoder: Encoder,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(frame) = queue.recv().await {
        let mut next = Some(frame);
        while let Some(frame) = next.take() {
            let encoded = encoder.encode(&frame, &mut buffer);
            encoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            if buffer.len() < WRITE {
                next = queue.try_recv().ok();
            }
        }
        io.write_all(&buffer).await?;
        io.flush().await?;
        buffer.clear();
    }
    io.shutdown().await
}

//! The server's side of a SPDY/3.1 connection: accepts streams, and moves bytes between them and the connection.
//!
//! Invariants:
//! - Frames of streams that have ended are ignored, as upstream's peers do; so are windows, which they never keep.
//! - Streams are bounded; one too many is refused.

use super::{Decoder, Encoder, Frame, Headers, SpdyError, go_away, reset};
use crate::transport::{
    Activity, Budget, Incoming, IncomingSender, Message, Outgoing, OutgoingQueue, incoming, outgoing,
};
use bytes::{Bytes, BytesMut};
use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf},
    sync::{mpsc, oneshot},
};

/// Bytes that are read at once.
const READ: usize = 32 << 10;
/// Frames are gathered up to this.
const WRITE: usize = 64 << 10;
/// Streams that the session has not taken.
const NEW_STREAMS: usize = 16;

/// A stream that the client has opened.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: u32,
    pub(crate) headers: Headers,
    pub(crate) incoming: Incoming,
    /// Resolves when the client has reset the stream, or the connection has ended.
    pub(crate) gone: oneshot::Receiver<()>,
}

/// The streams that are open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams(Arc<Mutex<HashMap<u32, Open>>>);

#[derive(Debug)]
struct Open {
    /// `None` once the client has finished it.
    incoming: Option<IncomingSender>,
    _gone: oneshot::Sender<()>,
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a stream: what still comes of it is dropped.
    pub(crate) fn remove(&self, stream: u32) {
        self.lock().remove(&stream);
    }

    fn sender(&self, stream: u32) -> Option<IncomingSender> {
        self.lock().get(&stream)?.incoming.clone()
    }

    fn finish(&self, stream: u32) {
        if let Some(open) = self.lock().get_mut(&stream) {
            open.incoming = None;
        }
    }
}

/// What to accept.
#[derive(Clone, Copy)]
pub(crate) struct Accept {
    /// Streams that are open at a time.
    pub(crate) streams: usize,
    /// Whether a stream with these headers is accepted; the reason if not.
    pub(crate) check: fn(&Headers) -> Result<(), String>,
}

/// A connection: its parts are driven by the session's future.
pub(crate) struct Connection<S> {
    reader: ConnectionReader<S>,
    writer: ConnectionWriter<S>,
}

/// What a session does with its connection.
pub(crate) struct Handle {
    pub(crate) outgoing: Outgoing,
    pub(crate) streams: Streams,
    pub(crate) new_streams: mpsc::Receiver<Stream>,
}

impl<S: AsyncRead + AsyncWrite + Send> Connection<S> {
    pub(crate) fn new(io: S, accept: Accept, activity: &Activity) -> Result<(Self, Handle), SpdyError> {
        let (read, write) = tokio::io::split(io);
        let (outgoing, queue) = outgoing();
        let (sender, new_streams) = mpsc::channel(NEW_STREAMS);
        let streams = Streams::default();
        let reader = ConnectionReader {
            io: read,
            accept,
            activity: activity.clone(),
            outgoing: outgoing.clone(),
            streams: streams.clone(),
            new_streams: sender,
            budget: Budget::new(),
            next_stream: 1,
        };
        let writer =
            ConnectionWriter { io: write, queue, activity: activity.clone(), encoder: Encoder::new()? };
        Ok((Connection { reader, writer }, Handle { outgoing, streams, new_streams }))
    }

    /// The futures that read and write; they end with their direction of the connection.
    pub(crate) fn drive(self) -> (impl Future<Output = ()> + Send, impl Future<Output = ()> + Send) {
        let (mut reader, writer) = (self.reader, self.writer);
        let reading = async move {
            let result = reader.read().await;
            reader.streams.lock().clear();
            if let Err(error) = result {
                tracing::debug!(%error, "streaming: a SPDY connection ended");
            }
        };
        let writing = async move {
            if let Err(error) = writer.write().await {
                tracing::debug!(%error, "streaming: a SPDY connection cannot be written");
            }
        };
        (reading, writing)
    }
}

struct ConnectionReader<S> {
    io: ReadHalf<S>,
    accept: Accept,
    activity: Activity,
    outgoing: Outgoing,
    streams: Streams,
    new_streams: mpsc::Sender<Stream>,
    budget: Budget,
    /// The smallest id that the client's next stream may have.
    next_stream: u32,
}

impl<S: AsyncRead> ConnectionReader<S> {
    async fn read(&mut self) -> io::Result<()> {
        let mut decoder = Decoder::default();
        loop {
            match decoder.decode() {
                Ok(Some(frame)) => {
                    self.activity.note();
                    if !self.frame(frame).await {
                        return Ok(());
                    }
                }
                Ok(None) => {
                    let buffer = decoder.buffer();
                    buffer.reserve(READ);
                    if self.io.read_buf(buffer).await? == 0 {
                        return Ok(());
                    }
                }
                Err(error) => {
                    self.outgoing.offer(Message::Close { status: go_away::PROTOCOL_ERROR });
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
    }

    /// False when the client ends the connection.
    async fn frame(&mut self, frame: Frame) -> bool {
        match frame {
            Frame::Data { stream, fin, data } => {
                if let Some(sender) = self.streams.sender(stream) {
                    self.budget.deliver(&sender, data).await;
                }
                if fin {
                    self.streams.finish(stream);
                }
            }
            Frame::SynStream { stream, fin, headers, .. } => self.open(stream, fin, headers).await,
            Frame::RstStream { stream, .. } => self.streams.remove(stream),
            // Even ids are those of our pings, and we send none.
            Frame::Ping(id) if id % 2 == 1 => self.outgoing.offer(Message::Pong(id)),
            Frame::GoAway { .. } => return false,
            Frame::Headers { stream, fin: true, .. } | Frame::SynReply { stream, fin: true, .. } => {
                self.streams.finish(stream);
            }
            Frame::Ping(_)
            | Frame::Headers { .. }
            | Frame::SynReply { .. }
            | Frame::Settings(_)
            | Frame::WindowUpdate { .. } => {}
        }
        true
    }

    async fn open(&mut self, stream: u32, fin: bool, headers: Headers) {
        let refusal = if stream < self.next_stream {
            Some((reset::PROTOCOL_ERROR, "invalid stream id".to_owned()))
        } else if self.streams.lock().len() >= self.accept.streams {
            Some((reset::REFUSED_STREAM, "too many streams".to_owned()))
        } else {
            (self.accept.check)(&headers).err().map(|reason| (reset::CANCEL, reason))
        };
        self.next_stream = self.next_stream.max(stream.saturating_add(2));
        if let Some((status, reason)) = refusal {
            tracing::debug!(stream, reason, "streaming: a stream was refused");
            // The writer's end ends the session.
            let _ = self.outgoing.send(Message::Reset { stream, status }).await;
            return;
        }
        let ((sender, incoming), (gone_sender, gone)) = (incoming(), oneshot::channel());
        let open = Open { incoming: (!fin).then_some(sender), _gone: gone_sender };
        self.streams.lock().insert(stream, open);
        // As above.
        let _ = self.outgoing.send(Message::Reply { stream }).await;
        if self.new_streams.send(Stream { id: stream, headers, incoming, gone }).await.is_err() {
            self.streams.remove(stream);
            let _ = self.outgoing.send(Message::Reset { stream, status: reset::REFUSED_STREAM }).await;
        }
    }
}

struct ConnectionWriter<S> {
    io: WriteHalf<S>,
    queue: OutgoingQueue,
    activity: Activity,
    encoder: Encoder,
}

impl<S: AsyncWrite> ConnectionWriter<S> {
    /// Sends what is queued until the connection is closed, or no message can come any more.
    async fn write(mut self) -> io::Result<()> {
        let mut buffer = BytesMut::new();
        while let Some(message) = self.queue.recv().await {
            let mut next = Some(message);
            while let Some(message) = next.take() {
                let close = matches!(message, Message::Close { .. });
                let encoded = self.encoder.encode(&frame(message), &mut buffer);
                encoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                if close {
                    self.io.write_all(&buffer).await?;
                    self.io.flush().await?;
                    return self.io.shutdown().await;
                }
                if buffer.len() < WRITE {
                    next = self.queue.try_recv().ok();
                }
            }
            self.io.write_all(&buffer).await?;
            self.io.flush().await?;
            buffer.clear();
            self.activity.note();
        }
        self.io.shutdown().await
    }
}

fn frame(message: Message) -> Frame {
    match message {
        Message::Data { stream, data } => Frame::Data { stream, fin: false, data },
        Message::Finish { stream } => Frame::Data { stream, fin: true, data: Bytes::new() },
        Message::Reset { stream, status } => Frame::RstStream { stream, status },
        Message::Reply { stream } => Frame::SynReply { stream, fin: false, headers: Headers::default() },
        Message::Pong(id) => Frame::Ping(id),
        Message::Close { status } => Frame::GoAway { last: 0, status },
    }
}

//! Calls over a connection that the caller has opened: TCP, TLS, anything that carries bytes.
//!
//! Invariants: messages are of bounded size in both directions; a connection is closed when its peer does not answer pings any
//! more, and its calls end; the windows of streams that are not read leave room for the others.

use crate::{CallError, MESSAGE_LIMIT, Messages, client, coalesced::Coalesced};
use client::{Connection, Sender};
use futures_util::Stream;
use http::Uri;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::{Code, client::Grpc};

/// How a connection is used.
#[derive(Clone, Debug)]
pub struct ChannelOptions {
    /// Scheme and authority that requests name.
    pub origin: Uri,
    /// Bytes of a message.
    pub message_limit: usize,
    /// Bytes of a stream that may be on their way without having been read.
    pub stream_window: u32,
    /// The same of all streams together.
    pub connection_window: u32,
    /// How often the peer is asked for a sign of life while there are calls.
    pub ping_interval: Duration,
    /// How long it may take to answer.
    pub ping_timeout: Duration,
}

impl ChannelOptions {
    /// The defaults for a peer.
    #[must_use]
    pub fn new(origin: Uri) -> ChannelOptions {
        ChannelOptions {
            origin,
            message_limit: MESSAGE_LIMIT,
            stream_window: 1 << 20,
            connection_window: 16 << 20,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(10),
        }
    }
}

/// A connection; clones share it. It ends when the last clone and the last answer are dropped.
#[derive(Clone)]
pub struct Channel {
    sender: Sender,
    origin: Uri,
    limit: usize,
}

impl Channel {
    /// Begins HTTP/2 over an open connection.
    ///
    /// # Errors
    /// When the peer does not speak it.
    pub async fn over<S>(stream: S, options: &ChannelOptions) -> io::Result<Channel>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(options.stream_window)
            .initial_connection_window_size(options.connection_window)
            .keep_alive_interval(options.ping_interval)
            .keep_alive_timeout(options.ping_timeout)
            .handshake(TokioIo::new(Coalesced::new(stream)));
        let (sender, connection) = handshake.await.map_err(io::Error::other)?;
        // Ends when the peer hangs up, or when no sender is left.
        tokio::spawn(connection);
        Ok(Channel { sender, origin: options.origin.clone(), limit: options.message_limit })
    }

    /// Whether no further call can be made.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends one message and waits for one, `timeout` at most.
    ///
    /// # Errors
    /// `Unavailable` when the connection broke, `DeadlineExceeded` after the timeout, else the peer's.
    pub async fn unary<M, R>(
        &self,
        method: &'static str,
        message: M,
        timeout: Duration,
    ) -> Result<R, CallError>
    where
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let call = async { client::unary(&mut self.grpc().await?, method, message, timeout).await };
        tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| Err(client::late()))
    }

    /// Sends messages as they come, while the peer sends any number. `metadata` goes with the request. `timeout` is for the
    /// answer's begin, which needs the first message at once with most services.
    ///
    /// # Errors
    /// As [`Channel::unary`]'s.
    pub async fn streaming<S, M, R>(
        &self,
        method: &'static str,
        messages: S,
        metadata: &[(&'static str, &'static str)],
        timeout: Duration,
    ) -> Result<Messages<R>, CallError>
    where
        S: Stream<Item = M> + Send + 'static,
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let call = async {
            let mut grpc = self.grpc().await?;
            let (mut request, path, codec) = client::parts(method, messages, None);
            for (key, value) in metadata {
                let value = value.parse().map_err(|_| CallError::new(Code::Internal, "unusable metadata"))?;
                request.metadata_mut().insert(*key, value);
            }
            let answer = grpc.streaming(request, path, codec).await.map_err(client::failed)?;
            Ok(Messages::new(answer.into_inner()))
        };
        tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| Err(client::late()))
    }

    async fn grpc(&self) -> Result<Grpc<Connection>, CallError> {
        client::ready(self.sender.clone(), self.origin.clone(), self.limit).await
    }
}

//! Calls: one connection to a unix socket, shared by all calls.

use crate::{CallError, MESSAGE_LIMIT, error::lost};
use futures_util::{FutureExt, future::BoxFuture};
use http::Uri;
use http::uri::PathAndQuery;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::{Code, Request, Status, Streaming, body::Body, client::Grpc};
use tonic_prost::ProstCodec;

pub(crate) type Sender = SendRequest<Body>;

/// A connection as tonic needs it.
pub(crate) struct Connection(pub(crate) Sender);

impl tower_service::Service<http::Request<Body>> for Connection {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Self::Response, Status>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.0.poll_ready(cx).map_err(|e| lost(&e))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.0.send_request(request).map(|r| r.map_err(|e| lost(&e))).boxed()
    }
}

/// Between attempts to reach a peer that is not there, within one call that waits for it.
const RETRY: Duration = Duration::from_millis(100);

/// A peer that listens on a unix socket. Nothing is connected before the first call; a call fails at once when the socket
/// does not accept connections, unless it waits for the peer.
pub struct Client {
    path: PathBuf,
    limit: usize,
    waits: bool,
    open: tokio::sync::Mutex<Option<Sender>>,
    /// Why the last attempt to connect failed; `None` after one that did not.
    refused: Mutex<Option<CallError>>,
}

impl Client {
    /// The peer at a socket's path; a path that begins with a zero byte is a name without a file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Client {
        let (open, refused) = (tokio::sync::Mutex::default(), Mutex::default());
        Client { path: path.into(), limit: MESSAGE_LIMIT, waits: false, open, refused }
    }

    /// The peer of an endpoint, `unix:///run/plugin.sock` or a plain absolute path; `None` for one of another form.
    #[must_use]
    pub fn of_endpoint(endpoint: &str) -> Option<Client> {
        let path = match endpoint.strip_prefix("unix:") {
            None => endpoint,
            Some(rest) => match rest.strip_prefix("//") {
                None => rest,
                Some(rest) => &rest[rest.find('/')?..],
            },
        };
        match path.strip_prefix("/@") {
            // The system's notation for names that are no files.
            Some(name) => Some(Client::new(format!("\0{name}"))),
            None if path.starts_with('/') => Some(Client::new(path)),
            None => None,
        }
    }

    /// With another limit of a message, in bytes.
    #[must_use]
    pub fn message_limit(mut self, bytes: usize) -> Client {
        self.limit = bytes;
        self
    }

    /// With calls that wait, until their deadline, for a peer that is not there yet: gRPC's option `WaitForReady`.
    #[must_use]
    pub fn waiting_for_peer(mut self) -> Client {
        self.waits = true;
        self
    }

    /// The socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends one message and waits for one, `timeout` at most. `method` is a path, `/package.Service/Method`.
    ///
    /// # Errors
    /// `Unavailable` when the socket cannot be connected to or the connection broke, `DeadlineExceeded` after the timeout,
    /// else the peer's.
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
        let call = async { unary(&mut self.grpc().await?, method, message, timeout).await };
        self.settle(tokio::time::timeout(timeout, call).await)
    }

    /// Sends one message; the peer answers with any number. `timeout` is for the connection and the answer's begin; the
    /// messages come without a deadline, until the answer is dropped.
    ///
    /// # Errors
    /// As [`Client::unary`]'s.
    pub async fn server_streaming<M, R>(
        &self,
        method: &'static str,
        message: M,
        timeout: Duration,
    ) -> Result<Messages<R>, CallError>
    where
        M: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let call = async {
            let mut grpc = self.grpc().await?;
            let (request, path, codec) = parts(method, message, None);
            Ok(Messages(grpc.server_streaming(request, path, codec).await?.into_inner()))
        };
        self.settle(tokio::time::timeout(timeout, call).await)
    }

    /// Connects now, unless there is a connection.
    ///
    /// # Errors
    /// `Unavailable` when the socket cannot be connected to.
    pub async fn connect(&self) -> Result<(), CallError> {
        self.connected().await.map(drop)
    }

    /// Whether there is a connection that the peer has not closed, or one is being made.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.open.try_lock().map_or(true, |open| open.as_ref().is_some_and(|sender| !sender.is_closed()))
    }

    /// A connection that failed, or that did not answer in time, is not used again.
    fn settle<T>(
        &self,
        outcome: Result<Result<T, CallError>, tokio::time::error::Elapsed>,
    ) -> Result<T, CallError> {
        let outcome = outcome.unwrap_or_else(|_| {
            Err(self.refusal().map_or_else(late, |refused| {
                CallError::new(Code::DeadlineExceeded, format!("latest balancer error: {}", refused.message))
            }))
        });
        let broken = |e: &CallError| matches!(e.code, Code::Unavailable | Code::DeadlineExceeded);
        // If the lock is taken, a call makes a new connection already.
        if outcome.as_ref().is_err_and(broken)
            && let Ok(mut open) = self.open.try_lock()
        {
            open.take();
        }
        outcome
    }

    async fn grpc(&self) -> Result<Grpc<Connection>, CallError> {
        ready(self.connected().await?, Uri::from_static("http://localhost"), self.limit).await
    }

    async fn connected(&self) -> Result<Sender, CallError> {
        let mut open = self.open.lock().await;
        if let Some(sender) = open.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let sender = loop {
            match self.try_connect().await {
                // The caller limits the time.
                Err(_) if self.waits => tokio::time::sleep(RETRY).await,
                attempt => break attempt?,
            }
        };
        *open = Some(sender.clone());
        Ok(sender)
    }

    /// Why the last attempt to connect failed, if it did and calls wait.
    fn refusal(&self) -> Option<CallError> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(|_| self.waits)
    }

    async fn try_connect(&self) -> Result<Sender, CallError> {
        let attempt = connect(&self.path).await.map_err(|error| {
            let path = self.path.to_string_lossy().replace('\0', "@");
            let text = format!(
                "connection error: desc = \"transport: Error while dialing: dial unix {path}: connect: {}\"",
                reason(&error)
            );
            CallError::new(Code::Unavailable, text)
        });
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = attempt.as_ref().err().cloned();
        attempt
    }
}

/// The messages of an answer, in order.
pub struct Messages<R>(Streaming<R>);

impl<R> Messages<R> {
    /// The next message; `None` after the last one.
    ///
    /// # Errors
    /// The peer's, or `Unavailable` when the connection broke.
    pub async fn next(&mut self) -> Result<Option<R>, CallError> {
        self.0.message().await.map_err(failed)
    }

    pub(crate) fn new(messages: Streaming<R>) -> Messages<R> {
        Messages(messages)
    }
}

/// What a reset or closed connection is to tonic, is `Unavailable` here.
pub(crate) fn failed(status: Status) -> CallError {
    let broken = matches!(status.code(), Code::Unknown | Code::Internal)
        && std::error::Error::source(&status).is_some();
    let error = CallError::from(status);
    if broken { CallError { code: Code::Unavailable, ..error } } else { error }
}

/// The error of a call after its deadline.
pub(crate) fn late() -> CallError {
    CallError::new(Code::DeadlineExceeded, "context deadline exceeded")
}

/// What makes calls over a connection, when it can take one. `limit` is that of a message, in bytes.
pub(crate) async fn ready(sender: Sender, origin: Uri, limit: usize) -> Result<Grpc<Connection>, CallError> {
    let mut grpc = Grpc::with_origin(Connection(sender), origin)
        .max_decoding_message_size(limit)
        .max_encoding_message_size(limit);
    grpc.ready().await?;
    Ok(grpc)
}

/// Sends one message and receives one. The timeout goes with the request.
pub(crate) async fn unary<M, R>(
    grpc: &mut Grpc<Connection>,
    method: &'static str,
    message: M,
    timeout: Duration,
) -> Result<R, CallError>
where
    M: Message + Send + Sync + 'static,
    R: Message + Default + Send + Sync + 'static,
{
    let (request, path, codec) = parts(method, message, Some(timeout));
    grpc.unary(request, path, codec).await.map(tonic::Response::into_inner).map_err(failed)
}

/// A request for a method, with what encodes its messages.
pub(crate) fn parts<T, M, R>(
    method: &'static str,
    body: T,
    timeout: Option<Duration>,
) -> (Request<T>, PathAndQuery, ProstCodec<M, R>) {
    let mut request = Request::new(body);
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    (request, PathAndQuery::from_static(method), ProstCodec::default())
}

async fn connect(path: &Path) -> io::Result<Sender> {
    let stream = UnixStream::connect(path).await?;
    let (sender, connection) =
        handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // Ends when the peer hangs up, or when no sender is left.
    tokio::spawn(connection);
    Ok(sender)
}

/// The system's words without Rust's number behind them.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".into(),
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

//! The three calls of a plugin: gRPC over a unix socket.
//!
//! Invariants:
//! - A call ends within its timeout, whatever the plugin does, and waits that long for a plugin that is not there yet.
//! - One connection at a time; a new one after a failure, so that a plugin that was started anew is found.

use super::api;
use crate::metrics::Metrics;
use futures_util::{FutureExt, future::BoxFuture};
use http::Uri;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{net::UnixStream, time::Instant};
use tonic::{Code, Status, body::Body, client::Grpc};

const STATUS: &str = "/v2.KeyManagementService/Status";
const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";
const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";

/// Between attempts to reach a plugin that is not there, within one call.
const RETRY: Duration = Duration::from_millis(100);

/// A plugin that did not carry a call out. Reads as upstream's does.
#[derive(Debug, thiserror::Error)]
#[error("rpc error: code = {} desc = {text}", code_name(*.code))]
pub struct CallError {
    code: Code,
    text: String,
}

impl CallError {
    /// The name of its code.
    pub fn code(&self) -> &'static str {
        code_name(self.code)
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        CallError { code: status.code(), text: status.message().to_owned() }
    }
}

/// As Go names them, also in metrics.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// The socket of an endpoint, `unix:///run/plugin.sock` or (without a file) `unix:///@name`. `None`: it is none.
pub fn socket(endpoint: &str) -> Option<String> {
    let rest = endpoint.strip_prefix("unix:")?;
    let path = match rest.strip_prefix("//") {
        Some(rest) => &rest[rest.find('/')?..],
        None => rest,
    };
    match path.strip_prefix("/@") {
        // The system's notation for names that are no files.
        Some(name) => Some(format!("\0{name}")),
        None => Some(path.to_owned()).filter(|p| p.starts_with('/')),
    }
}

type Sender = SendRequest<Body>;

/// A connection as tonic needs it.
struct Connection(Sender);

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

fn lost(error: &hyper::Error) -> Status {
    Status::unavailable(format!("error reading from server: {error}"))
}

/// A plugin's socket.
pub struct Client {
    plugin: String,
    path: String,
    timeout: Duration,
    metrics: Arc<Metrics>,
    open: tokio::sync::Mutex<Option<Sender>>,
    /// Why the last attempt to connect failed; `None` after one that did not.
    refused: Mutex<Option<String>>,
}

impl Client {
    pub fn new(plugin: &str, path: String, timeout: Duration, metrics: Arc<Metrics>) -> Self {
        let (plugin, open, refused) = (plugin.to_owned(), Default::default(), Default::default());
        Client { plugin, path, timeout, metrics, open, refused }
    }

    pub async fn status(&self) -> Result<api::StatusResponse, CallError> {
        self.call(STATUS, api::StatusRequest {}).await
    }

    pub async fn encrypt(&self, request: api::EncryptRequest) -> Result<api::EncryptResponse, CallError> {
        self.call(ENCRYPT, request).await
    }

    pub async fn decrypt(&self, request: api::DecryptRequest) -> Result<api::DecryptResponse, CallError> {
        self.call(DECRYPT, request).await
    }

    async fn call<M, R>(&self, method: &'static str, message: M) -> Result<R, CallError>
    where
        M: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let started = Instant::now();
        let answer = match tokio::time::timeout(self.timeout, self.send(method, message)).await {
            Ok(answer) => answer.map_err(CallError::from),
            Err(_) => Err(self.too_late()),
        };
        if answer.as_ref().is_err_and(|e| matches!(e.code, Code::Unavailable | Code::DeadlineExceeded)) {
            // A connection that does not answer is not used again. The holder of the lock makes a new one.
            if let Ok(mut open) = self.open.try_lock() {
                open.take();
            }
        }
        let code = answer.as_ref().map_or_else(|e| code_name(e.code), |_| "OK");
        self.metrics.called(&self.plugin, method, code, started.elapsed());
        answer
    }

    async fn send<M, R>(&self, method: &'static str, message: M) -> Result<R, Status>
    where
        M: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let connection = Connection(self.connected().await);
        let mut grpc = Grpc::with_origin(connection, Uri::from_static("http://localhost"));
        grpc.ready().await?;
        let (path, codec) =
            (http::uri::PathAndQuery::from_static(method), tonic_prost::ProstCodec::default());
        Ok(grpc.unary(tonic::Request::new(message), path, codec).await?.into_inner())
    }

    fn too_late(&self) -> CallError {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = refused.map_or_else(
            || "context deadline exceeded".into(),
            |why| {
                format!(
                    "latest balancer error: connection error: desc = \"transport: error while dialing: dial unix {}: \
                     connect: {why}\"",
                    self.path.replace('\0', "@")
                )
            },
        );
        CallError { code: Code::DeadlineExceeded, text }
    }

    /// A connection, as soon as there can be one: the caller limits the time.
    async fn connected(&self) -> Sender {
        let mut open = self.open.lock().await;
        loop {
            if let Some(sender) = open.as_ref().filter(|sender| !sender.is_closed()) {
                return sender.clone();
            }
            let attempt = connect(&self.path).await;
            let why = attempt.as_ref().err().map(reason);
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = why;
            match attempt {
                Ok(sender) => *open = Some(sender),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }
}

async fn connect(path: &str) -> io::Result<Sender> {
    let stream = UnixStream::connect(path).await?;
    let (sender, connection) =
        handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // Ends when the plugin hangs up, or when no sender is left.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (endpoint, path) in [
            ("unix:///run/kms/plugin.sock", Some("/run/kms/plugin.sock")),
            ("unix:/run/plugin.sock", Some("/run/plugin.sock")),
            ("unix://host/run/plugin.sock", Some("/run/plugin.sock")),
            ("unix:///@plugin", Some("\0plugin")),
            ("unix://", None),
            ("unix:plugin.sock", None),
            ("tcp://localhost:1", None),
        ] {
            assert_eq!(socket(endpoint).as_deref(), path, "{endpoint}");
        }
    }
}

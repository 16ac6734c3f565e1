//! Services on unix sockets: a table of methods, and the loop that serves them.
//!
//! Invariants: connections and the calls of each are bounded; what serves ends, with its connections, when its future is
//! dropped.

use crate::MESSAGE_LIMIT;
use futures_util::future::BoxFuture;
use futures_util::stream::Stream;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::{Request, Response, Status, body::Body, server::Grpc};
use tonic_prost::ProstCodec;

/// Connections at a time.
const CONNECTIONS: usize = 256;
/// Calls at a time of a connection.
const CALLS: u32 = 64;
/// After a failure to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);

type Handler = Arc<dyn Fn(http::Request<Incoming>) -> BoxFuture<'static, http::Response<Body>> + Send + Sync>;

/// Methods of services, by their paths.
#[derive(Clone)]
pub struct Router {
    methods: HashMap<&'static str, Handler>,
    limit: usize,
}

impl Default for Router {
    fn default() -> Router {
        Router { methods: HashMap::new(), limit: MESSAGE_LIMIT }
    }
}

impl Router {
    /// With another limit of a message, in bytes; for methods that are added after it.
    #[must_use]
    pub fn message_limit(mut self, bytes: usize) -> Router {
        self.limit = bytes;
        self
    }

    /// Adds a method that answers one message with one.
    #[must_use]
    pub fn unary<M, R, F, A>(mut self, method: &'static str, handle: F) -> Router
    where
        M: Message + Default + Send + 'static,
        R: Message + Send + 'static,
        F: Fn(M) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Result<R, Status>> + Send + 'static,
    {
        let limit = self.limit;
        let handler = move |request: http::Request<Incoming>| {
            let handle = handle.clone();
            let service = tower::service_fn(move |request: Request<M>| {
                let answer = handle(request.into_inner());
                async move { answer.await.map(Response::new) }
            });
            let call = async move { grpc::<M, R>(limit).unary(service, request).await };
            Box::pin(call) as BoxFuture<'static, http::Response<Body>>
        };
        self.methods.insert(method, Arc::new(handler));
        self
    }

    /// Adds a method that answers one message with any number.
    #[must_use]
    pub fn server_streaming<M, R, F, A, S>(mut self, method: &'static str, handle: F) -> Router
    where
        M: Message + Default + Send + 'static,
        R: Message + Send + 'static,
        F: Fn(M) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Result<S, Status>> + Send + 'static,
        S: Stream<Item = Result<R, Status>> + Send + 'static,
    {
        let limit = self.limit;
        let handler = move |request: http::Request<Incoming>| {
            let handle = handle.clone();
            let service = tower::service_fn(move |request: Request<M>| {
                let answer = handle(request.into_inner());
                async move { answer.await.map(Response::new) }
            });
            let call = async move { grpc::<M, R>(limit).server_streaming(service, request).await };
            Box::pin(call) as BoxFuture<'static, http::Response<Body>>
        };
        self.methods.insert(method, Arc::new(handler));
        self
    }

    async fn answer(&self, request: http::Request<Incoming>) -> http::Response<Body> {
        match self.methods.get(request.uri().path()) {
            Some(handler) => handler(request).await,
            None => {
                let (service, method) =
                    request.uri().path().trim_start_matches('/').split_once('/').unwrap_or_default();
                Status::unimplemented(format!("unknown method {method} for service {service}")).into_http()
            }
        }
    }
}

fn grpc<M, R>(limit: usize) -> Grpc<ProstCodec<R, M>>
where
    M: Message + Default + Send + 'static,
    R: Message + Send + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(limit).max_encoding_message_size(limit)
}

/// Listens on a path that only this process's user may connect to. A socket that another process left there is replaced; its
/// directory is made, with mode 0750.
///
/// # Errors
/// The system's; `AlreadyExists` when the path is something else than a socket.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o750).create(parent)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves methods to all that connect; runs until it is dropped.
pub async fn serve(listener: UnixListener, router: Router) {
    let router = Arc::new(router);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let router = router.clone();
                connections.spawn(async move {
                    connection(stream, router).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: UnixStream, router: Arc<Router>) {
    let service = hyper::service::service_fn(move |request| {
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.answer(request).await) }
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(CALLS)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection ended early");
    }
}

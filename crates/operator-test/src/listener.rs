//! The HTTPS listener of the client under test: the server's certificates and authentication, with the fault layer in front. A request
//! that comes here is the client's, whatever its user; other clients use the server's own listener.
//!
//! Invariants: it listens on the loopback only; connections are bounded; it ends with its handle.

use crate::layer::{FaultLayer, FaultService};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper_util::rt::TokioIo;
use kaji_server::{
    Authorities, Certificates, FirstRequestTimeout, PeerIdentity, ResponseBody, Stack, TlsConfigHandle,
    TlsOptions, leave_out_body_of_head, protocol, tls,
};
use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
    time::timeout,
};
use tower_service::Service;

const CONNECTIONS: usize = 256;
const STREAMS: u32 = 1_000;
const SESSIONS: usize = 16;
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The socket.
    #[error("cannot listen on the loopback: {0}")]
    Socket(#[from] std::io::Error),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] kaji_server::StackError),
}

/// A listener that serves until it is dropped.
#[derive(Debug)]
pub struct FaultListener {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for FaultListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FaultListener {
    /// Listens on a free port.
    ///
    /// # Errors
    /// When there is none, or the certificates cannot be used.
    pub async fn bind(
        stack: Arc<Stack>,
        certificates: &Certificates,
        layer: Arc<FaultLayer>,
    ) -> Result<FaultListener, ListenError> {
        let proxies = certificates.current().front_proxy_ca.certificate.clone();
        let authorities = Arc::new(Authorities::new(&certificates.trust(), &proxies)?);
        let acceptor = tls(&TlsOptions::default(), certificates.serving(), authorities.clone(), SESSIONS)?;
        let front = TlsConfigHandle::new(acceptor, authorities);
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = tcp.local_addr()?;
        let service = FaultService::new(layer, StackService(stack));
        Ok(FaultListener { address, task: tokio::spawn(accept(tcp, front, service)) })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }
}

/// The server as a service. Requests come with the peer of their connection.
#[derive(Clone)]
struct StackService(Arc<Stack>);

impl<B> Service<Request<B>> for StackService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let stack = self.0.clone();
        Box::pin(async move { Ok(stack.serve(request).await) })
    }
}

async fn accept(tcp: TcpListener, front: TlsConfigHandle, service: FaultService<StackService>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    // Connections end with the listener.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match tcp.accept().await {
            Ok((stream, _)) => {
                let (front, service) = (front.clone(), service.clone());
                connections.spawn(async move {
                    connection(stream, front, service).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, front: TlsConfigHandle, service: FaultService<StackService>) {
    // It works without, too.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = timeout(HANDSHAKE, front.tls().accept(stream)).await else { return };
    let handshake = stream.get_ref().1;
    let builder = protocol(handshake, STREAMS);
    let (peer, first) =
        (PeerIdentity::new(front, handshake.peer_certificates()), FirstRequestTimeout::default());
    let received = first.clone();
    let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        received.received();
        request.extensions_mut().insert(peer.peer());
        let (method, mut service) = (request.method().clone(), service.clone());
        async move {
            let response = service.call(request).await?;
            Ok::<_, crate::layer::AnswerLost>(leave_out_body_of_head(&method, response))
        }
    });
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    if let Some(Err(error)) = first.serve(connection).await {
        tracing::debug!(%error, "a connection ended");
    }
}

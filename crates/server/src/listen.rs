//! The listener: TLS with optional client certificates, HTTP/1.1 and h2, graceful end.
//!
//! Invariants: the number of connections is bounded; a handshake or a request head that does not arrive in time ends its
//! connection; on shutdown no new connection is taken, running requests finish, watches end cleanly.

use crate::{
    audit::Remote,
    identity::Authorities,
    stack::{Stack, StackError},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, server::ResolvesServerCert},
};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's line and headers, as Go's servers take them.
const MAX_HEAD: usize = 1 << 20;
const MAX_CONNECTIONS: usize = 20_000;
/// Streams a single h2 connection may have open: controllers keep one watch per resource on one connection.
const MAX_STREAMS: u32 = 1_000;

/// TLS as the server presents it. `authorities` take any client certificate; requests decide what it is worth. What
/// `serving` answers may change from handshake to handshake.
pub fn tls(
    serving: Arc<dyn ResolvesServerCert>,
    authorities: Arc<Authorities>,
) -> Result<TlsAcceptor, StackError> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| StackError::Tls(e.to_string()))?
        .with_client_cert_verifier(authorities)
        .with_cert_resolver(serving);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A listener that is bound but not yet serving.
pub struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    authorities: Arc<Authorities>,
}

impl Listener {
    /// Binds. Port 0 takes a free one; see [`Listener::address`].
    pub async fn bind(
        address: SocketAddr,
        tls: TlsAcceptor,
        authorities: Arc<Authorities>,
    ) -> Result<Self, StackError> {
        Ok(Listener { tcp: TcpListener::bind(address).await?, tls, authorities })
    }

    /// The bound address.
    pub fn address(&self) -> Result<SocketAddr, StackError> {
        Ok(self.tcp.local_addr()?)
    }

    /// Serves until `stop` turns true, then drains.
    pub async fn serve(self, stack: Arc<Stack>, mut stop: watch::Receiver<bool>) {
        let graceful = GracefulShutdown::new();
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { break };
            let accepted = tokio::select! {
                accepted = self.tcp.accept() => accepted,
                _ = stop.wait_for(|s| *s) => break,
            };
            match accepted {
                Ok((stream, remote)) => {
                    let (tls, stack, watcher) = (self.tls.clone(), stack.clone(), graceful.watcher());
                    let authorities = self.authorities.clone();
                    tokio::spawn(async move {
                        connection(stream, Remote(remote.ip()), tls, &authorities, stack, watcher).await;
                        drop(slot);
                    });
                }
                // Out of file descriptors, mostly: give running requests a moment to return some.
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(self.tcp);
        if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
    }
}

async fn connection(
    stream: TcpStream,
    remote: Remote,
    tls: TlsAcceptor,
    authorities: &Authorities,
    stack: Arc<Stack>,
    watcher: hyper_util::server::graceful::Watcher,
) {
    // Answers are written whole; waiting to fill a segment only adds latency.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await else { return };
    let peer = authorities.peer(stream.get_ref().1.peer_certificates());
    let service = hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        if stack.audit.is_some() {
            request.extensions_mut().insert(remote);
        }
        let stack = stack.clone();
        async move { Ok::<_, std::convert::Infallible>(stack.serve(request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD as u32)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(15));
    let served =
        watcher.watch(builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned());
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection ended");
    }
}

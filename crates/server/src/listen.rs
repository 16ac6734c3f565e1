//! The listener: TLS with optional client certificates, HTTP/1.1 and h2, graceful end.
//!
//! Invariants: the number of connections is bounded; a handshake or a request head that does not arrive in time ends its
//! connection; on shutdown no new connection is accepted, requests in flight finish, watches end cleanly.

use crate::{
    audit::RemoteAddress,
    cpu_fairness::{AtomicLane, MigratingConnection, MigratingSocket},
    http_connection::{FirstRequestTimeout, leave_out_body_of_head, protocol},
    identity::{Authorities, Peer},
    malformed,
    stack::{Stack, StackError},
    watch_deadline::ConnectionAbort,
};
use arc_swap::ArcSwap;
use http::header;
use hyper_util::{
    rt::TokioIo,
    server::graceful::{GracefulShutdown, Watcher},
};
use socket2::{SockRef, TcpKeepalive};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
};
use tokio_rustls::{TlsAcceptor, rustls::pki_types::CertificateDer};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// TCP keep-alive: idle time before the first probe, interval of probes, number of unanswered probes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(15), 4);
/// Connections at once.
pub const MAX_CONNECTIONS: usize = 20_000;
/// Streams a single h2 connection may have open: controllers keep one watch per resource on one connection.
pub const MAX_STREAMS: u32 = 1_000;

/// The TLS configuration of a listener, and the authorities that verify client certificates. Both may be replaced while the
/// server runs: open connections stay open, and their certificates are verified again.
#[derive(Clone)]
pub struct TlsConfigHandle(Arc<ArcSwap<(TlsAcceptor, Arc<Authorities>)>>);

impl TlsConfigHandle {
    /// A handle of this configuration.
    pub fn new(tls: TlsAcceptor, authorities: Arc<Authorities>) -> TlsConfigHandle {
        TlsConfigHandle(Arc::new(ArcSwap::from_pointee((tls, authorities))))
    }

    /// The configuration of new handshakes.
    pub fn tls(&self) -> TlsAcceptor {
        self.0.load().0.clone()
    }

    /// Replaces the configuration.
    pub fn set(&self, tls: TlsAcceptor, authorities: Arc<Authorities>) {
        self.0.store(Arc::new((tls, authorities)));
    }
}

/// The identity of a connection's peer, by its certificate.
pub struct PeerIdentity {
    tls_config: TlsConfigHandle,
    certificates: Option<Vec<CertificateDer<'static>>>,
    /// The identity according to these authorities.
    verified: ArcSwap<(Arc<Authorities>, Peer)>,
}

impl PeerIdentity {
    /// The peer that presented these certificates in the handshake.
    pub fn new(tls_config: TlsConfigHandle, certificates: Option<&[CertificateDer<'_>]>) -> PeerIdentity {
        let own = |chain: &[CertificateDer<'_>]| chain.iter().map(|c| c.clone().into_owned()).collect();
        let certificates: Option<Vec<_>> = certificates.map(own);
        let authorities = tls_config.0.load().1.clone();
        let peer = authorities.peer(certificates.as_deref());
        PeerIdentity { tls_config, certificates, verified: ArcSwap::from_pointee((authorities, peer)) }
    }

    /// The identity according to the current authorities.
    pub fn peer(&self) -> Peer {
        let (now, verified) = (self.tls_config.0.load(), self.verified.load());
        if Arc::ptr_eq(&now.1, &verified.0) {
            return verified.1.clone();
        }
        let peer = now.1.peer(self.certificates.as_deref());
        self.verified.store(Arc::new((now.1.clone(), peer.clone())));
        peer
    }
}

/// Counts a connection: its part in a graceful shutdown and its slot. Held until it ends, also after a protocol upgrade.
#[derive(Clone)]
pub struct ConnectionGuard(
    #[expect(dead_code, reason = "held, not read")] Arc<(Watcher, OwnedSemaphorePermit)>,
);

/// What a request can do with its connection. In the request's extensions.
#[derive(Clone, Default)]
pub struct ConnectionHandle {
    /// The lane that the connection should move to.
    pub target: AtomicLane,
    /// Aborts it while its client does not read.
    pub abort: ConnectionAbort,
}

/// A listener that is bound but not yet serving.
pub struct Listener {
    tcp: TcpListener,
    tls_config: TlsConfigHandle,
    streams: u32,
    connections: usize,
}

impl Listener {
    /// Binds. Port 0 takes a free one; see [`Listener::address`].
    pub async fn bind(address: SocketAddr, tls_config: TlsConfigHandle) -> Result<Self, StackError> {
        let tcp = TcpListener::bind(address).await?;
        Ok(Listener { tcp, tls_config, streams: MAX_STREAMS, connections: MAX_CONNECTIONS })
    }

    /// Limits the open streams of an h2 connection.
    #[must_use]
    pub fn with_streams(mut self, streams: u32) -> Self {
        self.streams = streams;
        self
    }

    /// Limits open connections; further ones wait to be accepted.
    #[must_use]
    pub fn with_connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// The bound address.
    pub fn address(&self) -> Result<SocketAddr, StackError> {
        Ok(self.tcp.local_addr()?)
    }

    /// Serves until `stop` turns true, then drains.
    pub async fn serve(self, stack: Arc<Stack>, mut stop: watch::Receiver<bool>) {
        let (graceful, lanes) = (GracefulShutdown::new(), stack.flow.lanes());
        let slots = Arc::new(Semaphore::new(self.connections));
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { break };
            let accepted = tokio::select! {
                accepted = self.tcp.accept() => accepted,
                _ = stop.wait_for(|s| *s) => break,
            };
            match accepted {
                Ok((stream, remote)) => {
                    let (tls_config, stack, watcher) =
                        (self.tls_config.clone(), stack.clone(), graceful.watcher());
                    let streams = self.streams;
                    let counted = (watcher, ConnectionGuard(Arc::new((graceful.watcher(), slot))));
                    tokio::spawn(connection(
                        stream,
                        RemoteAddress(remote.ip()),
                        tls_config,
                        streams,
                        stack,
                        counted,
                    ));
                }
                // Out of file descriptors, mostly: wait until requests in flight have closed some.
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
        lanes.shut_down();
    }
}

/// Serves a connection. Returns when the handshake has failed, the connection has ended, or it has moved to another task.
async fn connection(
    stream: TcpStream,
    remote: RemoteAddress,
    tls_config: TlsConfigHandle,
    streams: u32,
    stack: Arc<Stack>,
    (watcher, held): (Watcher, ConnectionGuard),
) {
    prepare(&stream);
    let (current, handle, first_request) =
        (AtomicLane::default(), ConnectionHandle::default(), FirstRequestTimeout::default());
    let socket = handle.abort.socket(MigratingSocket::new(stream, current.clone()));
    let accepted = tls_config.tls().accept(socket);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, accepted).await else { return };
    let handshake = stream.get_ref().1;
    let builder = protocol(handshake, streams);
    let peer_identity = PeerIdentity::new(tls_config, handshake.peer_certificates());
    let lanes = stack.flow.lanes();
    let service = {
        let (handle, first_request, held) = (handle.clone(), first_request.clone(), held.clone());
        hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            first_request.received();
            request.extensions_mut().insert(peer_identity.peer());
            request.extensions_mut().insert(handle.clone());
            if request.headers().contains_key(header::UPGRADE) {
                request.extensions_mut().insert(held.clone());
            }
            request.extensions_mut().insert(remote);
            let (stack, method) = (stack.clone(), request.method().clone());
            async move {
                let response = match malformed::refusal(&request) {
                    Some(refusal) => refusal,
                    None => stack.serve(request).await,
                };
                Ok::<_, std::convert::Infallible>(leave_out_body_of_head(&method, response))
            }
        })
    };
    let served = async move {
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        if let Some(Err(error)) = first_request.serve(watcher.watch(connection)).await {
            tracing::debug!(%error, "a connection ended");
        }
        drop(held);
    };
    MigratingConnection::new(served, lanes, handle.target, current).await;
}

/// Sets a connection's options. One without them works, too.
fn prepare(stream: &TcpStream) {
    // Responses are written whole; waiting to fill a segment only adds latency.
    let _ = stream.set_nodelay(true);
    // Watches are idle for long: without probes, a vanished client would hold its connection forever.
    let (after, every, times) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(after).with_interval(every).with_retries(times);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn enables_tcp_keepalive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        prepare(&stream);
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE.0);
    }
}

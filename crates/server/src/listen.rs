//! The listener: TLS with optional client certificates, HTTP/1.1 and h2, graceful end.
//!
//! Invariants: the number of connections is bounded; a handshake or a request head that does not arrive in time ends its
//! connection; on shutdown no new connection is taken, running requests finish, watches end cleanly.

use crate::{
    audit::Remote,
    flow::SharedLane,
    identity::{Authorities, Peer},
    malformed,
    protocol::{Spoken, protocol},
    roam::{Roaming, Socket},
    stack::{Stack, StackError},
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
/// When the other side of a connection on which nothing happens is asked whether it is there, how often it is asked again,
/// and how often in vain.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(15), 4);
/// Connections at once.
pub const MAX_CONNECTIONS: usize = 20_000;
/// Streams a single h2 connection may have open: controllers keep one watch per resource on one connection.
pub const MAX_STREAMS: u32 = 1_000;

/// What connections are met with: TLS, and the authorities that certificates of clients are measured by. Both may be
/// replaced while the server runs; a connection that is open goes on, and what its certificate counts for is found out
/// anew.
#[derive(Clone)]
pub struct Front(Arc<ArcSwap<(TlsAcceptor, Arc<Authorities>)>>);

impl Front {
    /// With these.
    pub fn new(tls: TlsAcceptor, authorities: Arc<Authorities>) -> Front {
        Front(Arc::new(ArcSwap::from_pointee((tls, authorities))))
    }

    /// What handshakes are made with now.
    pub fn tls(&self) -> TlsAcceptor {
        self.0.load().0.clone()
    }

    /// With others from now on.
    pub fn set(&self, tls: TlsAcceptor, authorities: Arc<Authorities>) {
        self.0.store(Arc::new((tls, authorities)));
    }
}

/// The other end of a connection, and what it counts for.
pub struct Visitor {
    front: Front,
    certificates: Option<Vec<CertificateDer<'static>>>,
    /// What these authorities make of it.
    known: ArcSwap<(Arc<Authorities>, Peer)>,
}

impl Visitor {
    /// Whoever showed these certificates in the handshake.
    pub fn new(front: Front, certificates: Option<&[CertificateDer<'_>]>) -> Visitor {
        let own = |chain: &[CertificateDer<'_>]| chain.iter().map(|c| c.clone().into_owned()).collect();
        let certificates: Option<Vec<_>> = certificates.map(own);
        let authorities = front.0.load().1.clone();
        let peer = authorities.peer(certificates.as_deref());
        Visitor { front, certificates, known: ArcSwap::from_pointee((authorities, peer)) }
    }

    /// What it counts for now.
    pub fn peer(&self) -> Peer {
        let (now, known) = (self.front.0.load(), self.known.load());
        if Arc::ptr_eq(&now.1, &known.0) {
            return known.1.clone();
        }
        let peer = now.1.peer(self.certificates.as_deref());
        self.known.store(Arc::new((now.1.clone(), peer.clone())));
        peer
    }
}

/// What counts a connection: its part in a graceful end and its slot. Held until it ends, also when it speaks another
/// protocol by then.
#[derive(Clone)]
pub struct Held(#[expect(dead_code, reason = "held, not read")] Arc<(Watcher, OwnedSemaphorePermit)>);

/// A listener that is bound but not yet serving.
pub struct Listener {
    tcp: TcpListener,
    front: Front,
    streams: u32,
    connections: usize,
}

impl Listener {
    /// Binds. Port 0 takes a free one; see [`Listener::address`].
    pub async fn bind(address: SocketAddr, front: Front) -> Result<Self, StackError> {
        let tcp = TcpListener::bind(address).await?;
        Ok(Listener { tcp, front, streams: MAX_STREAMS, connections: MAX_CONNECTIONS })
    }

    /// Lets an h2 connection have so many streams open.
    #[must_use]
    pub fn with_streams(mut self, streams: u32) -> Self {
        self.streams = streams;
        self
    }

    /// Takes so many connections; more wait to be accepted.
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
                    let (front, stack, watcher) = (self.front.clone(), stack.clone(), graceful.watcher());
                    let streams = self.streams;
                    let counted = (watcher, Held(Arc::new((graceful.watcher(), slot))));
                    tokio::spawn(connection(stream, Remote(remote.ip()), front, streams, stack, counted));
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
        lanes.end();
    }
}

/// Serves a connection. What it returns is done when the handshake has failed, or the connection ended or went on
/// elsewhere.
async fn connection(
    stream: TcpStream,
    remote: Remote,
    front: Front,
    streams: u32,
    stack: Arc<Stack>,
    (watcher, held): (Watcher, Held),
) {
    prepare(&stream);
    let (here, wish, spoken) = (SharedLane::default(), SharedLane::default(), Spoken::default());
    let accepted = front.tls().accept(Socket::new(stream, here.clone()));
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, accepted).await else { return };
    let handshake = stream.get_ref().1;
    let builder = protocol(handshake, streams);
    let visitor = Visitor::new(front, handshake.peer_certificates());
    let lanes = stack.flow.lanes();
    let service = {
        let (wish, spoken, held) = (wish.clone(), spoken.clone(), held.clone());
        hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            spoken.note();
            request.extensions_mut().insert(visitor.peer());
            request.extensions_mut().insert(wish.clone());
            if request.headers().contains_key(header::UPGRADE) {
                request.extensions_mut().insert(held.clone());
            }
            if stack.audit.is_some() || !stack.aggregator.is_idle() {
                request.extensions_mut().insert(remote);
            }
            let stack = stack.clone();
            async move {
                Ok::<_, std::convert::Infallible>(match malformed::refusal(&request) {
                    Some(refusal) => refusal,
                    None => stack.serve(request).await,
                })
            }
        })
    };
    let served = async move {
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        if let Some(Err(error)) = spoken.serve(watcher.watch(connection)).await {
            tracing::debug!(%error, "a connection ended");
        }
        drop(held);
    };
    Roaming::new(served, lanes, wish, here).await;
}

/// Sets a connection's options. One without them works, too.
fn prepare(stream: &TcpStream) {
    // Answers are written whole; waiting to fill a segment only adds latency.
    let _ = stream.set_nodelay(true);
    // Watches are silent for long: a client that is gone without a word would hold its connection for ever.
    let (after, every, times) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(after).with_interval(every).with_retries(times);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn asks_silent_connections_whether_they_are_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        prepare(&stream);
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE.0);
    }
}

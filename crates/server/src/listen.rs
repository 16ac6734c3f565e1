//! The listener: TLS with optional client certificates, HTTP/1.1 and h2, graceful end.
//!
//! Invariants: the number of connections is bounded; a handshake or a request head that does not arrive in time ends its
//! connection; on shutdown no new connection is accepted, clients get GOAWAY and so connect anew, requests in flight finish,
//! watches end cleanly.

use crate::{
    audit::RemoteAddress,
    cpu_fairness::{AtomicLane, MigratingConnection, MigratingSocket},
    http_connection::{FirstRequestTimeout, leave_out_body_of_head, protocol},
    identity::{Authorities, Peer},
    malformed,
    shutdown::{GoawayChance, quiet},
    stack::{Stack, StackError},
    watch_deadline::ConnectionAbort,
};
use arc_swap::ArcSwap;
use http::{Response, Version, header};
use hyper_util::{rt::TokioIo, server::graceful::GracefulConnection};
use socket2::{SockRef, TcpKeepalive};
use std::{
    future::{Future, pending},
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls::pki_types::CertificateDer};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections may take to end once no request is in flight on them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long after the last connection another one is waited for, before the listener is closed: those that the system has
/// accepted would be reset.
const LINGER: Duration = Duration::from_millis(20);
/// The longest that this takes.
const LINGER_MOST: Duration = Duration::from_secs(1);
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
    #[expect(dead_code, reason = "held, not read")] Arc<(watch::Receiver<bool>, OwnedSemaphorePermit)>,
);

/// What a request can do with its connection. In the request's extensions.
#[derive(Clone, Default)]
pub struct ConnectionHandle {
    /// The lane that the connection should move to.
    pub target: AtomicLane,
    /// Aborts it while its client does not read.
    pub abort: ConnectionAbort,
    /// Has its client make another connection for further requests.
    goaway: Arc<Notify>,
}

/// A listener that is bound but not yet serving.
pub struct Listener {
    tcp: TcpListener,
    tls_config: TlsConfigHandle,
    streams: u32,
    connections: usize,
    goaway: GoawayChance,
    refuses: bool,
}

impl Listener {
    /// Binds. Port 0 takes a free one; see [`Listener::address`].
    pub async fn bind(address: SocketAddr, tls_config: TlsConfigHandle) -> Result<Self, StackError> {
        let tcp = TcpListener::bind(address).await?;
        let (streams, connections, goaway) = (MAX_STREAMS, MAX_CONNECTIONS, GoawayChance::default());
        Ok(Listener { tcp, tls_config, streams, connections, goaway, refuses: false })
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

    /// Ends h2 connections after a share of their requests.
    #[must_use]
    pub fn with_goaway(mut self, chance: GoawayChance) -> Self {
        self.goaway = chance;
        self
    }

    /// Whether the end begins with 429 for new requests, on connections that are still accepted.
    #[must_use]
    pub fn refusing_at_the_end(mut self, refuses: bool) -> Self {
        self.refuses = refuses;
        self
    }

    /// The bound address.
    pub fn address(&self) -> Result<SocketAddr, StackError> {
        Ok(self.tcp.local_addr()?)
    }

    /// Serves until `stop` turns true, and until no request is in flight then, except watches and other streams.
    pub async fn serve(self, stack: Arc<Stack>, mut stop: watch::Receiver<bool>) -> Draining {
        let Listener { tcp, tls_config, streams, connections, goaway, refuses } = self;
        let (slots, end) = (Arc::new(Semaphore::new(connections)), watch::channel(false).0);
        let open = Connections { stack: stack.clone(), tls_config, streams, goaway, slots, end };
        let stopped = async {
            // Without a sender there is no end.
            if stop.wait_for(|stop| *stop).await.is_err() {
                pending::<()>().await;
            }
        };
        open.accept(&tcp, stopped).await;
        let (metrics, limit) = (&stack.metrics, stack.request_timeout);
        if refuses {
            stack.shutdown.refuse();
            open.accept(&tcp, quiet(|| metrics.in_flight(), limit)).await;
        }
        let rest = async { while timeout(LINGER, open.accept_one(&tcp)).await.is_ok() {} };
        // What comes after that has not been accepted.
        let _all = timeout(LINGER_MOST, rest).await;
        drop(tcp);
        open.end.send_replace(true);
        tokio::select! {
            () = open.end.closed() => {}
            () = quiet(|| metrics.in_flight(), limit) => {}
        }
        Draining(open)
    }
}

/// The connections that are left when a listener has been closed: those with watches, and with clients that keep them open.
pub struct Draining(Connections);

impl Draining {
    /// Waits until they have ended, but not for long: watches end with the engine.
    pub async fn finish(self) {
        let Connections { end, stack, .. } = self.0;
        if timeout(DRAIN_TIMEOUT, end.closed()).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
        stack.flow.lanes().shut_down();
    }
}

/// The open connections of a listener, and what each is served with.
struct Connections {
    stack: Arc<Stack>,
    tls_config: TlsConfigHandle,
    streams: u32,
    goaway: GoawayChance,
    slots: Arc<Semaphore>,
    /// Turns true when connections are to end. Each holds a receiver as long as it is open.
    end: watch::Sender<bool>,
}

impl Connections {
    /// Accepts connections until `stop` resolves.
    async fn accept(&self, tcp: &TcpListener, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                () = self.accept_one(tcp) => {}
                () = &mut stop => return,
            }
        }
    }

    /// Accepts a connection, and serves it in a task. Nothing is lost if this is dropped.
    async fn accept_one(&self, tcp: &TcpListener) {
        let Ok(slot) = self.slots.clone().acquire_owned().await else { return pending().await };
        match tcp.accept().await {
            Ok((stream, remote)) => {
                let end = self.end.subscribe();
                let guard = ConnectionGuard(Arc::new((end.clone(), slot)));
                let service = Service {
                    stack: self.stack.clone(),
                    remote: RemoteAddress(remote.ip()),
                    goaway: self.goaway,
                };
                tokio::spawn(connection(
                    stream,
                    self.tls_config.clone(),
                    self.streams,
                    service,
                    (end, guard),
                ));
            }
            // Out of file descriptors, mostly: wait until requests in flight have closed some.
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// What the requests of a connection have in common.
struct Service {
    stack: Arc<Stack>,
    remote: RemoteAddress,
    goaway: GoawayChance,
}

/// Serves a connection. Returns when the handshake has failed, the connection has ended, or it has moved to another task.
async fn connection(
    stream: TcpStream,
    tls_config: TlsConfigHandle,
    streams: u32,
    Service { stack, remote, goaway }: Service,
    (end, held): (watch::Receiver<bool>, ConnectionGuard),
) {
    prepare(&stream);
    let (current, handle, first_request) =
        (AtomicLane::default(), ConnectionHandle::default(), FirstRequestTimeout::default());
    let socket = handle.abort.socket(MigratingSocket::new(stream, current.clone()));
    let accepted = tls_config.tls().accept(socket);
    let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, accepted).await else { return };
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
            let (stack, method, client) = (stack.clone(), request.method().clone(), handle.goaway.clone());
            let h2 = request.version() == Version::HTTP_2;
            if h2 && goaway.draw(&*stack.random) {
                client.notify_one();
            }
            async move {
                let mut response = match malformed::refusal(&request) {
                    Some(refusal) => refusal,
                    None => stack.serve(request).await,
                };
                if h2 && closes(&mut response) {
                    client.notify_one();
                }
                Ok::<_, std::convert::Infallible>(leave_out_body_of_head(&method, response))
            }
        })
    };
    let goaway = handle.goaway.clone();
    let served = async move {
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        let connection = serve_to_the_end(connection, end, &goaway);
        if let Some(Err(error)) = first_request.serve(connection).await {
            tracing::debug!(%error, "a connection ended");
        }
        drop(held);
    };
    MigratingConnection::new(served, lanes, handle.target, current).await;
}

/// Whether a response ends its connection. Over h2 there is no such header, but a frame.
fn closes<B>(response: &mut Response<B>) -> bool {
    let closes = response.headers().get(header::CONNECTION).is_some_and(|value| value == "close");
    if closes {
        response.headers_mut().remove(header::CONNECTION);
    }
    closes
}

/// Serves a connection. When the server ends, or the connection alone is to, what is in flight on it goes on, and its client makes
/// another one for anything else.
async fn serve_to_the_end<C: GracefulConnection>(
    connection: C,
    mut end: watch::Receiver<bool>,
    goaway: &Notify,
) -> C::Output {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        outcome = connection.as_mut() => return outcome,
        _ = end.wait_for(|end| *end) => {}
        () = goaway.notified() => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
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

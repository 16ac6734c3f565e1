//! The sockets: UDP and TCP.
//!
//! Invariants: a question of the zone or the cache is answered by the task that received it; only forwarded ones get a task,
//! and those are bounded by the forwarder. At most [`MAX_CONNECTIONS`] connections are open, each for [`IDLE`] without a query.

use crate::forward::{Forwarder, Resolvers};
use crate::message::{self, Forward, Outcome, Response, Transport};
use crate::metrics::Metrics;
use crate::zone::Zone;
use arc_swap::ArcSwap;
use hickory_proto::rr::Record;
use rand::seq::SliceRandom;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Connections that are open at once.
const MAX_CONNECTIONS: usize = 512;
/// How long a connection may wait for its next query.
const IDLE: Duration = Duration::from_secs(10);
/// The largest message over UDP.
const MAX_DATAGRAM: usize = 4096;

/// What answers: shared by all sockets.
#[derive(Debug)]
pub struct Service {
    zone: ArcSwap<Zone>,
    forwarder: Forwarder,
    metrics: Metrics,
}

impl Service {
    /// Answers from a zone, and forwards what is not in it.
    #[must_use]
    pub fn new(zone: Zone, forwarder: Forwarder, metrics: Metrics) -> Service {
        Service { zone: ArcSwap::from_pointee(zone), forwarder, metrics }
    }

    /// Puts another zone in the place of the present one.
    pub fn publish(&self, zone: Zone) {
        self.zone.store(Arc::new(zone));
    }

    /// Forwards as an administrator says from now on.
    pub fn configure(&self, resolvers: Resolvers) {
        self.forwarder.configure(resolvers);
    }

    /// The resolvers that an administrator has configured.
    pub fn resolvers(&self) -> Arc<Resolvers> {
        self.forwarder.configured()
    }

    /// The present zone.
    pub fn zone(&self) -> Arc<Zone> {
        self.zone.load_full()
    }

    /// The response, or the query that has to be forwarded.
    fn answer(&self, bytes: &[u8], transport: Transport) -> Outcome {
        self.metrics.request(if transport == Transport::Udp { "udp" } else { "tcp" });
        let start = Instant::now();
        let mut shuffle = |records: &mut [Record]| {
            // An alias stays before what it leads to.
            let addresses =
                records.iter().position(|r| r.record_type().is_ip_addr()).unwrap_or(records.len());
            records[addresses..].shuffle(&mut rand::rng());
        };
        let outcome = match message::handle(&self.zone.load(), bytes, transport, &mut shuffle) {
            Outcome::Forward(forward) => {
                let cached = self.forwarder.cached(&forward, transport);
                self.metrics.cache(cached.is_some());
                cached.map_or(Outcome::Forward(forward), Outcome::Respond)
            }
            outcome => outcome,
        };
        if let Outcome::Respond(response) = &outcome {
            self.metrics.response(response.code, start.elapsed());
        }
        outcome
    }

    async fn forward(&self, forward: &Forward, transport: Transport) -> Option<Response> {
        let start = Instant::now();
        let forwarded = self.forwarder.forward(forward, transport).await;
        if let Some(response) = &forwarded.response {
            self.metrics.response(response.code, start.elapsed());
        }
        forwarded.response
    }
}

/// Bound sockets.
#[derive(Debug)]
pub struct Listeners {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
}

impl Listeners {
    /// Binds the same port for UDP and TCP. With port 0, one that both have free.
    ///
    /// # Errors
    /// Those of the sockets.
    pub async fn bind(address: SocketAddr) -> io::Result<Listeners> {
        let mut attempts = 0;
        loop {
            let tcp = TcpListener::bind(address).await?;
            match UdpSocket::bind(tcp.local_addr()?).await {
                Ok(udp) => return Ok(Listeners { udp: Arc::new(udp), tcp }),
                Err(error) if address.port() != 0 || attempts == 16 => return Err(error),
                Err(_) => attempts += 1,
            }
        }
    }

    /// Where they listen.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until the future is dropped.
    pub async fn serve(self, service: Arc<Service>) {
        tokio::join!(serve_udp(self.udp, service.clone()), serve_tcp(self.tcp, service));
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, service: Arc<Service>) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    let mut forwards = JoinSet::new();
    loop {
        while forwards.try_join_next().is_some() {}
        let (length, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // An ICMP error of an earlier response.
                tracing::debug!(%error, "cannot receive a query");
                tokio::task::yield_now().await;
                continue;
            }
        };
        match service.answer(&buffer[..length], Transport::Udp) {
            Outcome::Respond(response) => send(&socket, &response, client).await,
            Outcome::Forward(forward) => {
                let (socket, service) = (socket.clone(), service.clone());
                // Bounded: the forwarder refuses at once what is too much.
                forwards.spawn(async move {
                    if let Some(response) = service.forward(&forward, Transport::Udp).await {
                        send(&socket, &response, client).await;
                    }
                });
            }
            Outcome::Ignore => {}
        }
    }
}

async fn send(socket: &UdpSocket, response: &Response, client: SocketAddr) {
    if let Err(error) = socket.send_to(&response.bytes, client).await {
        tracing::debug!(%client, %error, "cannot send a response");
    }
}

async fn serve_tcp(listener: TcpListener, service: Arc<Service>) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, client)) => {
                let service = service.clone();
                connections.spawn(async move {
                    if let Err(error) = serve_connection(stream, &service).await {
                        tracing::debug!(%client, %error, "a connection failed");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_connection(mut stream: TcpStream, service: &Service) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let query = match timeout(IDLE, read_query(&mut stream)).await {
            Ok(Ok(query)) => query,
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        };
        let response = match service.answer(&query, Transport::Tcp) {
            Outcome::Respond(response) => Some(response),
            Outcome::Forward(forward) => service.forward(&forward, Transport::Tcp).await,
            Outcome::Ignore => None,
        };
        let Some(response) = response else { return Ok(()) };
        let length = u16::try_from(response.bytes.len()).map_err(io::Error::other)?;
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&response.bytes);
        timeout(IDLE, stream.write_all(&framed)).await??;
    }
}

async fn read_query(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut query = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut query).await?;
    Ok(query)
}

//! Asks other resolvers: those of stub domains for names below them, the node's for all other names. Targets of aliases are
//! asked and kept under their own names.
//!
//! Invariants:
//! - At most [`MAX_CONCURRENT`] queries are under way; more are refused.
//! - Each query has a socket, hence a port, and an id of its own, and takes an answer only from the address that was asked and
//!   for the question that was asked.
//! - A query ends within [`TOTAL`].

use crate::cache::Cache;
use crate::message::{Forward, Response, Transport};
use crate::resolv_conf::NodeResolvers;
use arc_swap::ArcSwap;
use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::Name;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How many queries may be under way, as kubeadm configures CoreDNS.
pub const MAX_CONCURRENT: usize = 1000;
/// How long one resolver has for an answer.
const EACH: Duration = Duration::from_secs(2);
/// How long a query may take in all.
pub const TOTAL: Duration = Duration::from_secs(5);

/// Which resolvers to ask, as an administrator configures it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolvers {
    /// For names below a domain, the longest domain first.
    pub stub_domains: Vec<(Name, Vec<SocketAddr>)>,
    /// For all other names; those of the node if there are none.
    pub upstream: Vec<SocketAddr>,
}

impl Resolvers {
    /// Resolvers; the domains in any order.
    #[must_use]
    pub fn new(mut stub_domains: Vec<(Name, Vec<SocketAddr>)>, upstream: Vec<SocketAddr>) -> Resolvers {
        stub_domains.iter_mut().for_each(|(domain, _)| *domain = domain.to_lowercase());
        stub_domains.sort_by_key(|(domain, _)| std::cmp::Reverse(domain.num_labels()));
        Resolvers { stub_domains, upstream }
    }

    fn of(&self, name: &Name, node: &NodeResolvers) -> Vec<SocketAddr> {
        match self.stub_domains.iter().find(|(domain, _)| domain.zone_of(name)) {
            Some((_, servers)) => servers.clone(),
            None if self.upstream.is_empty() => node.present().name_servers.clone(),
            None => self.upstream.clone(),
        }
    }
}

/// Why a resolver did not answer.
#[derive(Debug, Error)]
pub enum ForwardError {
    /// Of the socket.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// No answer in time.
    #[error("no answer in time")]
    Timeout(#[from] tokio::time::error::Elapsed),
    /// What came is no answer to the query.
    #[error("the answer cannot be read: {0}")]
    Malformed(String),
}

/// See the module.
#[derive(Debug)]
pub struct Forwarder {
    configured: ArcSwap<Resolvers>,
    node: Arc<NodeResolvers>,
    cache: Cache,
    permits: Semaphore,
}

/// What came of a forwarded query.
#[derive(Debug)]
pub struct Forwarded {
    /// For the client; `None` if it cannot be encoded.
    pub response: Option<Response>,
    /// Whether it came from the cache.
    pub cached: bool,
}

impl Forwarder {
    /// Forwards to the node's resolvers.
    #[must_use]
    pub fn new(node: Arc<NodeResolvers>) -> Forwarder {
        let configured = ArcSwap::default();
        Forwarder { configured, node, cache: Cache::default(), permits: Semaphore::new(MAX_CONCURRENT) }
    }

    /// Forwards to others from now on. What the former ones answered is forgotten, also what they answer later.
    pub fn configure(&self, resolvers: Resolvers) {
        if **self.configured.load() != resolvers {
            self.configured.store(Arc::new(resolvers));
            self.cache.clear();
        }
    }

    /// What is configured.
    pub fn configured(&self) -> Arc<Resolvers> {
        self.configured.load_full()
    }

    /// The response from the cache, without waiting.
    pub fn cached(&self, forward: &Forward, transport: Transport) -> Option<Response> {
        forward.answered(self.cache.get(forward.query(), Instant::now())?, transport)
    }

    /// Asks the resolvers one after the other until one answers.
    pub async fn forward(&self, forward: &Forward, transport: Transport) -> Forwarded {
        if let Some(response) = self.cached(forward, transport) {
            return Forwarded { response: Some(response), cached: true };
        }
        let query = forward.query();
        let configured = self.configured.load_full();
        let answer = match self.permits.try_acquire() {
            Ok(_permit) => timeout(TOTAL, self.ask_any(&configured, query)).await.unwrap_or(None),
            Err(_) => {
                return Forwarded {
                    response: forward.failed(ResponseCode::Refused, transport),
                    cached: false,
                };
            }
        };
        let response = match answer {
            Some(answer) => {
                if Arc::ptr_eq(&configured, &self.configured.load()) {
                    self.cache.put(query, &answer, Instant::now());
                }
                forward.answered(answer, transport)
            }
            None => forward.failed(ResponseCode::ServFail, transport),
        };
        Forwarded { response, cached: false }
    }

    async fn ask_any(&self, configured: &Resolvers, query: &Message) -> Option<Message> {
        let servers = configured.of(&query.queries.first()?.name, &self.node);
        // Spread over all of them; the others follow when one fails.
        let start = if servers.is_empty() { 0 } else { rand::random_range(0..servers.len()) };
        for server in servers.iter().cycle().skip(start).take(servers.len()) {
            match ask(*server, query).await {
                // A resolver that is broken or refuses leaves the question to the next one.
                Ok(answer)
                    if matches!(
                        answer.metadata.response_code,
                        ResponseCode::ServFail | ResponseCode::Refused
                    ) => {}
                Ok(answer) => return Some(answer),
                Err(error) => tracing::debug!(%server, %error, "a resolver did not answer"),
            }
        }
        None
    }
}

/// Asks one resolver: over UDP, and over TCP when the answer was cut.
async fn ask(server: SocketAddr, query: &Message) -> Result<Message, ForwardError> {
    let mut own = query.clone();
    own.metadata.id = rand::random();
    own.metadata.recursion_desired = true;
    if let Some(edns) = &mut own.edns {
        edns.set_max_payload(edns.max_payload().clamp(512, 1232));
    }
    let bytes = own.to_vec().map_err(|e| ForwardError::Malformed(e.to_string()))?;
    let answer = timeout(EACH, ask_udp(server, &own, &bytes)).await??;
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    timeout(EACH, ask_tcp(server, &own, &bytes)).await?
}

async fn ask_udp(server: SocketAddr, query: &Message, bytes: &[u8]) -> Result<Message, ForwardError> {
    let any =
        if server.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Anything else may be forged, or late: the true answer may follow.
        if let Ok(answer) = read_answer(query, &buffer[..length]) {
            return Ok(answer);
        }
    }
}

async fn ask_tcp(server: SocketAddr, query: &Message, bytes: &[u8]) -> Result<Message, ForwardError> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(|e| ForwardError::Malformed(e.to_string()))?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(bytes);
    stream.write_all(&framed).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    read_answer(query, &answer)
}

fn read_answer(query: &Message, bytes: &[u8]) -> Result<Message, ForwardError> {
    let answer = Message::from_vec(bytes).map_err(|e| ForwardError::Malformed(e.to_string()))?;
    let fits = answer.metadata.id == query.metadata.id
        && answer.metadata.message_type == MessageType::Response
        && (answer.queries == query.queries || answer.queries.is_empty());
    if fits { Ok(answer) } else { Err(ForwardError::Malformed("it answers another query".into())) }
}

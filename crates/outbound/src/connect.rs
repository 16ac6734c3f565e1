//! A new connection: resolve, dial, handshake.

use crate::{
    CallError, ClientConfig, Endpoint, RequestClass, Target,
    clients::ServiceResolver,
    config::{TargetParts, authority},
    error::{cause, words},
    networks,
    pool::{STREAMS, Sender, Single, window},
    tls,
};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{io, net::IpAddr, sync::Arc, time::Duration};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, rustls::ClientConfig as Tls};

/// As Go's default transport.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer's head.
const MAX_HEAD: u32 = 64 << 10;
/// HTTP/2 keep-alive: idle time of a shared connection before a ping, and time for its acknowledgement. As
/// client-go's.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));

/// A new connection.
pub(crate) enum Connected {
    /// HTTP/1.1.
    Single(Single),
    /// HTTP/2.
    Shared(Sender),
}

/// Opens connections of one configuration.
pub(crate) struct Dialler {
    pub config: Arc<ClientConfig>,
    pub place: TargetParts,
    /// Offers both protocols.
    tls: Arc<Tls>,
    /// Offers the one that can be switched from.
    tls_http1: Arc<Tls>,
    finder: Arc<ServiceResolver>,
}

impl Dialler {
    pub fn new(config: Arc<ClientConfig>, finder: Arc<ServiceResolver>) -> Result<Dialler, CallError> {
        let tls = tls::config(&config)?;
        let mut tls_http1 = tls.clone();
        tls_http1.alpn_protocols.retain(|protocol| protocol != tls::HTTP2);
        let place = TargetParts::of(&config.target)?;
        Ok(Dialler { place, tls: Arc::new(tls), tls_http1: Arc::new(tls_http1), config, finder })
    }

    /// A connection for requests of a class; for one at a time only, if that is wanted.
    pub async fn connect(&self, class: RequestClass, single: bool) -> Result<Connected, CallError> {
        let endpoint = match &self.config.target {
            Target::Url(_) | Target::Plain { .. } => {
                Endpoint { host: self.place.host.clone(), port: self.place.port }
            }
            Target::Service { namespace, name, port, .. } => {
                self.finder.find((namespace, name), *port).await?
            }
        };
        if self.is_plain() {
            return single_connection(TokioIo::new(dial(&endpoint).await?)).await;
        }
        let tls = if single { &self.tls_http1 } else { &self.tls };
        let name = tls::name(&self.config, &self.place)?;
        let stream = dial(&endpoint).await?;
        let shaken = timeout(HANDSHAKE_TIMEOUT, TlsConnector::from(tls.clone()).connect(name, stream)).await;
        let stream = shaken
            .map_err(|_| CallError::Timeout("net/http: TLS handshake timeout".into()))?
            .map_err(|e| tls::failed(&e))?;
        let shares = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
        let stream = TokioIo::new(stream);
        if shares {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING.0)
                .keep_alive_timeout(PING.1)
                .max_header_list_size(MAX_HEAD)
                .initial_stream_window_size(window(class))
                .initial_connection_window_size(window(class) * STREAMS)
                .handshake(stream)
                .await
                .map_err(|e| CallError::Transport(e.to_string()))?;
            tokio::spawn(async move { connection.await.unwrap_or_else(ended) });
            return Ok(Connected::Shared(sender));
        }
        single_connection(stream).await
    }

    /// Whether there is no TLS.
    pub fn is_plain(&self) -> bool {
        matches!(self.config.target, Target::Plain { .. })
    }
}

fn ended(error: hyper::Error) {
    tracing::debug!(%error, "an outgoing connection ended");
}

/// HTTP/1.1 on a stream.
async fn single_connection<S>(stream: S) -> Result<Connected, CallError>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD as usize);
    let shaken = builder.handshake(stream).await;
    let (sender, connection) = shaken.map_err(|e| CallError::Transport(e.to_string()))?;
    tokio::spawn(async move { connection.with_upgrades().await.unwrap_or_else(ended) });
    Ok(Connected::Single(sender))
}

async fn dial(endpoint: &Endpoint) -> Result<TcpStream, CallError> {
    let Endpoint { host, port } = endpoint;
    let shown = authority(host, *port);
    let slow = || CallError::Timeout(format!("dial tcp {shown}: i/o timeout"));
    timeout(DIAL_TIMEOUT, connect_any(host, *port)).await.map_err(|_| slow())?
}

async fn connect_any(host: &str, port: u16) -> Result<TcpStream, CallError> {
    let lost = |e: &io::Error| {
        let why = match cause::<io::Error>(e) {
            Some(e) if e.raw_os_error().is_some() => words(e),
            _ => "no such host".to_owned(),
        };
        CallError::Transport(format!("dial tcp: lookup {host}: {why}"))
    };
    let addresses: Vec<_> = match host.parse::<IpAddr>() {
        Ok(ip) => vec![(ip, port).into()],
        Err(_) => networks::lookup_host(host, port).await.map_err(|e| lost(&e))?,
    };
    let mut failure = CallError::Transport(format!("dial tcp: lookup {host}: no such host"));
    for address in addresses {
        match networks::connect(address).await {
            Ok(stream) => {
                // Without it a response may wait for acknowledgements; the connection works if it cannot be set.
                drop(stream.set_nodelay(true));
                return Ok(stream);
            }
            Err(e) => failure = CallError::Transport(format!("dial tcp {address}: connect: {}", words(&e))),
        }
    }
    Err(failure)
}

//! A new connection: find, dial, shake hands.

use crate::{
    CallError, ClientConfig, Endpoint,
    config::Place,
    error::{cause, words},
    pool::{CONNECTION_WINDOW, STREAM_WINDOW, Sender, Single},
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
/// After so long without anything a shared connection is asked whether it is still there, and has so long to say so. As
/// client-go's.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));

/// A new connection.
pub(crate) enum Connected {
    /// HTTP/1.1.
    Single(Single),
    /// HTTP/2.
    Shared(Sender),
}

/// Connects to an endpoint as what the configuration calls it.
pub(crate) async fn connect(
    config: &ClientConfig,
    tls: &Arc<Tls>,
    place: &Place,
    endpoint: &Endpoint,
) -> Result<Connected, CallError> {
    let name = tls::name(config, place)?;
    let stream = dial(endpoint).await?;
    let shaken = timeout(HANDSHAKE_TIMEOUT, TlsConnector::from(tls.clone()).connect(name, stream)).await;
    let stream = shaken
        .map_err(|_| CallError::Timeout("net/http: TLS handshake timeout".into()))?
        .map_err(|e| tls::failed(&e))?;
    let shares = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
    let (stream, wrong) = (TokioIo::new(stream), |e: hyper::Error| CallError::Transport(e.to_string()));
    let ended = |error| tracing::debug!(%error, "a connection to somebody else ended");
    if shares {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1)
            .max_header_list_size(MAX_HEAD)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(stream)
            .await
            .map_err(wrong)?;
        tokio::spawn(async move { connection.await.unwrap_or_else(ended) });
        return Ok(Connected::Shared(sender));
    }
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD as usize);
    let (sender, connection) = builder.handshake(stream).await.map_err(wrong)?;
    tokio::spawn(async move { connection.with_upgrades().await.unwrap_or_else(ended) });
    Ok(Connected::Single(sender))
}

async fn dial(endpoint: &Endpoint) -> Result<TcpStream, CallError> {
    let Endpoint { host, port } = endpoint;
    let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
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
        Err(_) => tokio::net::lookup_host((host, port)).await.map_err(|e| lost(&e))?.collect(),
    };
    let mut failure = CallError::Transport(format!("dial tcp: lookup {host}: no such host"));
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Without it an answer waits for acknowledgements; failing to set it harms nobody.
                drop(stream.set_nodelay(true));
                return Ok(stream);
            }
            Err(e) => failure = CallError::Transport(format!("dial tcp {address}: connect: {}", words(&e))),
        }
    }
    Err(failure)
}

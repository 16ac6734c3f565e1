//! Exec, attach and port-forward through a runtime's streaming server: the client's side of what `kaji-streaming` serves.
//!
//! SPDY/3.1 it is, which all runtimes speak: of their WebSockets the older ones cannot end standard input.

pub mod session;
pub mod spdy;

use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use kaji_containers::RuntimeError;
use spdy::Connection;
use std::time::Duration;
use tokio::net::TcpStream;

/// Exec's and attach's version that reports exits as a Status; names of versions are the same for SPDY and WebSockets.
pub const REMOTE_COMMAND: &str = "v4.channel.k8s.io";
/// Port-forward's only version.
pub const PORT_FORWARD: &str = "portforward.k8s.io";
/// How long the streaming server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a refusal's text.
const REFUSAL: usize = 8 << 10;
const PROTOCOL_HEADER: &str = "x-stream-protocol-version";

/// Connects to a URL that the runtime has made for one session.
///
/// # Errors
/// A URL that cannot be followed, a server that does not answer or refuses.
pub async fn connect(url: &str, protocol: &str) -> Result<Connection, RuntimeError> {
    tokio::time::timeout(CONNECT_TIMEOUT, upgrade(url, protocol)).await.unwrap_or_else(|_| {
        Err(RuntimeError::DeadlineExceeded("the container runtime's streaming server does not answer".into()))
    })
}

async fn upgrade(url: &str, protocol: &str) -> Result<Connection, RuntimeError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        RuntimeError::Unavailable(format!("the container runtime's streaming server: {what}: {error}"))
    };
    let uri: Uri = url.parse().map_err(|error| failed("its URL", &error))?;
    let address = match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) => {
            let port = authority.port_u16().unwrap_or(80);
            format!("{}:{port}", authority.host())
        }
        (Some("https"), _) => {
            let text = "the container runtime's streaming server uses TLS, which is not supported: let it listen on the \
                        loopback without (enable_tls_streaming = false)";
            return Err(RuntimeError::Unimplemented(text.into()));
        }
        _ => return Err(failed("its URL", &url)),
    };
    let stream = TcpStream::connect(&address).await.map_err(|error| failed("connect", &error))?;
    // Keystrokes do not wait for more.
    stream.set_nodelay(true).map_err(|error| failed("connect", &error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed("handshake", &error))?;
    // It ends with the connection, or hands it over.
    tokio::spawn(connection.with_upgrades());
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let request = Request::builder()
        .method(Method::POST)
        .uri(target)
        .header(header::HOST, &address)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "SPDY/3.1")
        .header(PROTOCOL_HEADER, protocol)
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|error| failed("request", &error))?;
    let response = sender.send_request(request).await.map_err(|error| failed("request", &error))?;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = Limited::new(response.into_body(), REFUSAL).collect().await;
        let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned());
        let text = text.unwrap_or_default();
        return Err(match status {
            StatusCode::NOT_FOUND => RuntimeError::NotFound(text),
            _ => failed("refused", &format!("{status}: {text}")),
        });
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(|error| failed("upgrade", &error))?;
    Connection::start(TokioIo::new(upgraded)).map_err(|error| failed("SPDY", &error))
}

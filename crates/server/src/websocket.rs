//! WebSockets (RFC 6455) at the HTTP edge: the opening handshake, the subprotocol, and the connection that comes of it.
//!
//! Invariants:
//! - A request is authenticated, recorded, gets its seats and is authorized like any other before its handshake is looked at; what
//!   is wrong with it otherwise is answered in plain HTTP.
//! - What was held for the request (its record, its seats, its connection's slot) is held until the socket is closed.
//! - What a client may send is bounded, and a client that does not read is cut off.
//!
//! Source: upstream's `wsstream` and the handshake of `golang.org/x/net/websocket`.

mod stall;
mod watch;

use crate::{api, body::ResponseBody, listen::ConnectionGuard, plain};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, future::ready};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kaji_engine::{ApiResponse, Body};
use kaji_outbound::reverse_proxy::ProxiedBody;
use ring::digest;
use stall::Stall;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use watch::Framing;

/// The only version there is.
const VERSION: &str = "13";
/// What the client's key is hashed with (RFC 6455, 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The largest message that is taken from a client.
const MAX_MESSAGE: usize = 64 << 10;
/// Clients of a watch hardly send anything, and there are many of them.
const READ_BUFFER: usize = 4 << 10;
/// Small frames are gathered up to this.
const WRITE_BUFFER: usize = 32 << 10;
/// How long a client that does not read is waited for.
const STALL: Duration = Duration::from_secs(60);
/// How long the end of a connection may take.
const CLOSING: Duration = Duration::from_secs(5);
/// Bytes of a client that are read while its connection is closed, so that what was sent last is not lost to a reset.
const LEFTOVERS: u64 = 1 << 20;

/// Why a handshake is refused, in Go's words; the last two are refused without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The connection cannot change its protocol.
    #[error("not websocket protocol")]
    Protocol,
    /// There is no key.
    #[error("mismatch challenge/response")]
    Key,
    /// Not version 13.
    #[error("missing or bad WebSocket Version")]
    Version,
    /// There is no origin, or one that is no URI.
    #[error("")]
    Origin,
    /// Several subprotocols were offered where none is chosen among them.
    #[error("")]
    Subprotocols,
    /// None of the subprotocols that were offered is spoken.
    #[error("")]
    Unsupported,
}

impl HandshakeError {
    fn response(self) -> Response<ResponseBody> {
        let forbidden = matches!(self, HandshakeError::Origin | HandshakeError::Unsupported);
        let code = if forbidden { 403 } else { 400 };
        let mut response = plain::text(code, "text/plain; charset=utf-8", self.to_string());
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        if self == HandshakeError::Version {
            headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
        }
        response
    }
}

/// Whether a request asks for a WebSocket.
pub fn is_requested(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE);
    upgrade.is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && kaji_outbound::reverse_proxy::is_upgrade(headers)
}

/// A client's opening handshake.
pub struct Handshake {
    accept: HeaderValue,
    origin: bool,
    protocols: Vec<HeaderValue>,
    connection: Connection,
}

/// The connection that becomes a WebSocket.
#[derive(Clone)]
struct Connection {
    switched: OnUpgrade,
    held: Option<ConnectionGuard>,
}

impl Handshake {
    /// The handshake of a request that asks for a WebSocket; `None` if it does not.
    pub fn of(parts: &Parts) -> Option<Result<Handshake, HandshakeError>> {
        (parts.method == Method::GET && is_requested(&parts.headers)).then(|| Handshake::read(parts))
    }

    fn read(parts: &Parts) -> Result<Handshake, HandshakeError> {
        let text = |name| parts.headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
        // Without one this is HTTP/1.0, HTTP/2, or a request from within the process.
        let switched = parts.extensions.get::<OnUpgrade>().cloned().ok_or(HandshakeError::Protocol)?;
        let key = text(header::SEC_WEBSOCKET_KEY);
        if key.is_empty() {
            return Err(HandshakeError::Key);
        }
        if text(header::SEC_WEBSOCKET_VERSION) != VERSION.as_bytes() {
            return Err(HandshakeError::Version);
        }
        let offered = text(header::SEC_WEBSOCKET_PROTOCOL).trim_ascii();
        let protocols = offered.split(|b| *b == b',').map(<[u8]>::trim_ascii);
        let protocols = protocols.filter_map(|p| HeaderValue::from_bytes(p).ok());
        let origin = std::str::from_utf8(text(header::ORIGIN)).unwrap_or_default();
        Ok(Handshake {
            accept: accept(key)?,
            origin: kaji_schema::validate::request_uri(origin),
            protocols: if offered.is_empty() { vec![] } else { protocols.collect() },
            connection: Connection { switched, held: parts.extensions.get().cloned() },
        })
    }

    /// The response of a handler that needs no subprotocol, as Go's plain handler gives it: any origin is accepted, but
    /// there has to be one, and the one subprotocol that was offered is agreed to, whatever it is.
    fn agree(self) -> Result<Response<ResponseBody>, HandshakeError> {
        let Handshake { accept, origin, mut protocols, connection } = self;
        if !origin {
            return Err(HandshakeError::Origin);
        }
        let protocol = protocols.pop();
        if !protocols.is_empty() {
            return Err(HandshakeError::Subprotocols);
        }
        Ok(switching(accept, protocol, connection))
    }

    /// The response of a handler that speaks certain subprotocols: the first of the client's that it does, or none if the
    /// client offers none. Any origin is accepted.
    fn choose(
        self,
        spoken: &[(&str, Framing)],
        without: Framing,
    ) -> Result<Response<ResponseBody>, HandshakeError> {
        let Handshake { accept, protocols, connection, .. } = self;
        let framing =
            |p: &HeaderValue| spoken.iter().find(|(name, _)| p == name).map(|(_, framing)| *framing);
        let chosen = protocols.iter().find_map(|p| Some((p.clone(), framing(p)?)));
        let (protocol, framing) = match chosen {
            Some((protocol, framing)) => (Some(protocol), framing),
            None if protocols.is_empty() => (None, without),
            None => return Err(HandshakeError::Unsupported),
        };
        let mut response = switching(accept, protocol, connection);
        response.extensions_mut().insert(framing);
        Ok(response)
    }
}

/// The response that switches to a WebSocket.
fn switching(
    accept: HeaderValue,
    protocol: Option<HeaderValue>,
    connection: Connection,
) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocol {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    response.extensions_mut().insert(connection);
    response
}

/// The answer to a request for a body that asks for a WebSocket: each piece a message. Source: `wsstream.Reader`.
pub fn body(opening: Result<Handshake, HandshakeError>, body: ProxiedBody) -> Response<ResponseBody> {
    let spoken = [("binary.k8s.io", Framing::Pieces), ("base64.binary.k8s.io", Framing::Base64)];
    match opening.and_then(|handshake| handshake.choose(&spoken, Framing::Pieces)) {
        Ok(mut response) => {
            // A body that breaks off ends the socket, which tells a client no more than upstream's does.
            let pieces = body
                .into_data_stream()
                .take_while(|piece| ready(piece.is_ok()))
                .filter_map(|piece| ready(piece.ok()));
            *response.body_mut() = ResponseBody::Stream(pieces.boxed());
            response
        }
        Err(refused) => refused.response(),
    }
}

/// The answer to a watch that asks for a WebSocket: its events, each a message, or what is wrong with the handshake. A watch
/// that has not begun is refused in plain HTTP.
pub fn watch(opening: Result<Handshake, HandshakeError>, answer: ApiResponse) -> Response<ResponseBody> {
    let Body::Watch(events) = answer.body else { return api::response(answer, false) };
    match opening.and_then(Handshake::agree) {
        Ok(mut response) => {
            *response.body_mut() = ResponseBody::Stream(events);
            response.extensions_mut().insert(Framing::of(answer.content_type));
            response
        }
        Err(refused) => refused.response(),
    }
}

/// The proof that the handshake was understood.
fn accept(key: &[u8]) -> Result<HeaderValue, HandshakeError> {
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key);
    hash.update(GUID);
    HeaderValue::from_str(&STANDARD.encode(hash.finish())).map_err(|_| HandshakeError::Key)
}

/// Sends a response off. If its handshake was agreed to, what it holds and its events go on over the socket, in a task that
/// ends with either.
pub fn start_upgrade(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let extensions = response.extensions_mut();
    let (Some(connection), Some(framing)) =
        (extensions.remove::<Connection>(), extensions.remove::<Framing>())
    else {
        return response;
    };
    let body = std::mem::replace(response.body_mut(), ResponseBody::full(Bytes::new()));
    tokio::spawn(async move {
        let Connection { switched, held: _held } = connection;
        match (switched.await, body) {
            (Ok(switched), ResponseBody::Stream(events)) => {
                let socket = Stall::new(TokioIo::new(switched), STALL);
                let socket = WebSocketStream::from_raw_socket(socket, Role::Server, Some(limits())).await;
                watch::serve(socket, events, framing).await;
            }
            (Ok(_), _) => {}
            (Err(error), _) => tracing::debug!(%error, "a connection ended before it became a WebSocket"),
        }
    });
    // Nothing else is said in it, as upstream's.
    let kept =
        [header::UPGRADE, header::CONNECTION, header::SEC_WEBSOCKET_ACCEPT, header::SEC_WEBSOCKET_PROTOCOL];
    let mut said = HeaderMap::with_capacity(kept.len());
    for name in kept {
        said.extend(response.headers_mut().remove(&name).map(|value| (name, value)));
    }
    *response.headers_mut() = said;
    response
}

/// What is taken from a client.
fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}

/// The close code for a client that violated the protocol; `None` if its connection has ended.
fn fault(error: &Error) -> Option<CloseCode> {
    match error {
        Error::Capacity(_) => Some(CloseCode::Size),
        Error::Utf8(_) => Some(CloseCode::Invalid),
        Error::Protocol(_) => Some(CloseCode::Protocol),
        _ => None,
    }
}

/// Closes a socket with that code, or answers the client's close frame, and lets go of the connection once the client has
/// read it, or does not read.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(mut socket: WebSocketStream<S>, code: Option<CloseCode>) {
    let closing = async {
        let said = match code {
            Some(code) => {
                let last = CloseFrame { code, reason: Default::default() };
                socket.send(Message::Close(Some(last))).await
            }
            // The answer is waiting to be sent.
            None => SinkExt::close(&mut socket).await,
        };
        match said {
            Ok(()) | Err(Error::ConnectionClosed | Error::AlreadyClosed) => {}
            Err(error) => tracing::debug!(%error, "a WebSocket was not closed in order"),
        }
        let stream = socket.get_mut();
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LEFTOVERS), &mut tokio::io::sink()).await
    };
    if let Ok(Err(error)) = tokio::time::timeout(CLOSING, closing).await {
        tracing::debug!(%error, "a WebSocket's connection ended");
    }
}

#[cfg(test)]
mod tests;

//! The client's side of a connection to hyper's server, and of SPDY.

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use kaji_streaming::{
    Upgrade, UpgradeRejection, UpgradeRequest,
    spdy::{Decoder, Encoder, Frame, Headers},
};
use std::{collections::BTreeMap, convert::Infallible};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

/// Serves one connection, with `serve` for its upgrade requests; answers with the client's end of it.
pub fn connection(
    serve: impl Fn(UpgradeRequest<'_>) -> Result<Upgrade, UpgradeRejection> + Send + Sync + 'static,
) -> DuplexStream {
    let (client, server) = tokio::io::duplex(16 << 10);
    let serve = std::sync::Arc::new(serve);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let serve = serve.clone();
        async move {
            let upgrade = request.extensions_mut().remove::<OnUpgrade>();
            let (method, headers) = (request.method(), request.headers());
            let response = match serve(UpgradeRequest { method, headers, upgrade: upgrade.as_ref() }) {
                Ok(Upgrade { response, session }) => {
                    tokio::spawn(session);
                    response.map(|()| String::new())
                }
                Err(UpgradeRejection { code, headers, text }) => {
                    let mut response = Response::new(text);
                    *response.status_mut() = code;
                    for (name, value) in headers {
                        response.headers_mut().append(name, value);
                    }
                    response
                }
            };
            Ok::<_, Infallible>(response)
        }
    });
    tokio::spawn(async move {
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service);
        // A client that ends its connection early is no fault of a test.
        let _ = connection.with_upgrades().await;
    });
    client
}

/// Sends a request and reads the head of its response.
pub async fn request(connection: &mut DuplexStream, headers: &str) -> String {
    let head = format!("GET /exec HTTP/1.1\r\nHost: node\r\n{}\r\n", headers.replace('\n', "\r\n"));
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut response = vec![];
    while !response.ends_with(b"\r\n\r\n") {
        response.push(connection.read_u8().await.unwrap());
    }
    String::from_utf8(response).unwrap().replace("\r\n", "\n")
}

pub const UPGRADE_SPDY: &str = "Connection: Upgrade\nUpgrade: SPDY/3.1\n";

/// The headers of a request for a WebSocket.
pub fn websocket_headers(protocol: &str) -> String {
    let protocol =
        if protocol.is_empty() { String::new() } else { format!("Sec-WebSocket-Protocol: {protocol}\n") };
    format!(
        "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n{protocol}"
    )
}

/// A WebSocket; the response's head has to name the subprotocol.
pub async fn websocket(mut connection: DuplexStream, protocol: &str) -> WebSocketStream<DuplexStream> {
    let head = request(&mut connection, &websocket_headers(protocol)).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\n"), "{head}");
    assert_eq!(head.contains("sec-websocket-protocol: "), !protocol.is_empty(), "{head}");
    WebSocketStream::from_raw_socket(connection, Role::Client, None).await
}

/// The messages of a WebSocket until it is closed: their bytes by channel, and the close code.
pub async fn channels(socket: &mut WebSocketStream<DuplexStream>) -> (BTreeMap<u8, Vec<u8>>, Option<u16>) {
    let mut channels = BTreeMap::<u8, Vec<u8>>::new();
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Close(frame) => return (channels, frame.map(|frame| frame.code.into())),
            other => {
                let data = other.into_data();
                channels.entry(data[0]).or_default().extend(&data[1..]);
            }
        }
    }
    (channels, None)
}

/// A client of SPDY over any connection.
pub struct SpdyClient<S> {
    io: S,
    decoder: Decoder,
    encoder: Encoder,
    next: u32,
}

impl SpdyClient<DuplexStream> {
    /// Asks for SPDY with this protocol.
    pub async fn connect(mut connection: DuplexStream, protocols: &str) -> Self {
        let head =
            request(&mut connection, &format!("{UPGRADE_SPDY}X-Stream-Protocol-Version: {protocols}\n"))
                .await;
        assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\n"), "{head}");
        assert!(head.contains("upgrade: SPDY/3.1\n") && head.contains("connection: Upgrade\n"), "{head}");
        SpdyClient::new(connection)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> SpdyClient<S> {
    pub fn new(io: S) -> Self {
        SpdyClient { io, decoder: Decoder::default(), encoder: Encoder::new().unwrap(), next: 1 }
    }

    pub async fn send(&mut self, frame: Frame) {
        let mut bytes = BytesMut::new();
        self.encoder.encode(&frame, &mut bytes).unwrap();
        self.raw(&bytes).await;
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.unwrap();
        self.io.flush().await.unwrap();
    }

    pub async fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
        let stream = self.next;
        self.next += 2;
        let headers = Headers::of(headers);
        let frame = Frame::SynStream {
            stream,
            associated: 0,
            priority: 0,
            fin: false,
            unidirectional: false,
            headers,
        };
        self.send(frame).await;
        stream
    }

    pub async fn data(&mut self, stream: u32, data: &[u8], fin: bool) {
        self.send(Frame::Data { stream, fin, data: Bytes::copy_from_slice(data) }).await;
    }

    /// The next frame; `None` at the connection's end.
    pub async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.decode().unwrap() {
                return Some(frame);
            }
            if self.io.read_buf(self.decoder.buffer()).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// Frames until one is as asked, in a form that is easy to compare: the bytes of a stream in one, and its end.
    pub async fn until(&mut self, last: impl Fn(&Frame) -> bool) -> Streams {
        let mut streams = Streams::default();
        while let Some(frame) = self.frame().await {
            let done = last(&frame);
            match frame {
                Frame::Data { stream, fin, data } => {
                    streams.data.entry(stream).or_default().extend(&data);
                    if fin {
                        streams.ended.push((stream, "fin".into()));
                    }
                }
                Frame::RstStream { stream, status } => {
                    streams.ended.push((stream, format!("reset {status}")))
                }
                Frame::SynReply { .. } => {}
                Frame::GoAway { status, .. } => streams.ended.push((0, format!("goaway {status}"))),
                other => panic!("{other:?}"),
            }
            if done {
                break;
            }
        }
        streams
    }

    /// All frames to the connection's end.
    pub async fn rest(&mut self) -> Streams {
        self.until(|_| false).await
    }
}

/// What a server has sent.
#[derive(Debug, Default)]
pub struct Streams {
    data: BTreeMap<u32, Vec<u8>>,
    pub ended: Vec<(u32, String)>,
}

impl Streams {
    pub fn text(&self, stream: u32) -> String {
        String::from_utf8_lossy(self.data.get(&stream).map_or(&[][..], |d| d)).into_owned()
    }
}

/// The bytes of a WebSocket's binary messages, as a connection.
pub fn tunnel(mut socket: WebSocketStream<DuplexStream>) -> DuplexStream {
    let (near, far) = tokio::io::duplex(4 << 10);
    tokio::spawn(async move {
        let (mut from, mut to) = tokio::io::split(far);
        // Small on purpose: frames are cut.
        let mut buffer = [0; 61];
        loop {
            tokio::select! {
                read = from.read(&mut buffer) => match read.unwrap() {
                    0 => return,
                    n => socket.send(Message::binary(Bytes::copy_from_slice(&buffer[..n]))).await.unwrap(),
                },
                message = socket.next() => match message {
                    Some(Ok(Message::Binary(data))) => to.write_all(&data).await.unwrap(),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    Some(Ok(other)) => panic!("{other:?}"),
                },
            }
        }
    });
    near
}

/// The code and the text of a response without an upgrade.
pub async fn refusal(
    serve: impl Fn(UpgradeRequest<'_>) -> Result<Upgrade, UpgradeRejection> + Send + Sync + 'static,
    headers: &str,
) -> String {
    let mut connection = connection(serve);
    let head = request(&mut connection, headers).await;
    let lower = head.to_ascii_lowercase();
    let field =
        |name: &str| lower.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
    let mut body = vec![0; field("content-length: ").parse().unwrap_or(0)];
    connection.read_exact(&mut body).await.unwrap();
    let code: StatusCode = head.split(' ').nth(1).unwrap().parse().unwrap();
    let accepted: Vec<&str> =
        lower.lines().filter_map(|line| line.strip_prefix("x-accepted-stream-protocol-versions: ")).collect();
    format!("{} {:?} {}", code.as_u16(), accepted, String::from_utf8(body).unwrap())
}

//! Handshakes, frames and ends of WebSocket watches, over in-memory connections.

use super::*;
use futures_util::{StreamExt, stream};
use http::Request;
use tokio::io::{DuplexStream, duplex};
use tokio_tungstenite::tungstenite::protocol::Message;

/// A handshake as clients make it, with these headers instead.
fn parts(change: &[(&'static str, Option<&'static str>)]) -> Parts {
    let mut headers = vec![
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("origin", "https://localhost"),
    ];
    for (name, value) in change {
        headers.retain(|(n, _)| n != name);
        headers.extend(value.map(|value| (*name, value)));
    }
    let mut request = Request::get("/api/v1/pods?watch=1");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let mut request = request.body(()).unwrap();
    let switched = hyper::upgrade::on(&mut request);
    request.extensions_mut().insert(switched);
    request.into_parts().0
}

fn events(texts: &[&'static str]) -> ApiResponse {
    let texts: Vec<Bytes> = texts.iter().map(|t| Bytes::from_static(t.as_bytes())).collect();
    ApiResponse {
        code: 200,
        content_type: "application/json",
        warnings: vec![],
        annotations: vec![],
        body: Body::Watch(stream::iter(texts).boxed()),
    }
}

/// The answer to such a handshake: its code and what it says.
fn answer(change: &[(&'static str, Option<&'static str>)]) -> String {
    let Some(opening) = Handshake::of(&parts(change)) else { return "none".into() };
    let response = watch(opening, events(&[]));
    let said = |name| response.headers().get(name).map(|v| v.to_str().unwrap()).unwrap_or("-");
    let text = match response.body() {
        ResponseBody::Full(Some(text)) => String::from_utf8(text.to_vec()).unwrap(),
        _ => String::new(),
    };
    let told = [header::CONNECTION, header::SEC_WEBSOCKET_ACCEPT, header::SEC_WEBSOCKET_PROTOCOL].map(said);
    format!("{} {} {text}", response.status().as_u16(), told.join(" "))
}

#[test]
fn handshakes_are_answered_as_upstream_does() {
    let agreed = "101 Upgrade s3pPLMBiTxaQ9kYGzzhZRbK+xOo= - ";
    assert_eq!(answer(&[]), agreed);
    let protocol = |offered| answer(&[("sec-websocket-protocol", Some(offered))]);
    assert_eq!(protocol(" "), agreed);
    assert_eq!(protocol("base64.binary.k8s.io"), agreed.replace("= -", "= base64.binary.k8s.io"));
    assert_eq!(protocol("a, b"), "400 close - - ");
    for origin in ["http://evil.example.com", "/", "app:x"] {
        assert_eq!(answer(&[("origin", Some(origin))]), agreed, "{origin}");
    }
    for origin in [None, Some("null"), Some("http://a b/")] {
        assert_eq!(answer(&[("origin", origin)]), "403 close - - ", "{origin:?}");
    }
    assert_eq!(answer(&[("sec-websocket-key", None)]), "400 close - - mismatch challenge/response");
    assert_eq!(
        answer(&[("sec-websocket-version", Some("8"))]),
        "400 close - - missing or bad WebSocket Version"
    );
    // Other requests are none of this.
    assert_eq!(answer(&[("connection", Some("keep-alive"))]), "none");
    assert_eq!(answer(&[("upgrade", Some("SPDY/3.1"))]), "none");
    let mut within = parts(&[]);
    within.extensions.clear();
    assert!(matches!(Handshake::of(&within), Some(Err(HandshakeError::Protocol))));
    let mut other = parts(&[]);
    other.method = Method::HEAD;
    assert!(Handshake::of(&other).is_none());
}

#[test]
fn refused_watches_are_plain_answers() {
    let opening = Handshake::of(&parts(&[])).unwrap();
    let refused = watch(opening, ApiResponse::from(kaji_meta::Status::bad_request("no")));
    assert_eq!(refused.status(), 400);
    assert!(!refused.headers().contains_key(header::UPGRADE));
}

async fn socket(stream: DuplexStream, role: Role) -> WebSocketStream<Stall<DuplexStream>> {
    WebSocketStream::from_raw_socket(Stall::new(stream, STALL), role, Some(limits())).await
}

/// What a client reads of such pieces, and the code that it is closed with.
async fn read(pieces: Vec<Bytes>, framing: Framing) -> (Vec<Message>, Option<CloseCode>) {
    let (ours, theirs) = duplex(1024);
    let served = tokio::spawn(async move {
        watch::serve(socket(ours, Role::Server).await, stream::iter(pieces).boxed(), framing).await;
    });
    let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
    let (mut messages, mut code) = (vec![], None);
    while let Some(Ok(message)) = client.next().await {
        match message {
            Message::Close(frame) => code = frame.map(|f| f.code),
            message => messages.push(message),
        }
    }
    drop(client);
    served.await.unwrap();
    (messages, code)
}

#[tokio::test]
async fn each_event_is_a_message() {
    let pieces = vec!["{\"a\":1}\n{\"b\":2}\n".into(), "{\"c\":3}\n".into()];
    let (messages, code) = read(pieces, Framing::Lines).await;
    assert_eq!(messages, ["{\"a\":1}\n", "{\"b\":2}\n", "{\"c\":3}\n"].map(Message::text));
    assert_eq!(code, Some(CloseCode::Normal));

    let large = vec![7; 100_000];
    let piece = [&[0, 0, 0, 1, 9][..], &100_000_u32.to_be_bytes(), &large].concat();
    let (messages, _) = read(vec![piece.into()], Framing::Lengths).await;
    assert_eq!(messages, [Message::binary(vec![9]), Message::binary(large)]);
}

/// Serves a watch without events to a client that sends this; the close code that it receives.
async fn told(sent: impl IntoIterator<Item = Vec<u8>>) -> Option<CloseCode> {
    let (ours, mut theirs) = duplex(1024);
    let served = tokio::spawn(async move {
        watch::serve(socket(ours, Role::Server).await, stream::pending().boxed(), Framing::Lines).await;
    });
    for bytes in sent {
        // What comes after the end is not read any more.
        if theirs.write_all(&bytes).await.is_err() {
            break;
        }
    }
    let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
    let mut code = None;
    while let Some(Ok(message)) = client.next().await {
        if let Message::Close(frame) = message {
            code = frame.map(|f| f.code);
        }
    }
    drop(client);
    served.await.unwrap();
    code
}

#[tokio::test]
async fn clients_that_break_the_protocol_are_told() {
    // A text of 16 MiB, of which the first bytes come.
    let large = [&[0x81, 0xff, 0, 0, 0, 0, 1, 0, 0, 0][..], &[1, 2, 3, 4], &[0; 512]].concat();
    assert_eq!(told([large]).await, Some(CloseCode::Size));
    // The same, in parts that are never the last.
    let part = |first: bool| [&[u8::from(first), 0xfe, 0x40, 0, 0, 0, 0, 0][..], &[0x61; 0x4000]].concat();
    assert_eq!(told((0..8).map(|i| part(i == 0))).await, Some(CloseCode::Size));
    // Not masked; a reserved bit; a control frame that is too long.
    assert_eq!(told([vec![0x81, 1, 0x61]]).await, Some(CloseCode::Protocol));
    assert_eq!(told([vec![0xc1, 0x81, 0, 0, 0, 0, 0x61]]).await, Some(CloseCode::Protocol));
    let ping = [&[0x89, 0xfe, 0, 200, 0, 0, 0, 0][..], &[0; 200]].concat();
    assert_eq!(told([ping]).await, Some(CloseCode::Protocol));
    // What is well-formed is ignored, and its close frame answered.
    let text = vec![0x81, 0x81, 0, 0, 0, 0, 0x61];
    let close = vec![0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8];
    assert_eq!(told([text, close]).await, Some(CloseCode::Normal));
}

#[tokio::test(start_paused = true)]
async fn clients_that_do_not_read_are_cut_off() {
    let (ours, theirs) = duplex(1024);
    let held = std::sync::Arc::new(());
    let watched = held.clone();
    let events = stream::repeat(Bytes::from_static(b"{}\n")).map(move |piece| {
        let _held = &watched;
        piece
    });
    let began = tokio::time::Instant::now();
    watch::serve(socket(ours, Role::Server).await, events.boxed(), Framing::Lines).await;
    assert!(began.elapsed() >= STALL && began.elapsed() < 2 * STALL, "{:?}", began.elapsed());
    assert_eq!(std::sync::Arc::strong_count(&held), 1);
    drop(theirs);
}

#[tokio::test(start_paused = true)]
async fn clients_that_read_slowly_are_not() {
    let (ours, mut theirs) = duplex(8);
    let events = stream::iter(vec![Bytes::from(vec![b' '; 200])]).chain(stream::pending());
    let served = async {
        watch::serve(socket(ours, Role::Server).await, events.boxed(), Framing::Lines).await;
    };
    let reads = async {
        for _ in 0..20 {
            tokio::time::sleep(STALL * 9 / 10).await;
            theirs.read_exact(&mut [0; 8]).await.unwrap();
        }
        drop(theirs);
    };
    tokio::join!(served, reads);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_let_go_is_let_go_of() {
    let (ours, theirs) = duplex(1024);
    // It reads nothing and keeps its end open.
    watch::serve(socket(ours, Role::Server).await, stream::empty().boxed(), Framing::Lines).await;
    drop(theirs);
}

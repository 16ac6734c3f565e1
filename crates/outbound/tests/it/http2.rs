//! HTTP/2: connections that are shared, that end, and servers that end requests.

use crate::{
    server::{Server, Stream, offering},
    to,
};
use futures_util::{FutureExt, StreamExt, future::join_all, stream};
use http_body_util::{BodyExt, Full, StreamBody};
use kaji_outbound::{
    CallError, ClientCache, ClientConfig, RequestBody, RequestClass, StreamedBody, Target, body,
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, atomic::Ordering},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::{mpsc, watch},
};

type Answer = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, std::io::Error>;

/// Answers requests of HTTP/2: `/watch` never ends, the rest says what was asked for.
async fn multiplex(stream: Stream) {
    serve_http2(stream, 200).await;
}

/// The same, so many requests at a time.
async fn serve_http2(stream: Stream, most: u32) {
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let answer = |request: http::Request<hyper::body::Incoming>| async move {
        let body: Answer = if request.uri().path() == "/watch" {
            let first = Ok(http_body::Frame::data("begun".into()));
            let rest = stream::pending();
            StreamBody::new(stream::iter([first]).chain(rest)).boxed_unsync()
        } else {
            let host = request.headers().contains_key("host");
            let text = format!("{} {} {host}", request.method(), request.uri());
            Full::from(text).map_err(|never| match never {}).boxed_unsync()
        };
        Ok::<_, std::io::Error>(http::Response::new(body))
    };
    let executor = hyper_util::rt::TokioExecutor::new();
    let io = hyper_util::rt::TokioIo::new(stream);
    let _ = hyper::server::conn::http2::Builder::new(executor)
        .max_concurrent_streams(most)
        .serve_connection(io, hyper::service::service_fn(answer))
        .await;
}

/// Watches of a server that allows few requests at a time hold up each other, and nothing else.
#[tokio::test]
async fn a_server_of_few_requests() {
    let server = offering(&["h2"], &["127.0.0.1"], |stream| serve_http2(stream, 2)).await;
    let (callers, config) = (ClientCache::default(), to(&server));
    let mut watches = vec![];
    for _ in 0..2 {
        watches.push(callers.send(&config, get("/watch"), RequestClass::LongRunning).await.unwrap());
    }
    let third = callers.send(&config, get("/watch"), RequestClass::LongRunning);
    let mut third = std::pin::pin!(third);
    for class in [RequestClass::Regular, RequestClass::Internal] {
        let answer = tokio::select! {
            answer = callers.send(&config, get("/x"), class) => answer.unwrap(),
            _ = &mut third => panic!("more than the server allows"),
        };
        assert_eq!(answer.status(), 200);
    }
    watches.clear();
    assert_eq!(third.await.unwrap().status(), 200);
}

/// Many watches share few connections, and requests after them are answered.
#[tokio::test]
async fn http2_where_it_is_offered() {
    let server = offering(&["h2", "http/1.1"], &["127.0.0.1"], multiplex).await;
    let (callers, config) = (ClientCache::default(), to(&server));
    let mut watches = vec![];
    for _ in 0..100 {
        let mut answer = callers.send(&config, get("/watch"), RequestClass::LongRunning).await.unwrap();
        let first = answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "begun");
        watches.push(answer);
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
    let other_host = http::Request::get("/x?y").header("host", "other:1").body(body(""));
    let answer = callers.send(&config, other_host.unwrap(), RequestClass::Internal).await.unwrap();
    let said = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(said, "GET https://other:1/x?y false");
    // What it asks for itself shares no connection with what others hold open.
    assert_eq!(server.connections.load(Ordering::SeqCst), 3);
    // Watches that ended make room.
    watches.truncate(3);
    for _ in 0..90 {
        watches.push(callers.send(&config, get("/watch"), RequestClass::LongRunning).await.unwrap());
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 3);
}

/// A connection of HTTP/2 that the other side ends while a request is on it is no failure, either.
#[tokio::test]
async fn http2_connections_end() {
    let server = offering(&["h2"], &["127.0.0.1"], |stream: Stream| async move {
        let (gone, mut going) = tokio::sync::watch::channel(0);
        let answer = move |_: http::Request<hyper::body::Incoming>| {
            gone.send_modify(|n| *n += 1);
            let second = *gone.borrow() > 1;
            async move {
                if second {
                    std::future::pending::<()>().await;
                }
                Ok::<_, std::io::Error>(http::Response::new(Full::<bytes::Bytes>::from("{}")))
            }
        };
        let (executor, io) = (hyper_util::rt::TokioExecutor::new(), hyper_util::rt::TokioIo::new(stream));
        let serve = hyper::server::conn::http2::Builder::new(executor)
            .serve_connection(io, hyper::service::service_fn(answer));
        tokio::select! {
            _ = serve => {}
            _ = going.wait_for(|n| *n > 1) => {}
        }
    })
    .await;
    let callers = ClientCache::default();
    for _ in 0..3 {
        let get = http::Request::get("/").body(body("")).unwrap();
        let answer = callers.send(&to(&server), get, RequestClass::Regular).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "{}");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 3);
}

fn get(path: &str) -> http::Request<RequestBody> {
    http::Request::get(path).body(body("")).unwrap()
}

/// A server of HTTP/2; its connections all end when the flag is raised. `/watch` begins and does not end.
async fn mortal() -> (Server, Arc<watch::Sender<u32>>) {
    let deaths = Arc::new(watch::Sender::new(0));
    let all = deaths.clone();
    let server = offering(&["h2"], &["127.0.0.1"], move |stream| {
        let mut deaths = all.subscribe();
        async move {
            tokio::select! {
                () = multiplex(stream) => {}
                _ = deaths.changed() => {}
            }
        }
    })
    .await;
    (server, deaths)
}

/// A server that restarts under many watches is dialled for as many connections as they need, and each of them gets the end of its stream.
#[tokio::test]
async fn a_restart_under_many_watches() {
    let (server, deaths) = mortal().await;
    let (callers, config) = (ClientCache::default(), to(&server));
    let client = callers.client(&config).unwrap();
    let mut before = 0;
    // They reach an untrusted server first, then a trusted one.
    for _ in 0..2 {
        let watches = join_all((0..300).map(|_| client.send(get("/watch"), RequestClass::LongRunning))).await;
        let mut watches: Vec<http::Response<StreamedBody>> =
            watches.into_iter().map(Result::unwrap).collect();
        let now = server.connections.load(Ordering::SeqCst);
        // Five are enough; where all is slow there may be another now and then.
        assert!((5..30).contains(&(now - before)), "{before} {now}");
        before = now;
        for watch in &mut watches {
            assert_eq!(watch.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "begun");
        }
        deaths.send_modify(|n| *n += 1);
        for watch in &mut watches {
            // No end that looks like one.
            assert!(watch.body_mut().frame().await.unwrap().is_err());
        }
    }
}

/// All requests that wait for a dial fail as it does, and one that is cancelled does not end it for the others.
#[tokio::test]
async fn a_dial_is_shared() {
    let tcp = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("https://{}", tcp.local_addr().unwrap());
    let config = ClientConfig { insecure: true, ..ClientConfig::new(Target::Url(url), "") };
    let client = ClientCache::default().client(&config).unwrap();
    let ask = || Box::pin(tokio::task::unconstrained(client.send(get("/x"), RequestClass::LongRunning)));
    let mut asked: Vec<_> = (0..200).map(|_| ask()).collect();
    assert!(asked.iter_mut().all(|a| a.now_or_never().is_none()));
    asked.drain(..50);
    // It is there, and says nothing.
    let (first, _) = tcp.accept().await.unwrap();
    drop(first);
    let mut others = 0;
    let all = join_all(asked);
    let mut all = std::pin::pin!(all);
    let failed = loop {
        tokio::select! {
            failed = &mut all => break failed,
            // Where all is slow.
            _ = tcp.accept() => others += 1,
        }
    };
    for failed in failed {
        let Err(CallError::Transport(text)) = failed.map(drop) else { panic!("another failure") };
        assert!(text.starts_with("Get \"https://127.0.0.1:"), "{text}");
    }
    assert!(others < 8, "{others}");
}

/// What a server does with a request.
#[derive(Clone, Copy, Debug)]
enum Act {
    Answer,
    /// Ends it with this code.
    Reset(u8),
    /// Goes with this code; the last request that counts is so many before this one.
    Go(u8, u8),
    /// Closes the connection.
    Close,
}

const NO_ERROR: u8 = 0;
const INTERNAL_ERROR: u8 = 2;
const REFUSED_STREAM: u8 = 7;
const CANCEL: u8 = 8;
const ENHANCE_YOUR_CALM: u8 = 11;

/// Writes a frame of HTTP/2. Source: RFC 9113, 4.1.
async fn frame(stream: &mut Stream, kind: u8, flags: u8, id: u32, payload: &[u8]) -> std::io::Result<()> {
    let mut all = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    all.extend([kind, flags]);
    all.extend(id.to_be_bytes());
    all.extend(payload);
    stream.write_all(&all).await?;
    stream.flush().await
}

/// What a client says of its windows: of a stream, and what it adds to that of the connection.
type Windows = mpsc::UnboundedSender<(bool, u32)>;

/// Does what the script says with one request after the other, of all connections; then answers them.
async fn act(mut stream: Stream, script: &Mutex<VecDeque<Act>>, windows: &Windows) -> std::io::Result<()> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await?;
    frame(&mut stream, 4, 0, 0, &[]).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await?;
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        match (head[3], head[4] & 1) {
            (4, 0) => {
                let own = (0..payload.len()).step_by(6).find(|at| payload[*at..*at + 2] == [0, 4]);
                own.into_iter().for_each(|at| windows.send((true, number(at + 2))).unwrap());
                frame(&mut stream, 4, 1, 0, &[]).await?;
            }
            (8, _) if id == 0 => windows.send((false, number(0))).unwrap(),
            (1, _) => {
                let act = script.lock().unwrap().pop_front().unwrap_or(Act::Answer);
                match act {
                    // `:status: 200`, and the end.
                    Act::Answer => frame(&mut stream, 1, 5, id, &[0x88]).await?,
                    Act::Reset(code) => frame(&mut stream, 3, 0, id, &[0, 0, 0, code]).await?,
                    Act::Go(code, before) => {
                        let last = id.saturating_sub(2 * u32::from(before)).to_be_bytes();
                        frame(&mut stream, 7, 0, 0, &[&last[..], &[0, 0, 0, code]].concat()).await?;
                    }
                    Act::Close => return stream.shutdown().await,
                }
            }
            _ => {}
        }
    }
}

/// A server with a script, and what it gets of windows.
async fn scripted(acts: &[Act]) -> (Server, Arc<Mutex<VecDeque<Act>>>, mpsc::UnboundedReceiver<(bool, u32)>) {
    let script = Arc::new(Mutex::new(acts.iter().copied().collect::<VecDeque<_>>()));
    let (windows, heard) = mpsc::unbounded_channel();
    let all = script.clone();
    let server = offering(&["h2"], &["127.0.0.1"], move |stream| {
        let (script, windows) = (all.clone(), windows.clone());
        async move { drop(act(stream, &script, &windows).await) }
    })
    .await;
    (server, script, heard)
}

/// A request is sent again only if the other side has done nothing about it, or if that changes nothing.
#[tokio::test]
async fn what_is_sent_again() {
    use Act::{Answer, Close, Go, Reset};
    let mut seen = String::new();
    for (method, acts) in [
        // On a connection that has served another.
        ("DELETE", &[Answer, Reset(REFUSED_STREAM)][..]),
        ("DELETE", &[Answer, Go(NO_ERROR, 1)]),
        ("DELETE", &[Answer, Go(ENHANCE_YOUR_CALM, 1)]),
        ("DELETE", &[Answer, Reset(INTERNAL_ERROR)]),
        ("DELETE", &[Answer, Close]),
        ("GET", &[Answer, Reset(INTERNAL_ERROR)]),
        ("GET", &[Answer, Reset(CANCEL)]),
        ("GET", &[Answer, Close]),
        // Once.
        ("GET", &[Answer, Reset(REFUSED_STREAM), Reset(REFUSED_STREAM)]),
        ("GET", &[Answer, Close, Close]),
        // On a new one.
        ("DELETE", &[Reset(REFUSED_STREAM)]),
        ("GET", &[Go(NO_ERROR, 1)]),
        ("GET", &[Go(ENHANCE_YOUR_CALM, 1)]),
        ("GET", &[Close]),
    ] {
        let (server, script, _heard) = scripted(acts).await;
        let callers = ClientCache::default();
        let client = callers.client(&to(&server)).unwrap();
        if matches!(acts[0], Answer) {
            assert_eq!(client.send(get("/"), RequestClass::Regular).await.unwrap().status(), 200);
        }
        // One more is left than is needed if it is asked for again.
        script.lock().unwrap().extend([Answer; 4]);
        let before = script.lock().unwrap().len();
        let request = http::Request::builder().method(method).uri("/").body(body("")).unwrap();
        let said = match client.send(request, RequestClass::Regular).await {
            Ok(answer) => answer.status().to_string(),
            Err(error) => error.to_string().replace(&server.url, "https://here"),
        };
        let asked = before - script.lock().unwrap().len();
        seen += &format!("{method} {acts:?}: {asked} times, {said}\n");
    }
    expect_test::expect![[r#"
        DELETE [Answer, Reset(7)]: 2 times, 200 OK
        DELETE [Answer, Go(0, 1)]: 2 times, 200 OK
        DELETE [Answer, Go(11, 1)]: 2 times, 200 OK
        DELETE [Answer, Reset(2)]: 1 times, Delete "https://here/": stream error: INTERNAL_ERROR; received from peer
        DELETE [Answer, Close]: 1 times, Delete "https://here/": unexpected EOF
        GET [Answer, Reset(2)]: 1 times, Get "https://here/": stream error: INTERNAL_ERROR; received from peer
        GET [Answer, Reset(8)]: 1 times, Get "https://here/": stream error: CANCEL; received from peer
        GET [Answer, Close]: 2 times, 200 OK
        GET [Answer, Reset(7), Reset(7)]: 2 times, Get "https://here/": stream error: REFUSED_STREAM; received from peer
        GET [Answer, Close, Close]: 2 times, Get "https://here/": unexpected EOF
        DELETE [Reset(7)]: 2 times, 200 OK
        GET [Go(0, 1)]: 2 times, 200 OK
        GET [Go(11, 1)]: 1 times, Get "https://here/": http2: Transport received GOAWAY from server ErrCode:ENHANCE_YOUR_CALM
        GET [Close]: 1 times, Get "https://here/": unexpected EOF
    "#]].assert_eq(&seen);
}

/// Data on its way to slow readers is bounded, and enough for all that share a connection.
#[tokio::test]
async fn announces_a_window_for_the_class_of_the_request() {
    for (class, stream) in [(RequestClass::LongRunning, 64 << 10), (RequestClass::Regular, 256 << 10)] {
        let (server, _, mut heard) = scripted(&[]).await;
        ClientCache::default().send(&to(&server), get("/"), class).await.unwrap();
        let mut all = [heard.recv().await.unwrap(), heard.recv().await.unwrap()];
        all.sort_unstable();
        // Every connection has 65535 bytes to begin with.
        assert_eq!(all, [(false, 64 * stream - 65_535), (true, stream)], "{class:?}");
    }
}

//! Calls over real TLS, to servers that behave and to servers that do not.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod http2;
mod server;

use http_body_util::BodyExt;
use kaji_outbound::{CallError, ClientCache, ClientConfig, RequestClass, Target};
use server::{Server, Stream, answers, only_http1, request, say, server};
use std::{sync::atomic::Ordering, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
const LONG: Duration = Duration::from_secs(10);

fn to(server: &Server) -> ClientConfig {
    ClientConfig::new(Target::Url(format!("{}/path", server.url)), server.ca.as_str())
}

async fn post(callers: &ClientCache, config: &ClientConfig, limit: usize) -> Result<String, CallError> {
    let answer = callers.post_json(config, "{\"a\":1}".into(), LONG, limit).await?;
    Ok(String::from_utf8(answer.to_vec()).unwrap())
}

/// The failure without the port, which differs each time.
async fn failure(server: &Server, config: &ClientConfig) -> String {
    let error = post(&ClientCache::default(), config, 1000).await.unwrap_err();
    error.to_string().replace(&server.url, "https://here")
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let (seen, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let server = server(&["127.0.0.1"], move |mut stream| {
        let seen = seen.clone();
        async move {
            while let Some(text) = request(&mut stream).await {
                seen.send(text).unwrap();
                say(&mut stream, OK).await;
            }
        }
    })
    .await;
    let callers = ClientCache::default();
    for _ in 0..3 {
        assert_eq!(post(&callers, &to(&server), 100).await.unwrap(), "{}");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    let text = asked.recv().await.unwrap();
    assert!(text.starts_with("POST /path?timeout=10s HTTP/1.1\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\n{\"a\":1}"), "{text}");
    assert!(text.contains("content-type: application/json\r\n"), "{text}");
}

/// A server that answers one request of a connection; the second is read and not answered.
async fn stale() -> Server {
    let talk = |mut stream: Stream| async move {
        request(&mut stream).await;
        say(&mut stream, OK).await;
        request(&mut stream).await;
    };
    server(&["127.0.0.1"], talk).await
}

/// The other side may close a connection whenever it likes, even as a request is on its way. What it may have done is not
/// asked for again.
#[tokio::test]
async fn nothing_is_done_twice() {
    let server = stale().await;
    let callers = ClientCache::default();
    assert_eq!(post(&callers, &to(&server), 100).await.unwrap(), "{}");
    let error = post(&callers, &to(&server), 100).await.unwrap_err().to_string();
    assert_eq!(error.replace(&server.url, "https://here"), r#"Post "https://here/path?timeout=10s": EOF"#);
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    assert_eq!(post(&callers, &to(&server), 100).await.unwrap(), "{}");
}

/// What only reads is asked for again, and nothing else.
#[tokio::test]
async fn reads_survive_a_stale_connection() {
    let server = stale().await;
    let callers = ClientCache::default();
    let ask = async |method: &str, key: &str| {
        let mut request = http::Request::builder().method(method).uri("/x");
        if !key.is_empty() {
            request = request.header(key, "k");
        }
        let request = request.body(kaji_outbound::body("")).unwrap();
        let answer = callers.send(&to(&server), request, RequestClass::Regular).await?;
        answer.into_body().collect().await.map_err(|e| CallError::Transport(e.to_string()))
    };
    for _ in 0..3 {
        ask("GET", "").await.unwrap();
    }
    ask("OPTIONS", "").await.unwrap();
    ask("DELETE", "idempotency-key").await.unwrap();
    assert!(ask("DELETE", "").await.is_err());
}

/// A server that closed a connection before it was used again was not asked anything.
#[tokio::test]
async fn a_closed_connection_is_no_failure() {
    let (closed, mut gone) = tokio::sync::mpsc::unbounded_channel();
    let server = server(&["127.0.0.1"], move |mut stream| {
        let closed = closed.clone();
        async move {
            request(&mut stream).await;
            say(&mut stream, OK).await;
            stream.shutdown().await.unwrap();
            // The other side has seen that.
            let _ = stream.read(&mut [0]).await;
            closed.send(()).unwrap();
        }
    })
    .await;
    let callers = ClientCache::default();
    for _ in 0..3 {
        assert_eq!(post(&callers, &to(&server), 100).await.unwrap(), "{}");
        gone.recv().await.unwrap();
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 3);
}

/// A client may still send its body when the answer is there: no other request gets that connection.
#[tokio::test]
async fn an_early_answer_does_not_delay_other_requests() {
    let server = server(&["127.0.0.1"], |mut stream| async move {
        loop {
            let mut piece = [0; 4096];
            match stream.read(&mut piece).await {
                // Before the body, or with it.
                Ok(n) if n > 0 => say(&mut stream, OK).await,
                _ => return,
            }
        }
    })
    .await;
    let callers = ClientCache::default();
    let (_slow, body) = tokio::sync::mpsc::channel::<()>(1);
    let body = futures_util::stream::unfold(body, |mut body| async move {
        body.recv().await;
        None::<(Result<http_body::Frame<bytes::Bytes>, Box<dyn std::error::Error + Send + Sync>>, _)>
    });
    let body = http_body_util::StreamBody::new(body).boxed_unsync();
    let request = http::Request::post("/x").body(body).unwrap();
    let answer = callers.send(&to(&server), request, RequestClass::Regular).await.unwrap();
    answer.into_body().collect().await.unwrap();
    assert_eq!(post(&callers, &to(&server), 100).await.unwrap(), "{}");
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn certificates_are_verified() {
    let good = server(&["127.0.0.1"], answers(OK)).await;
    let other = server(&["webhook.test", "10.0.0.1"], answers(OK)).await;
    let named = server(&["webhook.test"], answers(OK)).await;
    // Neither another authority nor the machine's are those of this certificate.
    let untrusting = ClientConfig { ca_bundle: other.ca.clone().into(), ..to(&good) };
    let machine = ClientConfig { ca_bundle: vec![], ..to(&good) };
    let unknown = r#"Post "https://here/path?timeout=10s": tls: failed to verify certificate: x509: certificate signed by unknown authority"#;
    assert_eq!(failure(&good, &untrusting).await, unknown);
    assert_eq!(failure(&good, &machine).await, unknown);
    assert_eq!(
        failure(&other, &to(&other)).await,
        r#"Post "https://here/path?timeout=10s": tls: failed to verify certificate: x509: certificate is valid for 10.0.0.1, not 127.0.0.1"#
    );
    assert_eq!(
        failure(&named, &to(&named)).await,
        r#"Post "https://here/path?timeout=10s": tls: failed to verify certificate: x509: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs"#
    );
    let renamed = |name: &str| ClientConfig { server_name: Some(name.into()), ..to(&named) };
    assert_eq!(
        failure(&named, &renamed("a.test")).await,
        r#"Post "https://here/path?timeout=10s": tls: failed to verify certificate: x509: certificate is valid for webhook.test, not a.test"#
    );
    assert_eq!(post(&ClientCache::default(), &renamed("webhook.test"), 100).await.unwrap(), "{}");
    let insecure = ClientConfig { insecure: true, ..machine };
    assert_eq!(post(&ClientCache::default(), &insecure, 100).await.unwrap(), "{}");
    let nonsense = ClientConfig { ca_bundle: b"no".to_vec(), ..to(&good) };
    assert_eq!(
        failure(&good, &nonsense).await,
        "unable to load root certificates: unable to parse bytes as PEM block"
    );
}

#[tokio::test]
async fn reports_failures_with_gos_texts() {
    let mut seen = String::new();
    let mut table = async |what: &str, server: Server| {
        let config = to(&server);
        seen += &format!("{what}: {}\n", failure(&server, &config).await);
    };
    let here = &["127.0.0.1"];
    table("goes at once", server(here, |stream| async move { drop(stream) }).await).await;
    let listens = server(here, |mut stream| async move {
        request(&mut stream).await;
    });
    table("listens only", listens.await).await;
    let half = server(here, |mut stream| async move {
        request(&mut stream).await;
        say(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{").await;
    });
    table("dies half-way", half.await).await;
    table("garbage", server(here, answers("hello\r\n\r\n")).await).await;
    table("too large", server(here, answers("HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{")).await).await;
    let text = "HTTP/1.1 500 x\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\noops\n";
    table("500", server(here, answers(text)).await).await;
    table("404", server(here, answers("HTTP/1.1 404 x\r\ncontent-length: 0\r\n\r\n")).await).await;
    let status = "HTTP/1.1 403 x\r\ncontent-length: 81\r\n\r\n{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"message\":\"no!\",\"code\":403}";
    table("status", server(here, answers(status)).await).await;
    table("302", server(here, answers("HTTP/1.1 302 x\r\nlocation: /\r\ncontent-length: 0\r\n\r\n")).await)
        .await;
    expect_test::expect![[r#"
        goes at once: Post "https://here/path?timeout=10s": EOF
        listens only: Post "https://here/path?timeout=10s": EOF
        dies half-way: unexpected error when reading response body. Please retry. Original error: unexpected EOF
        garbage: Post "https://here/path?timeout=10s": net/http: HTTP/1.x transport connection broken: malformed HTTP response
        too large: the response body is larger than 1000 bytes
        500: an error on the server ("oops") has prevented the request from succeeding
        404: the server could not find the requested resource
        status: no!
        302: the server responded with the status code 302 but did not return more information
    "#]].assert_eq(&seen);
}

#[tokio::test]
async fn reports_hosts_that_cannot_be_reached() {
    let free = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let config = ClientConfig::new(Target::Url(format!("https://{address}/x")), "");
    let error = post(&ClientCache::default(), &config, 100).await.unwrap_err().to_string();
    let error = error.replace(&address.to_string(), "here");
    assert_eq!(error, r#"Post "https://here/x?timeout=10s": dial tcp here: connect: connection refused"#);
    let config = ClientConfig::new(Target::Url("https://nobody.invalid/x".into()), "");
    let error = post(&ClientCache::default(), &config, 100).await.unwrap_err().to_string();
    assert_eq!(
        error,
        r#"Post "https://nobody.invalid/x?timeout=10s": dial tcp: lookup nobody.invalid: no such host"#
    );
    let service = Target::Service { namespace: "n".into(), name: "s".into(), path: "/x".into(), port: 443 };
    let error =
        post(&ClientCache::default(), &ClientConfig::new(service, ""), 100).await.unwrap_err().to_string();
    assert_eq!(error, r#"Post "https://s.n.svc:443/x?timeout=10s": services cannot be looked up yet"#);
}

#[tokio::test]
async fn a_server_that_hangs_costs_its_time() {
    let server = server(&["127.0.0.1"], |mut stream| async move {
        request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let error = ClientCache::default()
        .post_json(&to(&server), "{}".into(), Duration::from_millis(100), 100)
        .await
        .unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(
        error.to_string().replace(&server.url, "https://here"),
        r#"Post "https://here/path?timeout=1s": context deadline exceeded"#
    );
}

/// Protocols can be switched, as `exec` does through an aggregated server.
#[tokio::test]
async fn upgrades_connections() {
    let server = server(&["127.0.0.1"], |mut stream| async move {
        request(&mut stream).await;
        say(&mut stream, "HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n").await;
        let mut piece = [0; 4];
        stream.read_exact(&mut piece).await.unwrap();
        stream.write_all(&piece).await.unwrap();
        stream.flush().await.unwrap();
    })
    .await;
    let request = http::Request::get("/exec").header("connection", "upgrade").header("upgrade", "echo");
    let request = request.body(kaji_outbound::body("")).unwrap();
    let mut response =
        ClientCache::default().send(&to(&server), request, RequestClass::Regular).await.unwrap();
    assert_eq!(response.status(), 101);
    let slot = response.extensions().get::<kaji_outbound::RequestPermit>().cloned().unwrap();
    let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
    let mut stream = hyper_util::rt::TokioIo::new(upgraded);
    stream.write_all(b"ping").await.unwrap();
    let mut piece = [0; 4];
    stream.read_exact(&mut piece).await.unwrap();
    assert_eq!(&piece, b"ping");
    drop(slot);
}

/// Webhooks are asked over HTTP/1.1, also where HTTP/2 is offered: a connection per request at a time is what spreads them
/// over the replicas of a service.
#[tokio::test]
async fn posts_are_http1() {
    let server = only_http1(OK).await;
    assert_eq!(post(&ClientCache::default(), &to(&server), 100).await.unwrap(), "{}");
}

/// A request that switches protocols uses HTTP/1.1, also where HTTP/2 is offered.
#[tokio::test]
async fn upgrades_are_http1() {
    let server = only_http1("HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n").await;
    let request = http::Request::get("/exec").header("connection", "upgrade").header("upgrade", "echo");
    let request = request.body(kaji_outbound::body("")).unwrap();
    let response =
        ClientCache::default().send(&to(&server), request, RequestClass::LongRunning).await.unwrap();
    assert_eq!(response.status(), 101);
}

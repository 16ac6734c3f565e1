//! What a server lets be done to it over a socket: heads of requests, connections, streams, versions of TLS.

use crate::common::TestCluster;
use kaji_server::{TlsCurve, TlsOptions, TlsSuite, TlsVersion, pki::Identity};
use std::sync::Arc;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, NamedGroup, RootCertStore, SupportedProtocolVersion,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        version::{TLS12, TLS13},
    },
};

/// A client as the admin that speaks these versions of TLS, and this protocol.
fn client(
    test: &TestCluster,
    versions: &[&'static SupportedProtocolVersion],
    protocol: &str,
) -> TlsConnector {
    let pki = &test.cluster.pki;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pki.ca.certificate.as_bytes()).unwrap()).unwrap();
    let Identity { certificate, key } = &pki.admin;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![protocol.into()];
    TlsConnector::from(Arc::new(config))
}

async fn connect(test: &TestCluster, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(test.cluster.address).await?;
    client.connect(ServerName::try_from("localhost").unwrap(), tcp).await
}

/// One request over HTTP/1.1, on a connection that stays open: the first line of the answer; empty if there is none.
async fn get(stream: &mut TlsStream<TcpStream>, path: &str, header: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nx-header: {header}\r\n\r\n");
    // The server may have had enough before it has read it all.
    let _ = stream.write_all(request.as_bytes()).await;
    let _ = stream.flush().await;
    let mut answer = vec![];
    let mut length = None;
    loop {
        let mut piece = [0; 4096];
        let Ok(n @ 1..) = stream.read(&mut piece).await else { break };
        answer.extend_from_slice(&piece[..n]);
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let given =
                head.lines().find_map(|l| l.strip_prefix("content-length: ")).map(|l| l.parse().unwrap());
            length = length.or(given);
            if length.is_none_or(|length: usize| body.len() >= length) {
                break;
            }
        }
    }
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}

const OK: &str = "HTTP/1.1 200 OK";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_and_connections_are_bounded() {
    let test = TestCluster::start_with(|o| o.serving.connections = Some(2)).await;
    let client = client(&test, &[&TLS13], "http/1.1");
    let mut first = connect(&test, &client).await.unwrap();
    let mut second = connect(&test, &client).await.unwrap();
    assert_eq!(get(&mut first, "/version", &"x".repeat(900 << 10)).await, OK);

    // A third waits as long as both are there, however busy they are.
    let tcp = TcpStream::connect(test.cluster.address).await.unwrap();
    let third = client.connect(ServerName::try_from("localhost").unwrap(), tcp);
    let third = tokio::spawn(third);
    for _ in 0..50 {
        assert_eq!(get(&mut second, "/version", "").await, OK);
    }
    assert!(!third.is_finished());
    // Too much is never read to its end: an answer that says so, or none.
    let answer = get(&mut first, "/version", &"x".repeat(2 << 20)).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    drop(first);
    assert_eq!(get(&mut third.await.unwrap().unwrap(), "/version", "").await, OK);
    assert_eq!(get(&mut second, "/version", "").await, OK);
    drop(second);
    test.stop().await;
}

/// One request over HTTP/1.1, as it is: the head and body of the answer, which ends the connection.
async fn raw(test: &TestCluster, client: &TlsConnector, head: &str) -> String {
    let mut stream = connect(test, client).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![];
    // An end without TLS's own goodbye is an end, too.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_headers_fit() {
    let test = TestCluster::start(0).await;
    let client = client(&test, &[&TLS13], "http/1.1");
    let groups: String = (0..1000).map(|i| format!("impersonate-group: g{i}\r\n")).collect();
    let head = format!(
        "GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\nimpersonate-user: u\r\n{groups}impersonate-group: system:authenticated\r\n\r\n"
    );
    let answer = raw(&test, &client, &head).await;
    assert!(answer.starts_with(OK), "{answer}");
    let stream = connect(&test, &self::client(&test, &[&TLS13], "h2")).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::get("https://localhost/version").header("impersonate-user", "u");
    for i in 0..1000 {
        request = request.header("impersonate-group", format!("g{i}"));
    }
    let request = request.header("impersonate-group", "system:authenticated");
    let body = http_body_util::Empty::<bytes::Bytes>::new();
    assert_eq!(sender.send_request(request.body(body).unwrap()).await.unwrap().status(), 200);
    let more = format!("GET /version HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(5000));
    let answer = raw(&test, &client, &more).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_go_refuses_are_refused() {
    let test = TestCluster::start(0).await;
    let client = client(&test, &[&TLS13], "http/1.1");
    let mut seen = String::new();
    for (path, hosts) in [
        ("/version", "host: a\r\nhost: a\r\n"),
        ("/version", "host: a b\r\n"),
        ("/version", ""),
        ("/api/v1/namespaces/%zz", "host: a\r\n"),
        ("/version?a=%zz", "host: \r\nconnection: close\r\n"),
    ] {
        let answer = raw(&test, &client, &format!("GET {path} HTTP/1.1\r\n{hosts}\r\n")).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let body = if head.starts_with(OK) { "" } else { body };
        seen += &format!("{path} {hosts:?}: {} {body}\n", head.lines().next().unwrap());
    }
    expect_test::expect![[r#"
        /version "host: a\r\nhost: a\r\n": HTTP/1.1 400 Bad Request 400 Bad Request
        /version "host: a b\r\n": HTTP/1.1 400 Bad Request 400 Bad Request: malformed Host header
        /version "": HTTP/1.1 400 Bad Request 400 Bad Request: missing required Host header
        /api/v1/namespaces/%zz "host: a\r\n": HTTP/1.1 400 Bad Request 400 Bad Request
        /version?a=%zz "host: \r\nconnection: close\r\n": HTTP/1.1 200 OK 
    "#]]
    .assert_eq(&seen);
    test.stop().await;
}

/// A frame of HTTP/2: type, flags, stream, content. Source: RFC 9113, section 4.1.
type Frame = (u8, u8, u32, Vec<u8>);

async fn read(stream: &mut TlsStream<TcpStream>) -> Frame {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let mut content = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut content).await.unwrap();
    (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), content)
}

async fn write(stream: &mut TlsStream<TcpStream>, (kind, flags, id, content): Frame) {
    let mut frame = u32::try_from(content.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(id.to_be_bytes());
    frame.extend(content);
    stream.write_all(&frame).await.unwrap();
    stream.flush().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_bounded() {
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const SETTINGS: u8 = 4;
    const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
    let test = TestCluster::start_with(|o| o.serving.streams = Some(2)).await;
    let mut stream = connect(&test, &client(&test, &[&TLS13], "h2")).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    write(&mut stream, (SETTINGS, 0, 0, vec![])).await;
    let (kind, _, _, settings) = read(&mut stream).await;
    assert_eq!(kind, SETTINGS);
    let setting = |id: u16| {
        let all = settings.chunks(6).map(|s| (u16::from_be_bytes([s[0], s[1]]), [s[2], s[3], s[4], s[5]]));
        all.into_iter().find(|(known, _)| *known == id).map(|(_, value)| u32::from_be_bytes(value))
    };
    // SETTINGS_MAX_CONCURRENT_STREAMS and SETTINGS_MAX_HEADER_LIST_SIZE.
    assert_eq!((setting(3), setting(6)), (Some(2), Some(1 << 20)));
    write(&mut stream, (SETTINGS, 1, 0, vec![])).await;

    // Watches stay open. A stream beyond the announced limit is refused, and the others go on.
    let path = b"/api/v1/nodes?watch=1";
    // GET, https, and a path and an authority as literals (RFC 7541).
    let mut block = vec![0x82, 0x87, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path);
    block.extend([0x01, 1, b'x']);
    for id in [1, 3, 5] {
        write(&mut stream, (HEADERS, 0b101, id, block.clone())).await;
    }
    let mut answered = vec![];
    let mut refused = None;
    while answered.len() < 2 || refused.is_none() {
        match read(&mut stream).await {
            (HEADERS, _, id, _) => answered.push(id),
            (RESET, _, id, code) => refused = Some((id, code)),
            _ => {}
        }
    }
    answered.sort_unstable();
    assert_eq!((answered, refused), (vec![1, 3], Some((5, REFUSED_STREAM.to_vec()))));
    drop(stream);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_as_flags_say() {
    let usual = TestCluster::start_with(|_| {}).await;
    for version in [&TLS12, &TLS13] {
        let mut stream = connect(&usual, &client(&usual, &[version], "http/1.1")).await.unwrap();
        assert_eq!(get(&mut stream, "/version", "").await, OK);
        assert_eq!(stream.get_ref().1.protocol_version(), Some(version.version));
    }
    usual.stop().await;

    let new = TlsOptions { oldest: TlsVersion::Tls13, ..TlsOptions::default() };
    let strict = TestCluster::start_with(|o| o.serving.tls = new).await;
    let error = connect(&strict, &client(&strict, &[&TLS12], "http/1.1")).await.unwrap_err();
    assert_eq!(error.to_string(), "received fatal alert: ProtocolVersion");
    let mut stream = connect(&strict, &client(&strict, &[&TLS12, &TLS13], "http/1.1")).await.unwrap();
    assert_eq!(get(&mut stream, "/version", "").await, OK);
    drop(stream);
    strict.stop().await;

    const SUITE: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    let suites = vec![SUITE.parse::<TlsSuite>().unwrap()];
    let tls = TlsOptions { suites, curves: vec!["24".parse::<TlsCurve>().unwrap()], ..TlsOptions::default() };
    let chosen = TestCluster::start_with(|o| o.serving.tls = tls).await;
    let stream = connect(&chosen, &client(&chosen, &[&TLS12], "http/1.1")).await.unwrap();
    let connection = stream.get_ref().1;
    assert_eq!(format!("{:?}", connection.negotiated_cipher_suite().unwrap().suite()), SUITE);
    assert_eq!(connection.negotiated_key_exchange_group().map(|g| g.name()), Some(NamedGroup::secp384r1));
    drop(stream);
    chosen.stop().await;
}

/// A body that is refused, over HTTP/1.1, by a client that sends all of it before it reads anything.
async fn refused_body(stream: &mut TlsStream<TcpStream>, length: usize) -> String {
    let head = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..length / 50_000 {
        stream.write_all(&[b' '; 50_000]).await.unwrap();
    }
    stream.flush().await.unwrap();
    let mut answer = vec![0; 64 << 10];
    let mut read = 0;
    while !answer[..read].windows(9).any(|w| w == b"3145728\",") {
        match stream.read(&mut answer[read..]).await.unwrap() {
            0 => break,
            n => read += n,
        }
    }
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_body_can_be_sent_to_its_end() {
    let test = TestCluster::start(0).await;
    let mut stream = connect(&test, &client(&test, &[&TLS13], "http/1.1")).await.unwrap();
    for length in [4_000_000, 12_000_000] {
        let answer = refused_body(&mut stream, length).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("Request entity too large: limit is 3145728"), "{answer}");
    }
    // The connection goes on.
    assert_eq!(get(&mut stream, "/version", "").await, OK);

    let stream = connect(&test, &client(&test, &[&TLS13], "h2")).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..2 {
        let request = http::Request::post("https://localhost/api/v1/namespaces/default/configmaps")
            .header("content-type", "application/json")
            .body(http_body_util::Full::new(bytes::Bytes::from(vec![b' '; 4_000_000])));
        let response = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), 413);
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&body).contains("limit is 3145728"));
    }
    test.stop().await;
}

//! Bad input over the wire: every piece of garbage gets a proper Status, and the server goes on serving.

use crate::common::TestCluster;
use kaji_server::pki::Identity;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

struct Raw {
    config: Arc<ClientConfig>,
    address: std::net::SocketAddr,
}

impl Raw {
    fn new(cluster: &TestCluster, identity: Option<&Identity>) -> Self {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(cluster.cluster.pki.ca.certificate.as_bytes()).unwrap())
            .unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            Some(i) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(i.certificate.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(i.key.as_bytes()).unwrap(),
                )
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        Raw { config: Arc::new(config), address: cluster.cluster.address }
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let tcp = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(self.config.clone()).connect(name, tcp).await.unwrap()
    }

    /// Sends one request and reads the answer: code and body.
    async fn send(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> (u16, String) {
        let mut stream = self.connect().await;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server may answer and close before it has read a body that is too large.
        let _ = stream.write_all(body).await;
        let mut answer = vec![];
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "no answer to {method} {path}");
        let text = String::from_utf8_lossy(&answer).into_owned();
        let code = text.split(' ').nth(1).and_then(|c| c.parse().ok()).unwrap_or_default();
        (code, text.split_once("\r\n\r\n").map(|(_, b)| b.to_owned()).unwrap_or_default())
    }
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &str = "application/json";

fn status(body: &str) -> Value {
    // A chunked body has its lengths around it.
    let json = &body[body.find('{').unwrap_or(0)..=body.rfind('}').unwrap_or(0)];
    serde_json::from_str(json).unwrap_or_else(|e| panic!("no Status ({e}): {body}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_gets_a_status_and_the_server_goes_on() {
    let cluster = TestCluster::start(0).await;
    let raw = Raw::new(&cluster, Some(&cluster.cluster.pki.admin));
    let deep = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a"}},"data":{}1{}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let deep_yaml = format!("a: {}{}", "[".repeat(10_000), "]".repeat(10_000));
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n";
    let at = |rest: &str| format!("{MAPS}{rest}");
    let cases: Vec<(&str, String, &str, Vec<u8>, u16)> = vec![
        ("POST", at(""), JSON, b"{\"apiVersion\":\"v1\",\"kind\":\"Conf".to_vec(), 400),
        ("POST", at(""), JSON, b"".to_vec(), 400),
        ("POST", at(""), JSON, b"null".to_vec(), 400),
        ("POST", at(""), JSON, b"[]".to_vec(), 400),
        ("POST", at(""), JSON, deep.clone().into_bytes(), 400),
        ("POST", at(""), JSON, "{".repeat(2_000_000).into_bytes(), 400),
        (
            "POST",
            at(""),
            JSON,
            b"{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"\xff\xfe\"}}".to_vec(),
            422,
        ),
        (
            "POST",
            at(""),
            JSON,
            br#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}"#.to_vec(),
            400,
        ),
        (
            "POST",
            at(""),
            JSON,
            br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":7}"#.to_vec(),
            400,
        ),
        ("POST", at(""), JSON, br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":7}"#.to_vec(), 400),
        ("POST", at(""), "application/yaml", deep_yaml.into_bytes(), 400),
        ("POST", at(""), "application/yaml", bomb.into(), 400),
        ("POST", at(""), "application/xml", b"<a/>".to_vec(), 415),
        ("POST", at(""), "application/vnd.kubernetes.protobuf", b"k8s\0\xff\xff\xff\xff\xff".to_vec(), 400),
        (
            "POST",
            at("?fieldValidation=Strict"),
            JSON,
            br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","name":"b"},"dta":{}}"#.to_vec(),
            400,
        ),
        ("PATCH", at("/a"), "application/json-patch+json", b"[{\"op\":\"frobnicate\"}]".to_vec(), 404),
        ("PATCH", at("/kube"), "text/plain", b"x".to_vec(), 415),
        ("GET", at("?labelSelector=a%20in%20(("), JSON, vec![], 400),
        ("GET", at("?fieldSelector=a%3D%3D%3D%2C%2C"), JSON, vec![], 400),
        ("GET", at("?continue=garbage"), JSON, vec![], 400),
        ("GET", at("?limit=x"), JSON, vec![], 400),
        ("GET", at("?resourceVersion=abc"), JSON, vec![], 400),
        ("GET", at("/%00%ff"), JSON, vec![], 404),
    ];
    let mut wrong = vec![];
    for (method, path, content_type, body, code) in cases {
        let (got, text) = raw.send(method, &path, content_type, &body).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        if got != code {
            wrong.push(format!(
                "{method} {path} {shown}: {got}, not {code}: {}",
                text.chars().take(300).collect::<String>()
            ));
            continue;
        }
        let status = status(&text);
        assert_eq!(
            (status["kind"].as_str(), status["code"].as_u64()),
            (Some("Status"), Some(code.into())),
            "{path} {shown}"
        );
        assert_ne!(status["message"].as_str().unwrap_or_default(), "", "{path} {shown}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(raw.send("GET", "/readyz", JSON, &[]).await, (200, "ok".into()));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_bounded() {
    let cluster = TestCluster::start(0).await;
    let raw = Raw::new(&cluster, Some(&cluster.cluster.pki.admin));
    let mut stream = raw.connect().await;
    // Announced: refused before a byte of it is read.
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\ncontent-length: 104857600\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let count =
        tokio::time::timeout(Duration::from_secs(30), stream.read(&mut answer)).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&answer[..count]).into_owned();
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    // Not announced: cut off at the limit.
    let mut stream = raw.connect().await;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    let mut sent = 0;
    while sent < 100 << 20 && stream.write_all(&chunk).await.is_ok() {
        sent += chunk.len();
    }
    assert!(sent < 100 << 20, "the server read it all");
    assert_eq!(raw.send("GET", "/readyz", JSON, &[]).await, (200, "ok".into()));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anonymous_clients_see_health_only() {
    let cluster = TestCluster::start(0).await;
    let raw = Raw::new(&cluster, None);
    for path in ["/readyz", "/livez", "/healthz", "/version"] {
        assert_eq!(raw.send("GET", path, JSON, &[]).await.0, 200, "{path}");
    }
    for path in ["/api", "/apis", "/metrics", "/openapi/v3", MAPS, "/"] {
        let (code, body) = raw.send("GET", path, JSON, &[]).await;
        assert_eq!(code, 403, "{path}");
        assert!(
            status(&body)["message"].as_str().unwrap().contains("User \"system:anonymous\" cannot"),
            "{body}"
        );
    }
    // What they make up leaves nothing behind that grows.
    for path in ["/api/v1/pods/a/made-up-1", "/api/made-up-2/pods", "/apis/made-up-3/v1/a/b/c"] {
        assert_eq!(raw.send("GET", path, JSON, &[]).await.0, 403, "{path}");
    }
    let stack = &cluster.cluster.stack;
    let page = stack.metrics.render(&stack.engine, &stack.flow);
    assert!(page.contains("code=\"403\"") && !page.contains("made-up"), "{page}");
    let (code, body) = raw.send("DELETE", MAPS, JSON, &[]).await;
    assert_eq!(code, 403, "{body}");
    expect_test::expect![[r#"configmaps is forbidden: User "system:anonymous" cannot deletecollection resource "configmaps" in API group "" in the namespace "default""#]]
        .assert_eq(status(&body)["message"].as_str().unwrap());
    cluster.stop().await;
}

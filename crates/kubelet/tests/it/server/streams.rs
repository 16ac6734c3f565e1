//! Exec, attach, port-forward and run: which container or sandbox is meant, what is refused, and a session over TLS.

use super::{Served, whole};
use bytes::BytesMut;
use http::{Method, Request, StatusCode};
use http_body_util::Empty;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kaji_containers::{ContainerConfig, ContainerMetadata, ContainerRuntime, PodSandboxConfig};
use kaji_streaming::spdy::{Decoder, Encoder, Frame, Headers};
use serde_json::json;
use std::collections::BTreeMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A node with a pod that has a container `c`, which has a terminal, and `d`, which does not run.
async fn node() -> (Served, String, String) {
    let served = Served::start().await;
    let labels: BTreeMap<String, String> = [("io.kubernetes.pod.uid".to_owned(), "u".to_owned())].into();
    let runtime = &served.fake.runtime;
    let sandbox = PodSandboxConfig { labels: labels.clone(), ..PodSandboxConfig::default() };
    let sandbox = runtime.run_pod_sandbox(sandbox).await.unwrap();
    let config = ContainerConfig {
        metadata: ContainerMetadata { name: "c".into(), attempt: 0 },
        labels,
        ..ContainerConfig::default()
    };
    let container = runtime.create_container(&sandbox, config).await.unwrap();
    runtime.start_container(&container).await.unwrap();
    runtime.state.lock().unwrap().calls.clear();
    served.pods.set(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [{"name": "c", "tty": true}, {"name": "d"}]},
    }));
    (served, sandbox, container)
}

#[tokio::test]
async fn rejects_invalid_requests() {
    let (served, ..) = node().await;
    let mut lines = vec![];
    for (method, path) in [
        ("GET", "/exec/n/p/c"),
        ("GET", "/exec/n/p/c?output=1&command=ls"),
        ("POST", "/exec/n/p/d?output=1"),
        ("POST", "/exec/n/p/v/c?output=1"),
        ("POST", "/exec/n/q/c?output=1"),
        ("PUT", "/exec/n/p/c?output=1"),
        ("GET", "/exec/n/p"),
        ("GET", "/exec/n/p/u/c/x?output=1"),
        ("POST", "/attach/n/p/d?output=1"),
        ("POST", "/attach/n/p/c?output=1&error=1"),
        ("POST", "/attach/n/p/c?output=1"),
        ("POST", "/portForward/n/q"),
        ("POST", "/portForward/n/p/v"),
        ("POST", "/portForward/n/p"),
        ("GET", "/run/n/p/c?cmd=ls"),
        ("POST", "/run/n/p/d?cmd=ls"),
        ("POST", "/run/n/p/u/c?cmd=ls+-l"),
    ] {
        let (code, body) = whole(served.send(method.parse().unwrap(), path, "admin").await).await;
        lines.push(format!("{method} {path}: {} {}", code.as_u16(), body.trim_end()));
    }
    expect_test::expect![[r#"
        GET /exec/n/p/c: 400 you must specify at least 1 of stdin, stdout, stderr
        GET /exec/n/p/c?output=1&command=ls: 500 Upgrade request required
        POST /exec/n/p/d?output=1: 500 container not found ("d")
        POST /exec/n/p/v/c?output=1: 500 container not found ("c")
        POST /exec/n/q/c?output=1: 404 pod does not exist
        PUT /exec/n/p/c?output=1: 405 405: Method Not Allowed
        GET /exec/n/p: 404 404: Page Not Found
        GET /exec/n/p/u/c/x?output=1: 404 404: Page Not Found
        POST /attach/n/p/d?output=1: 500 container d not found in pod p_n
        POST /attach/n/p/c?output=1&error=1: 500 rpc error: code = InvalidArgument desc = tty and stderr cannot both be true
        POST /attach/n/p/c?output=1: 500 Upgrade request required
        POST /portForward/n/q: 404 pod does not exist
        POST /portForward/n/p/v: 404 pod not found
        POST /portForward/n/p: 500 Upgrade request required
        GET /run/n/p/c?cmd=ls: 405 405: Method Not Allowed
        POST /run/n/p/d?cmd=ls: 500 container not found ("d")
        POST /run/n/p/u/c?cmd=ls+-l: 200 "#]].assert_eq(&lines.join("\n"));
    // The only command that ran is that of the last request.
    assert_eq!(served.fake.runtime.state.lock().unwrap().calls, ["exec ls -l"]);
}

/// A connection that speaks SPDY.
struct Client {
    connection: TokioIo<Upgraded>,
    decoder: Decoder,
    encoder: Encoder,
}

impl Client {
    async fn connect(served: &Served, path: &str, protocol: &str) -> Client {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header("host", "node-1")
            .header("authorization", "Bearer admin")
            .header("connection", "Upgrade")
            .header("upgrade", "SPDY/3.1")
            .header("x-stream-protocol-version", protocol);
        let response = served.send_request(request.body(Empty::new()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()["x-stream-protocol-version"], protocol);
        let connection = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        Client { connection, decoder: Decoder::default(), encoder: Encoder::new().unwrap() }
    }

    async fn send(&mut self, frame: Frame) {
        let mut bytes = BytesMut::new();
        self.encoder.encode(&frame, &mut bytes).unwrap();
        self.connection.write_all(&bytes).await.unwrap();
        self.connection.flush().await.unwrap();
    }

    async fn open(&mut self, stream: u32, headers: &[(&str, &str)]) {
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
    }

    async fn finish(&mut self, stream: u32, data: &'static [u8]) {
        self.send(Frame::Data { stream, fin: true, data: data.into() }).await;
    }

    /// The bytes of each stream, until that one has ended.
    async fn until_end_of(&mut self, last: u32) -> BTreeMap<u32, String> {
        let mut streams = BTreeMap::<u32, String>::new();
        loop {
            while let Some(frame) = self.decoder.decode().unwrap() {
                if let Frame::Data { stream, fin, data } = frame {
                    streams.entry(stream).or_default().push_str(std::str::from_utf8(&data).unwrap());
                    if fin && stream == last {
                        return streams;
                    }
                }
            }
            let read = self.connection.read_buf(self.decoder.buffer()).await.unwrap();
            assert!(read > 0, "{streams:?}");
        }
    }
}

#[tokio::test]
async fn serves_exec_sessions() {
    let (served, sandbox, container) = node().await;
    let path = "/exec/n/p/u/c?input=1&output=1&command=exit&command=7";
    let mut client = Client::connect(&served, path, "v4.channel.k8s.io").await;
    for (stream, kind) in [(1, "error"), (3, "stdin"), (5, "stdout")] {
        client.open(stream, &[("streamType", kind)]).await;
    }
    client.finish(3, b"input").await;
    let streams = client.until_end_of(1).await;
    assert_eq!(streams[&5], "exit 7\ninput");
    assert!(streams[&1].contains(r#"{"reason":"ExitCode","message":"7"}"#), "{streams:?}");

    // The container's own exit code is no error of attach.
    let mut client = Client::connect(&served, "/attach/n/p/c?input=1&output=1", "v4.channel.k8s.io").await;
    for (stream, kind) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "resize")] {
        client.open(stream, &[("streamType", kind)]).await;
    }
    client.finish(3, b"input").await;
    let streams = client.until_end_of(1).await;
    assert_eq!(streams[&5], "attached\ninput");
    assert_eq!(streams[&1], r#"{"metadata":{},"status":"Success"}"#);

    let mut client = Client::connect(&served, "/portForward/n/p", "portforward.k8s.io").await;
    for (stream, kind) in [(1, "error"), (3, "data")] {
        client.open(stream, &[("streamType", kind), ("port", "8080"), ("requestID", "0")]).await;
    }
    client.finish(3, b"through").await;
    assert_eq!(client.until_end_of(3).await[&3], "through");
    let calls = served.fake.runtime.state.lock().unwrap().calls.clone();
    let expected = [
        format!("exec-session {container} exit 7"),
        format!("attach {container} tty=true"),
        format!("port-forward {sandbox} 8080"),
    ];
    assert_eq!(calls, expected);
}

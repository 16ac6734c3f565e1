//! Logs: what is asked of the kubelet, what its answer becomes, which kubelets are trusted.

use super::{Backend, PODS, cluster, node, pod};
use crate::common::{
    TestCluster,
    access::{admin, ask, person},
    wire::send,
};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use kaji_server::pki;
use serde_json::Value;
use tokio::io::AsyncReadExt;

async fn log(cluster: &TestCluster, rest: &str) -> (u16, Value) {
    ask(cluster, &admin(), &format!("GET {PODS}/{rest}"), &Value::Null).await
}

fn message((code, status): (u16, Value)) -> String {
    format!("{code} {}", status["message"].as_str().map_or_else(|| status.to_string(), str::to_owned))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_come_from_the_kubelet() {
    let (cluster, kubelet) = cluster().await;
    pod(&cluster, "p", Some("n"), None).await;
    for name in ["refused", "fails", "redirected"] {
        pod(&cluster, name, Some("n"), None).await;
    }
    pod(&cluster, "waits", None, None).await;
    let request = Request::get(format!("{PODS}/p/log?tailLines=2&timestamps=true&x=y&tailLines=3"))
        .header("host", "localhost")
        .header("cookie", "secret=1")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let answer = send(&cluster, request).await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()[header::CONTENT_TYPE]),
        (200, &"text/plain".parse().unwrap())
    );
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "one\ntwo\n");
    let seen = kubelet.seen();
    assert_eq!(seen[0]["target"], "/containerLogs/default/p/c?tailLines=2&timestamps=true");
    assert!(super::header(&seen[0], "cookie").is_empty());
    assert_eq!(kubelet.state.client.lock().unwrap().as_deref(), Some("kube-apiserver-kubelet-client"));
    // What is wrong is said as the API does.
    let said = [
        message(log(&cluster, "refused/log").await),
        message(log(&cluster, "fails/log").await),
        message(log(&cluster, "redirected/log").await),
        message(log(&cluster, "waits/log").await),
        message(log(&cluster, "p/log?container=d").await),
        message(log(&cluster, "p/log?tailLines=-1").await),
        message(log(&cluster, "missing/log").await),
        message(ask(&cluster, &person("alice"), &format!("GET {PODS}/p/log"), &Value::Null).await),
    ];
    expect_test::expect![[r#"
        403 not this one
         ( pods/log refused)
        500 Internal error occurred: it broke
        500 redirects forbidden
        204 ""
        400 container d is not valid for pod p
        422 PodLogOptions "p" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0
        404 pods "missing" not found
        403 pods "p" is forbidden: User "alice" cannot get resource "pods/log" in API group "" in the namespace "default""#]].assert_eq(&said.join("\n"));
    assert!(kubelet.seen().is_empty());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followed_logs_stream_and_end() {
    let (cluster, kubelet) = cluster().await;
    pod(&cluster, "p", Some("n"), None).await;
    let follow = || {
        Request::get(format!("{PODS}/p/log?follow=1")).header("host", "localhost").body(Empty::new()).unwrap()
    };
    let pieces = || kubelet.state.pieces.lock().unwrap().take().unwrap();
    let mut answer = send(&cluster, follow()).await;
    let log = pieces();
    for line in ["a\n", "b\n"] {
        log.send(Ok(line.into())).unwrap();
        assert_eq!(answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), line);
    }
    drop(log);
    assert!(answer.body_mut().frame().await.is_none());
    // The kubelet breaks off: that is not the end of the log.
    let mut answer = send(&cluster, follow()).await;
    pieces().send(Err(std::io::Error::other("died"))).unwrap();
    assert!(answer.body_mut().frame().await.unwrap().is_err());
    // The client leaves: the kubelet sees that.
    let answer = send(&cluster, follow()).await;
    let log = pieces();
    drop(answer);
    log.closed().await;
    // The server ends: so does the log.
    let mut answer = send(&cluster, follow()).await;
    let _open = pieces();
    let (_, end) = tokio::join!(cluster.stop(), answer.body_mut().frame());
    assert!(end.is_none_or(|frame| frame.is_err()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_come_over_websockets() {
    let (cluster, _kubelet) = cluster().await;
    pod(&cluster, "p", Some("n"), None).await;
    let request = |protocol: &str| {
        Request::get(format!("{PODS}/p/log"))
            .header("host", "localhost")
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==")
            .header(header::SEC_WEBSOCKET_PROTOCOL, protocol)
            .body(Empty::<Bytes>::new())
            .unwrap()
    };
    for (protocol, frame) in [
        ("v1.unknown, binary.k8s.io", &b"\x82\x08one\ntwo\n"[..]),
        ("base64.binary.k8s.io", b"\x81\x0cb25lCnR3bwo="),
    ] {
        let answer = send(&cluster, request(protocol)).await;
        assert_eq!(answer.status(), 101);
        assert!(protocol.ends_with(answer.headers()[header::SEC_WEBSOCKET_PROTOCOL].to_str().unwrap()));
        let mut socket = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
        let mut read = vec![0; frame.len()];
        socket.read_exact(&mut read).await.unwrap();
        assert_eq!(read, frame);
    }
    assert_eq!(send(&cluster, request("v1.unknown")).await.status(), 403);
    cluster.stop().await;
}

/// Only a kubelet with a certificate by the cluster's authority is sent anything, unless the client says otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_kubelets_are_refused() {
    let cluster = TestCluster::start(0).await;
    let foreign = pki::authority("foreign", jiff::Timestamp::now()).unwrap();
    let kubelet = Backend::kubelet(&cluster, &foreign).await;
    node(&cluster, "n", "127.0.0.1", kubelet.port).await;
    pod(&cluster, "p", Some("n"), None).await;
    let refused = message(log(&cluster, "p/log").await).replace(&kubelet.port.to_string(), "PORT");
    assert_eq!(
        refused,
        r#"500 Get "https://127.0.0.1:PORT/containerLogs/default/p/c": tls: failed to verify certificate: x509: certificate signed by unknown authority"#
    );
    let (code, said) = ask(&cluster, &admin(), "GET /api/v1/nodes/n/proxy/metrics", &Value::Null).await;
    assert_eq!(code, 503, "{said}");
    assert!(kubelet.seen().is_empty());
    let (code, text) = log(&cluster, "p/log?insecureSkipTLSVerifyBackend=true").await;
    assert_eq!((code, text), (200, "one\ntwo\n".into()));
    // Nothing listens there any more.
    let port = kubelet.port;
    kubelet.stop().await;
    let gone = message(log(&cluster, "p/log").await).replace(&port.to_string(), "PORT");
    assert_eq!(
        gone,
        r#"500 Get "https://127.0.0.1:PORT/containerLogs/default/p/c": dial tcp 127.0.0.1:PORT: connect: connection refused"#
    );
    cluster.stop().await;
}

//! The end of a server as its clients see it: it serves on while it is not ready, what is in flight ends, watches end without an error.

use crate::common::{
    TestCluster, until,
    wire::{connect, connect_for, send_on},
};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::ConfigMap;
use kaji_server::{GoawayChance, ShutdownOptions, Stack};
use kube::{
    Api,
    api::{PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

/// A write of which a part of the body has not come.
struct Half {
    stream: TlsStream<TcpStream>,
    rest: Vec<u8>,
}

impl Half {
    async fn begin(cluster: &TestCluster, name: &str) -> Half {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).to_string();
        let head = format!(
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let (begin, rest) = body.split_at(10);
        let mut stream = connect(cluster, true).await;
        stream.write_all(format!("{head}{begin}").as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let stack = cluster.cluster.stack.clone();
        until("the request is in flight", async || stack.metrics.in_flight() > 0).await;
        Half { stream, rest: rest.as_bytes().to_vec() }
    }

    /// The answer, to the end of the connection.
    async fn finish(mut self) -> String {
        self.stream.write_all(&self.rest).await.unwrap();
        let mut answer = vec![];
        // The server closes the connection; whether it says so in TLS does not matter here.
        let _closed = self.stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }
}

fn refuses(stack: &Arc<Stack>) -> bool {
    stack.shutdown.refusal("/api", &HeaderMap::new()).is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_serves_on_while_it_is_not_ready() {
    let delay = Duration::from_secs(2);
    let cluster =
        TestCluster::start_with(|o| o.shutdown = ShutdownOptions { delay, ..Default::default() }).await;
    let client = cluster.kube().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let begun = std::time::Instant::now();
    let stopping = tokio::spawn(cluster.stop());
    let readyz = || Request::get("/readyz").body(vec![]).unwrap();
    until("the server is not ready", async || client.request_text(readyz()).await.is_err()).await;
    maps.create(&PostParams::default(), &map("late")).await.unwrap();
    assert!(begun.elapsed() < delay, "a slow machine");
    stopping.await.unwrap();
    assert!(begun.elapsed() >= delay);
    assert!(maps.get("late").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_flight_ends_and_watches_end_after_it() {
    let cluster = TestCluster::start(0).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.kube().await);
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let (half, address) = (Half::begin(&cluster, "half").await, cluster.cluster.address);
    let stopping = tokio::spawn(cluster.stop());
    until("the port is closed", async || TcpStream::connect(address).await.is_err()).await;
    let answer = half.finish().await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    let mut names = vec![];
    // Without an error in the end.
    while let Some(event) = events.try_next().await.unwrap() {
        if let WatchEvent::Added(map) = event {
            names.extend(map.metadata.name);
        }
    }
    assert_eq!(names, ["half"]);
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_with_a_grace_period_end_while_requests_are_in_flight() {
    let watch_termination = Duration::from_secs(20);
    let options = ShutdownOptions { watch_termination, ..Default::default() };
    let cluster = TestCluster::start_with(|o| o.shutdown = options).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.kube().await);
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let half = Half::begin(&cluster, "half").await;
    let stopping = tokio::spawn(cluster.stop());
    // Without an error in the end.
    while events.try_next().await.unwrap().is_some() {}
    let answer = half.finish().await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_requests_are_refused_until_those_in_flight_have_ended() {
    let cluster = TestCluster::start_with(|o| o.shutdown.send_retry_after = true).await;
    let half = Half::begin(&cluster, "half").await;
    let (other, probe) = (connect(&cluster, true).await, connect(&cluster, true).await);
    let stack = cluster.cluster.stack.clone();
    let stopping = tokio::spawn(cluster.stop());
    until("new requests are refused", async || refuses(&stack)).await;
    let get = |path: &str| Request::get(path).header("host", "localhost").body(Empty::new()).unwrap();
    let refused = send_on(other, get("/api/v1/namespaces")).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "5");
    assert_eq!(refused.headers()[header::CONNECTION], "close");
    let text = refused.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "The apiserver is shutting down, please try again later.\n");
    assert_eq!(send_on(probe, get("/livez")).await.status(), 200);
    let answer = half.finish().await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_end_after_a_share_of_their_requests() {
    let cluster = TestCluster::start_with(|o| o.serving.goaway = GoawayChance::new(0.02).unwrap()).await;
    let stream = connect_for(&cluster, true, &["h2"]).await;
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let mut served = 0;
    while sender.ready().await.is_ok() {
        let request = Request::get("https://localhost/version").body(Empty::new()).unwrap();
        match sender.send_request(request).await {
            Ok(response) => assert_eq!(response.status(), 200),
            // It was not sent.
            Err(error) => {
                assert!(error.is_canceled() || error.is_closed(), "{error}");
                break;
            }
        }
        served += 1;
        assert!(served < 10_000, "the connection goes on");
    }
    connection.await.unwrap().unwrap();
    assert!(served > 0);
    cluster.stop().await;
}

/// A process may have many servers, one after the other: tests, simulations.
#[test]
fn nothing_of_a_server_outlives_it() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let parts = runtime.block_on(async {
        let cluster = TestCluster::start(1).await;
        cluster.kube().await.list_core_api_versions().await.unwrap();
        let stack = &cluster.cluster.stack;
        let weak = (Arc::downgrade(stack), Arc::downgrade(&stack.engine), Arc::downgrade(&stack.aggregator));
        let more =
            (Arc::downgrade(&stack.openapi), Arc::downgrade(&stack.flow), Arc::downgrade(&stack.connector));
        drop(cluster.stop().await);
        (weak, more)
    });
    drop(runtime);
    let ((stack, engine, aggregator), (openapi, flow, connector)) = parts;
    assert_eq!(stack.strong_count(), 0, "stack");
    assert_eq!(engine.strong_count(), 0, "engine");
    assert_eq!(aggregator.strong_count(), 0, "aggregator");
    assert_eq!(openapi.strong_count(), 0, "openapi");
    assert_eq!(flow.strong_count(), 0, "flow control");
    assert_eq!(connector.strong_count(), 0, "connector");
}

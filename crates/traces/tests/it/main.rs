//! Spans on their way to a collector: what arrives, what is dropped, and what a collector that fails costs.

#![allow(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod collector;

use collector::Collector;
use expect_test::expect;
use http::HeaderMap;
use kaji_grpc::Status;
use kaji_meta::{random::SeededRandom, time::Clock};
use kaji_testing::wait::until;
use kaji_traces::{Config, Endpoint, Kind, Limits, Provider, Service, Span, SpanContext, Value, within};
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A clock that is a second further at each look.
#[derive(Default)]
struct Steps(AtomicI64);

impl Clock for Steps {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_second(self.0.fetch_add(1, Ordering::Relaxed)).unwrap()
    }
}

/// Nothing is exported by time alone.
const PATIENT: Limits = Limits {
    queue: 100,
    batch: 50,
    interval: Duration::from_secs(3600),
    call: Duration::from_secs(30),
    retries: Duration::from_secs(30),
    backoff: Duration::from_millis(1),
    last: Duration::from_secs(30),
};

fn provider(endpoint: Endpoint, per_million: u32, limits: Limits) -> Provider {
    let service = Service { name: "apiserver".into(), instance: "apiserver-a".into(), version: "1".into() };
    let config = Config { endpoint, per_million };
    let (clock, random) = (Arc::new(Steps::default()), Arc::new(SeededRandom::new(1)));
    Provider::start(&config, service, limits, clock, random)
}

fn root(provider: &Provider, name: &str) -> Span {
    provider.tracer().begin(name, Kind::Server, None, None)
}

fn remote(flags: &str) -> SpanContext {
    let mut headers = HeaderMap::new();
    let text = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
    headers.insert("traceparent", text.parse().unwrap());
    headers.insert("tracestate", "a=1".parse().unwrap());
    SpanContext::extract(&headers).unwrap()
}

#[tokio::test]
async fn spans_arrive_with_their_parents_and_what_is_known_of_them() {
    let collector = Collector::start(|_| Ok(()));
    let provider = provider(collector.endpoint(), 1_000_000, PATIENT);
    let mut server = provider.tracer().begin("POST /api/v1/pods", Kind::Server, Some(&remote("01")), None);
    server.set("http.response.status_code", 500_u16);
    server.fail("broken");
    let mut child = server.child("Create etcd3", Kind::Internal);
    child.event("Encode succeeded", &[("len", Value::Int(5)), ("dry", true.into())]);
    child.set("key", &"k".repeat(2000));
    drop(child);
    drop(server);
    drop(provider.tracer().begin("GET", Kind::Server, None, Some(&remote("00"))));
    provider.shutdown().await;
    expect![[r#"
        service.name=apiserver service.instance.id=apiserver-a
        by "kaji"
        Create etcd3 (1) 0af7651916cd43dd8448eb211c80319c-beeb8da1658eec67 of 910a2dec89025cc1 "a=1" flags 101, 1s to 3s
          key=1036 bytes to "...TRUNCATED"
          at 2s Encode succeeded len=5 dry=true
        POST /api/v1/pods (2) 0af7651916cd43dd8448eb211c80319c-910a2dec89025cc1 of b7ad6b7169203331 "a=1" flags 301, 0s to 4s
          http.response.status_code=500
          status 2 "broken"
        GET (2) 71c18690ee42c90b71bb54d8d101b5b9-f893a2eefb32555e of  "" flags 101, 5s to 6s
          linked to 0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331 flags 300
    "#]].assert_eq(&collector.shown());
    assert_eq!(provider.dropped(), 0);
}

#[tokio::test]
async fn nothing_is_exported_that_is_not_sampled() {
    let collector = Collector::start(|_| Ok(()));
    let provider = provider(collector.endpoint(), 0, PATIENT);
    let tracer = provider.tracer();
    let unsampled = root(&provider, "root");
    assert!(!unsampled.is_recorded());
    let mut headers = HeaderMap::new();
    unsampled.child("child", Kind::Client).inject(&mut headers);
    assert!(headers["traceparent"].to_str().unwrap().ends_with("-00"), "the decision is passed on");
    drop(unsampled);
    drop(tracer.begin("decided before", Kind::Server, Some(&remote("00")), None));
    drop(tracer.begin("only this", Kind::Server, Some(&remote("01")), None));
    provider.shutdown().await;
    assert_eq!(collector.names(), ["only this"]);
}

#[tokio::test]
async fn a_full_batch_does_not_wait_and_the_rest_comes_at_the_end() {
    let collector = Collector::start(|_| Ok(()));
    let provider = provider(collector.endpoint(), 1_000_000, Limits { batch: 3, ..PATIENT });
    (0..3).for_each(|i| drop(root(&provider, &i.to_string())));
    until("a batch", async || collector.names().len() == 3).await;
    drop(root(&provider, "3"));
    provider.shutdown().await;
    provider.shutdown().await;
    assert_eq!(collector.names(), ["0", "1", "2", "3"]);
}

#[tokio::test]
async fn spans_beyond_the_queue_are_dropped_and_counted() {
    let collector = Collector::start(|_| Ok(()));
    let provider = provider(collector.endpoint(), 1_000_000, Limits { queue: 3, ..PATIENT });
    (0..10).for_each(|i| drop(root(&provider, &i.to_string())));
    assert_eq!(provider.dropped(), 7);
    provider.shutdown().await;
    assert_eq!(collector.names(), ["0", "1", "2"]);
}

#[tokio::test]
async fn an_export_is_tried_again_only_if_that_may_help() {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let collector = Collector::start(move |_| match seen.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Err(Status::unavailable("later")),
        2 => Ok(()),
        _ => Err(Status::invalid_argument("never")),
    });
    let provider = provider(collector.endpoint(), 1_000_000, Limits { batch: 1, ..PATIENT });
    drop(root(&provider, "a"));
    until("a third attempt", async || calls.load(Ordering::Relaxed) == 3).await;
    assert_eq!(provider.dropped(), 0);
    drop(root(&provider, "b"));
    until("a refusal", async || provider.dropped() == 1).await;
    provider.shutdown().await;
    assert_eq!(calls.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn the_end_waits_for_a_collector_for_a_bounded_time() {
    let nowhere = Endpoint::Unix("/nonexistent/otel.sock".into());
    let hanging = Collector::hanging();
    for endpoint in [nowhere, hanging.endpoint()] {
        let limits = Limits { last: Duration::from_millis(10), retries: Duration::ZERO, ..PATIENT };
        let provider = provider(endpoint, 1_000_000, limits);
        drop(root(&provider, "a"));
        tokio::time::timeout(Duration::from_secs(30), provider.shutdown()).await.unwrap();
    }
}

#[tokio::test]
async fn collectors_are_reached_by_tcp_too() {
    let collector = Collector::start(|_| Ok(()));
    let endpoint = collector.over_tcp().await;
    let provider = provider(endpoint, 1_000_000, Limits { batch: 1, ..PATIENT });
    for name in ["a", "b"] {
        drop(root(&provider, name));
        until("an export", async || collector.names().last().is_some_and(|last| last == name)).await;
    }
    provider.shutdown().await;
    assert_eq!(collector.connections(), 1);
}

#[tokio::test]
async fn work_for_a_span_begins_its_children() {
    let collector = Collector::start(|_| Ok(()));
    let provider = provider(collector.endpoint(), 1_000_000, PATIENT);
    assert!(kaji_traces::child("alone").is_none() && kaji_traces::client(&http::Method::GET).is_none());
    assert!(within(None, Box::pin(async { kaji_traces::current().is_none() })).await);
    let span = root(&provider, "root");
    let work = Box::pin(async {
        tokio::task::yield_now().await;
        let mut headers = HeaderMap::new();
        let client = kaji_traces::client(&http::Method::POST).unwrap();
        client.inject(&mut headers);
        assert_eq!(SpanContext::extract(&headers).unwrap().sampled(), client.context().sampled());
        // Another task works for none.
        tokio::spawn(async { kaji_traces::current().is_none() }).await.unwrap()
    });
    assert!(within(Some(span.parent()), work).await);
    assert!(kaji_traces::current().is_none());
    drop(span);
    provider.shutdown().await;
    assert_eq!(collector.names(), ["HTTP POST", "root"]);
}

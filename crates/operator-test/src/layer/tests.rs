//! Tests of the layer against a server that answers by the test's own words.

use super::*;
use crate::fault::Point;
use expect_test::expect;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use std::future::{Ready, ready};

/// Answers writes with an object, lists with their query, watches with lines; keeps what it was asked.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Vec<String>>>);

const EVENTS: [&str; 4] = [
    "{\"type\":\"ADDED\",\"object\":1}\n",
    "{\"type\":\"BOOKMARK\",\"object\":2}\n{\"type\":\"MODIFIED\",",
    "\"object\":3}\n",
    "{\"type\":\"DELETED\",\"object\":4}\n",
];

impl<B> Service<Request<B>> for Server {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let accept = request.headers().get(header::ACCEPT).map(|a| a.to_str().unwrap_or("?").to_owned());
        let asked = format!("{} {} {}", request.method(), request.uri(), accept.unwrap_or_default());
        self.0.lock().unwrap().push(asked.trim().to_owned());
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=1"));
        let body = match watches {
            true => {
                ResponseBody::Stream(stream::iter(EVENTS.map(Bytes::from)).chain(stream::pending()).boxed())
            }
            false => ResponseBody::full(r#"{"metadata":{"name":"made","resourceVersion":"42"},"data":"x"}"#),
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        ready(Ok(response))
    }
}

struct Bench {
    layer: Arc<FaultLayer>,
    signals: mpsc::Receiver<Signal>,
    server: Server,
    /// Answers the other writer.
    administrator: Server,
}

fn fault(kind: FaultKind, verb: &str, resource: &str, nth: u32) -> Fault {
    let (client, verb, resource) = ("op".to_owned(), verb.to_owned(), resource.to_owned());
    Fault { kind, at: Point { client, verb, resource, nth } }
}

impl Bench {
    fn new(faults: Vec<Fault>) -> Bench {
        let administrator = Server::default();
        let client = kube::Client::new(administrator.clone(), "default");
        let (layer, signals) = FaultLayer::new(client, None, faults, Duration::from_secs(3));
        Bench { layer, signals, server: Server::default(), administrator }
    }

    async fn ask(&self, method: &str, uri: &str) -> Result<Response<ResponseBody>, AnswerLost> {
        let request = Request::builder().method(method).uri(uri).header(header::USER_AGENT, "op/v1");
        let request = request.header(header::ACCEPT, "application/vnd.kubernetes.protobuf, application/json");
        let request = request.body(Full::new(Bytes::new())).unwrap();
        FaultService::new(self.layer.clone(), self.server.clone()).call(request).await
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.server.0.lock().unwrap())
    }
}

const MAPS: &str = "/api/v1/namespaces/d/configmaps";

async fn text(response: Response<ResponseBody>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn refuses_the_request_of_the_point_alone_and_without_the_server() {
    let kinds = [
        FaultKind::TooManyRequests,
        FaultKind::InternalError,
        FaultKind::Unavailable,
        FaultKind::WebhookTimeout,
        FaultKind::ExpiredToken,
    ];
    let mut codes = vec![];
    for kind in kinds {
        let bench = Bench::new(vec![fault(kind, "create", "configmaps", 2)]);
        assert_eq!(bench.ask("POST", MAPS).await.unwrap().status(), StatusCode::OK);
        let refused = bench.ask("POST", MAPS).await.unwrap();
        codes.push((refused.status().as_u16(), refused.headers().contains_key(header::RETRY_AFTER)));
        assert!(text(refused).await.contains("\"kind\":\"Status\""));
        assert_eq!(bench.ask("POST", MAPS).await.unwrap().status(), StatusCode::OK);
        assert_eq!(bench.asked().len(), 2);
        assert_eq!(bench.layer.fired(), [fault(kind, "create", "configmaps", 2)]);
    }
    assert_eq!(codes, [(429, true), (500, false), (503, false), (500, false), (401, false)]);
}

#[tokio::test(start_paused = true)]
async fn loses_the_answer_of_a_write_that_was_carried_out() {
    let bench = Bench::new(vec![fault(FaultKind::AnswerLost, "create", "configmaps", 1)]);
    assert_eq!(bench.ask("POST", MAPS).await.err(), Some(AnswerLost));
    expect![[r#"
        [
            "POST /api/v1/namespaces/d/configmaps application/json",
        ]
    "#]]
    .assert_debug_eq(&bench.asked());
    let records = bench.layer.records();
    assert_eq!((records[0].code, records[0].revision), (None, Some(42)));
    assert_eq!(records[0].name, "made");
}

#[tokio::test(start_paused = true)]
async fn another_writer_comes_before_a_conflict() {
    let bench = Bench::new(vec![fault(FaultKind::Conflict, "update", "configmaps/status", 1)]);
    bench.ask("PUT", &format!("{MAPS}/a/status")).await.unwrap();
    let wrote = bench.administrator.0.lock().unwrap().clone();
    assert_eq!(wrote, ["PATCH /api/v1/namespaces/d/configmaps/a"; 2]);
}

#[tokio::test(start_paused = true)]
async fn answers_lists_after_a_kill_as_of_before_the_write() {
    let mut bench = Bench::new(vec![fault(FaultKind::StaleView, "create", "configmaps", 1)]);
    {
        // The request of the client that is killed ends with it.
        let asks = bench.layer.clone().serve(
            bench.server.clone(),
            Request::post(MAPS).header(header::USER_AGENT, "op/v1").body(Full::new(Bytes::new())).unwrap(),
        );
        tokio::select! {
            _ = asks => panic!("there is no answer"),
            signal = bench.signals.recv() => assert_eq!(signal, Some(Signal::Kill)),
        }
    }
    bench.asked();
    for (uri, as_of) in [
        ("/api/v1/configmaps?limit=500&resourceVersion=0", true),
        ("/api/v1/secrets?resourceVersion=0", false),
    ] {
        bench.ask("GET", uri).await.unwrap();
        let asked = bench.asked().remove(0);
        let stale = "GET /api/v1/configmaps?limit=500&resourceVersion=41&resourceVersionMatch=Exact";
        assert_eq!(asked.starts_with(stale), as_of, "{asked}");
    }
    let streamed = "/api/v1/configmaps?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    assert_eq!(bench.ask("GET", streamed).await.unwrap().status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(bench.layer.is_at_work());
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!bench.layer.is_at_work());
    assert_eq!(bench.ask("GET", streamed).await.unwrap().status(), StatusCode::OK);
    bench.asked();
    bench.ask("GET", "/api/v1/configmaps?resourceVersion=0").await.unwrap();
    assert!(bench.asked()[0].starts_with("GET /api/v1/configmaps?resourceVersion=0 "));
}

/// The lines of a watch that come within so many seconds, with the time of each.
async fn lines(response: Response<ResponseBody>, seconds: u64) -> Vec<(u64, String)> {
    let (began, mut body, mut lines) = (Instant::now(), response.into_body(), vec![]);
    let end = began + Duration::from_secs(seconds);
    while let Ok(Some(Ok(frame))) = tokio::time::timeout_at(end, body.frame()).await {
        let line = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
        lines.push((began.elapsed().as_secs(), line.chars().take(40).collect()));
    }
    lines
}

#[tokio::test(start_paused = true)]
async fn skips_states_by_a_watch_that_expires() {
    let bench = Bench::new(vec![fault(FaultKind::SkippedStates, "watch", "configmaps", 2)]);
    let watch = bench.ask("GET", "/api/v1/configmaps?watch=1").await.unwrap();
    expect![[r#"
        [
            (
                0,
                "{\"type\":\"ADDED\",\"object\":1}\n",
            ),
            (
                0,
                "{\"type\":\"BOOKMARK\",\"object\":2}\n",
            ),
            (
                3,
                "{\"object\":{\"apiVersion\":\"v1\",\"code\":410,",
            ),
        ]
    "#]]
    .assert_debug_eq(&lines(watch, 10).await);
}

#[tokio::test(start_paused = true)]
async fn what_a_client_does_by_an_outdated_view_is_not_counted() {
    let bench = Bench::new(vec![fault(FaultKind::SkippedStates, "watch", "configmaps", 1)]);
    let watch = bench.ask("GET", "/api/v1/configmaps?watch=1").await.unwrap();
    let write = || bench.ask("PATCH", "/api/v1/namespaces/n/secrets/a");
    let counted = || bench.layer.recorder(Recorder::requests);
    write().await.unwrap();
    assert_eq!(counted(), 1);
    // The first event begins the fault; the client watches again some time after its watch has expired.
    let expired = lines(watch, 10).await;
    assert_eq!(expired.len(), 1, "{expired:?}");
    for _ in 0..3 {
        write().await.unwrap();
    }
    assert_eq!(counted(), 1);
    bench.ask("GET", "/api/v1/configmaps?watch=1").await.unwrap();
    write().await.unwrap();
    assert_eq!(counted(), 2);
}

#[tokio::test(start_paused = true)]
async fn holds_events_back_after_a_write() {
    let bench = Bench::new(vec![fault(FaultKind::LateEvents, "patch", "configmaps", 1)]);
    let watch = bench.ask("GET", "/api/v1/configmaps?watch=1").await.unwrap();
    bench.ask("PATCH", &format!("{MAPS}/a")).await.unwrap();
    let times: Vec<u64> = lines(watch, 10).await.into_iter().map(|(time, _)| time).collect();
    assert_eq!(times, [3, 3, 3, 3]);
    let points = bench.layer.records().iter().filter(|r| r.point.verb == "watch").count();
    assert_eq!(points, 3, "bookmarks are no events");
}

#[tokio::test(start_paused = true)]
async fn stands_before_the_server_of_a_client_in_this_process() {
    let bench = Bench::new(vec![Fault {
        kind: FaultKind::AnswerLost,
        at: Point { client: "unnamed".into(), verb: "create".into(), resource: "configmaps".into(), nth: 2 },
    }]);
    let service = FaultService::new(bench.layer.clone(), bench.server.clone());
    let client = kube::Client::new(service, "default");
    let create = || Request::post(MAPS).body(b"{}".to_vec()).unwrap();
    assert_eq!(client.request::<Value>(create()).await.unwrap()["data"], "x");
    let lost = client.request::<Value>(create()).await.unwrap_err();
    assert!(lost.to_string().contains("dropped"), "{lost}");
}

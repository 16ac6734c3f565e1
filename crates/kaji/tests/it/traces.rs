//! Traces over the real stack: the spans that a collector gets, the trace that a request is of, and what other servers learn of it.

use crate::common::{
    TestCluster,
    access::{admin, ask, person, user},
    api::Api,
    https::Https,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use expect_test::expect;
use http_body_util::{BodyExt, Full};
use kaji_grpc::{Router, bind, serve};
use kaji_meta::text::hex;
use kaji_resource::Verb;
use kaji_traces::{
    Config, Endpoint,
    otlp::{Any, AnyValue, EXPORT, ExportRequest, ExportResponse, Span},
};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    sync::{Arc, Mutex},
    time::Duration,
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// A sampled span of a client's.
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A cluster, and the spans that it has exported at its end.
struct Traced {
    cluster: TestCluster,
    taken: Arc<Mutex<Vec<ExportRequest>>>,
    _dir: tempfile::TempDir,
}

impl Traced {
    async fn start(per_million: u32) -> Traced {
        let taken: Arc<Mutex<Vec<ExportRequest>>> = Arc::default();
        let seen = taken.clone();
        let router = Router::default().unary(EXPORT, move |request: ExportRequest| {
            seen.lock().unwrap().push(request);
            std::future::ready(Ok(ExportResponse::default()))
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("otel.sock");
        tokio::spawn(serve(bind(&path).unwrap(), router));
        let endpoint = Endpoint::Unix(path.to_str().unwrap().into());
        let change = |options: &mut kaji::Options| options.traces = Some(Config { endpoint, per_million });
        Traced { cluster: TestCluster::start_with(change).await, taken, _dir: dir }
    }

    /// The spans, when the cluster has ended.
    async fn spans(self) -> Vec<Span> {
        self.cluster.stop().await;
        let taken = self.taken.lock().unwrap();
        let resources: Vec<_> = taken.iter().flat_map(|request| &request.resource_spans).collect();
        for resource in &resources {
            let attributes = &resource.resource.as_ref().unwrap().attributes;
            let keys: Vec<&str> = attributes.iter().map(|a| a.key.as_str()).collect();
            assert_eq!(keys, ["service.name", "service.instance.id"]);
        }
        resources.iter().flat_map(|r| &r.scope_spans).flat_map(|s| s.spans.clone()).collect()
    }
}

fn text(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|a| a.key == key).and_then(|a| a.value.clone());
    match found {
        Some(AnyValue { value: Some(Any::Text(text)) }) => text,
        Some(AnyValue { value: Some(Any::Int(number)) }) => number.to_string(),
        _ => String::new(),
    }
}

/// The spans of a trace, children below their parents, with the keys of their attributes.
fn tree(spans: &[Span], parent: &[u8], depth: usize, out: &mut String) {
    for span in spans.iter().filter(|span| span.parent_span_id == parent) {
        let keys: Vec<&str> = span.attributes.iter().map(|a| a.key.as_str()).collect();
        let events: Vec<&str> = span.events.iter().map(|e| e.name.as_str()).collect();
        let _ = writeln!(out, "{}{} [{}] {events:?}", "  ".repeat(depth), span.name, keys.join(" "));
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        tree(spans, &span.span_id, depth + 1, out);
    }
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_a_trace_of_its_steps() {
    let traced = Traced::start(1_000_000).await;
    let post = format!("POST {MAPS}?fieldManager=me\nuser-agent: tester\nhost: kaji.example:6443");
    let (code, _) = ask(&traced.cluster, &admin(), &post, &map("a")).await;
    assert_eq!(code, 201);
    for (request, code) in [("GET", 200), ("DELETE", 200), ("GET", 404)] {
        let asked = ask(&traced.cluster, &admin(), &format!("{request} {MAPS}/a"), &Value::Null).await;
        assert_eq!(asked.0, code, "{request}");
    }
    let spans = traced.spans().await;
    let server = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    let created = server("POST /api/v1/namespaces/{:namespace}/configmaps");
    assert_eq!((created.kind, &*text(created, "http.response.status_code")), (2, "201"));
    assert_eq!(text(created, "http.target"), format!("{MAPS}?fieldManager=me"));
    assert_eq!(text(created, "user_agent.original"), "tester");
    assert_eq!(text(created, "server.address") + ":" + &text(created, "server.port"), "kaji.example:6443");
    let verb = server("Create");
    let facts = ["verb", "resource", "namespace", "scope", "url", "client"].map(|key| text(verb, key));
    assert_eq!(facts, ["POST", "configmaps", "default", "resource", MAPS, "127.0.0.1"]);
    assert_eq!(text(verb, "audit-id"), text(created, "audit-id"));
    assert!(text(server("Create etcd3"), "key").ends_with("/configmaps/default/a"));
    let mut out = String::new();
    for trace in [
        created.trace_id.clone(),
        server("GET /api/v1/namespaces/{:namespace}/configmaps/{:name}").trace_id.clone(),
    ] {
        let of_trace: Vec<Span> = spans.iter().filter(|span| span.trace_id == trace).cloned().collect();
        tree(&of_trace, &[], 0, &mut out);
    }
    expect![[r#"
        authentication [] []
          POST /api/v1/namespaces/{:namespace}/configmaps [server.address server.port http.request.method url.scheme user_agent.original client.address url.path network.protocol.version http.target audit-id http.response.body.size http.response.status_code] []
            audit [] []
              constrainedimpersonation [] []
                priorityandfairness [] []
                  authorization [] []
                    Create [accept audit-id client api-group api-version name subresource namespace protocol resource scope url user-agent verb] ["limitedReadBody succeeded"]
                      Create etcd3 [key group resource] ["Encode succeeded"]
                      SerializeObject [] []
        authentication [] []
          GET /api/v1/namespaces/{:namespace}/configmaps/{:name} [http.request.method url.scheme client.address url.path network.protocol.version http.target audit-id http.response.body.size http.response.status_code] []
            audit [] []
              constrainedimpersonation [] []
                priorityandfairness [] []
                  authorization [] []
                    Get [accept audit-id client api-group api-version name subresource namespace protocol resource scope url user-agent verb] []
                      cacher.Get [type] []
                      SerializeObject [] []
    "#]].assert_eq(&out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_privileged_clients_choose_a_trace() {
    let traced = Traced::start(0).await;
    let version = format!("GET /version\ntraceparent: {PARENT}");
    for client in [admin(), user("prometheus", &["system:monitoring"]), person("bob")] {
        ask(&traced.cluster, &client, &version, &Value::Null).await;
    }
    ask(&traced.cluster, &admin(), "GET /version", &Value::Null).await;
    ask(&traced.cluster, &admin(), "GET /version\ntraceparent: garbage", &Value::Null).await;
    // The authenticated user counts.
    let acting = format!("{version}\nimpersonate-user: x\nimpersonate-group: system:masters");
    ask(&traced.cluster, &person("bob"), &acting, &Value::Null).await;
    let spans = traced.spans().await;
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:?}");
    let servers: Vec<String> =
        spans.iter().filter(|span| span.kind == 2).map(|span| hex(&span.parent_span_id)).collect();
    assert_eq!(servers, ["b7ad6b7169203331", "b7ad6b7169203331"]);

    let traced = Traced::start(1_000_000).await;
    ask(&traced.cluster, &person("bob"), &version, &Value::Null).await;
    let spans = traced.spans().await;
    let server = spans.iter().find(|span| span.kind == 2).unwrap();
    assert_ne!(hex(&server.trace_id), TRACE);
    assert_eq!((server.parent_span_id.len(), hex(&server.links[0].trace_id)), (0, TRACE.to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_learn_of_the_trace() {
    let traced = Traced::start(0).await;
    let dir = tempfile::tempdir().unwrap();
    let server = Https::bind(dir.path()).await;
    let (url, seen) = (server.url.clone(), Arc::new(Mutex::new(Vec::new())));
    let heard = seen.clone();
    let pki = server.serve_requests(move |_, headers, sent| {
        let parent = headers.get("traceparent").map(|v| v.to_str().unwrap().to_owned());
        heard.lock().unwrap().push(parent.unwrap_or_default());
        let review: Value = serde_json::from_slice(&sent).unwrap();
        let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], "allowed": true}});
        let body = Full::new(Bytes::from(answer.to_string())).map_err(|never| match never {}).boxed_unsync();
        std::future::ready(http::Response::new(body))
    });
    let hook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "v"}, "webhooks": [{"name": "v.example.com",
        "clientConfig": {"url": url, "caBundle": STANDARD.encode(&pki.ca.certificate)},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"]}]});
    let path = "admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    Api(&traced.cluster).ok(Verb::Create, path, hook).await;
    let post = format!("POST {MAPS}\ntraceparent: {PARENT}");
    assert_eq!(ask(&traced.cluster, &admin(), &post, &map("a")).await.0, 201);
    let spans = traced.spans().await;
    let span = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    let (call, client) = (span("Call validating webhook"), span("HTTP POST"));
    assert_eq!(text(call, "webhook"), "v.example.com");
    assert_eq!((&client.parent_span_id, client.kind), (&call.span_id, 3));
    assert_eq!(*seen.lock().unwrap(), [format!("00-{TRACE}-{}-01", hex(&client.span_id))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_disturbs_no_request() {
    let endpoint = Endpoint::Unix("/nonexistent/otel.sock".into());
    let config = Config { endpoint, per_million: 1_000_000 };
    let cluster = TestCluster::start_with(|options| options.traces = Some(config)).await;
    // More spans than there are places.
    for _ in 0..600 {
        assert_eq!(ask(&cluster, &admin(), "GET /version", &Value::Null).await.0, 200);
    }
    let traces = cluster.cluster.stack.traces.clone().unwrap();
    tokio::time::timeout(Duration::from_secs(60), cluster.stop()).await.unwrap();
    assert!(traces.dropped() > 0);
}

//! Audit over the real stack: the events that a log and a webhook get.

use crate::common::TestCluster;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use kaji_audit::Options as AuditOptions;
use kaji_resource::UserInfo;
use kaji_server::{LocalService, ResponseBody};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::mpsc;
use tower::ServiceExt;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Writes a policy with rules about requests of `tim` and of unauthenticated clients.
fn options(dir: &Path, rules: &str) -> AuditOptions {
    let file = dir.join("policy.yaml");
    std::fs::write(&file, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
    let mut options = AuditOptions { policy_file: Some(file), ..AuditOptions::default() };
    options.log.path = dir.join("logs/audit.log").to_str().unwrap().into();
    options
}

fn client(cluster: &TestCluster, name: &str, groups: &[&str]) -> LocalService {
    let groups = groups.iter().map(ToString::to_string).collect();
    let user = UserInfo { name: name.into(), groups, ..UserInfo::default() };
    LocalService::new(cluster.cluster.stack.clone(), user)
}

async fn send(
    client: &LocalService,
    method: Method,
    uri: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> Response<ResponseBody> {
    let mut request = Request::builder().method(method).uri(uri).header("user-agent", "test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    client.clone().oneshot(request.body(Full::new(body)).unwrap()).await.unwrap()
}

async fn text(response: Response<ResponseBody>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Events, without what differs from run to run.
fn events(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("logs/audit.log")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
    events.map(plain).collect()
}

fn plain(mut event: Value) -> Value {
    let map = event.as_object_mut().unwrap();
    for time in ["requestReceivedTimestamp", "stageTimestamp"] {
        let at: jiff::Timestamp = map.remove(time).unwrap().as_str().unwrap().parse().unwrap();
        assert!(at > jiff::Timestamp::UNIX_EPOCH);
    }
    for body in ["requestObject", "responseObject"] {
        let Some(body) = map.get_mut(body) else { continue };
        undated(body);
        body.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(undated);
        if let Some(details) = body.get_mut("details").and_then(Value::as_object_mut) {
            details.remove("uid");
        }
    }
    if let Some(annotations) = map.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("authorization.k8s.io/reason");
    }
    event
}

fn undated(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        ["uid", "creationTimestamp", "resourceVersion"].iter().for_each(|f| drop(metadata.remove(*f)));
    }
}

/// `stage level verb uri code`, and whatever of the rest is given.
fn line(event: &Value) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("-").to_owned();
    let mut out = ["stage", "level", "verb", "requestURI"].map(|f| text(&event[f])).join(" ");
    if let Some(status) = event.get("responseStatus") {
        out += &format!(" {} {}", status["code"], text(&status["message"]));
    }
    for field in ["requestObject", "responseObject", "annotations"] {
        if let Some(value) = event.get(field) {
            out += &format!("\n    {field} {value}");
        }
    }
    out
}

#[tokio::test]
async fn the_log_says_what_the_policy_wants() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "omitManagedFields: true\n\
        omitStages: [RequestReceived]\n\
        rules:\n\
        - {level: None, users: ['system:apiserver'], userGroups: []}\n\
        - {level: Metadata, resources: [{resources: [secrets]}]}\n\
        - {level: RequestResponse, resources: [{resources: [configmaps]}], users: [tim]}\n\
        - {level: Request, resources: [{resources: [namespaces]}], users: [tim]}\n\
        - {level: Metadata, nonResourceURLs: ['/version*'], omitStages: [ResponseComplete]}\n\
        - {level: Metadata, users: [eve]}\n";
    let audit = options(dir.path(), rules);
    let cluster = TestCluster::start_with(|o| o.audit = audit).await;
    let tim = client(&cluster, "tim", &["system:masters", "system:authenticated"]);
    let eve = client(&cluster, "eve", &["system:authenticated"]);
    let map = |value: &str| json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": value}});
    let secret = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}, "stringData": {"password": "hush"}});
    let id = [("audit-id", "mine"), ("x-forwarded-for", "192.0.2.7")];
    let answer = send(&tim, Method::POST, SECRETS, &id, secret).await;
    assert_eq!(answer.headers()["audit-id"], "mine");
    assert!(text(answer).await.contains("password"));
    let answer = send(&tim, Method::POST, MAPS, &[], map("v")).await;
    assert_eq!(answer.headers()["audit-id"].len(), 36);
    let patch = [("content-type", "application/merge-patch+json")];
    let object = format!("{MAPS}/a");
    send(&tim, Method::PATCH, &object, &patch, json!({"data": {"k": "w"}})).await;
    let proto = [("accept", "application/vnd.kubernetes.protobuf")];
    send(&tim, Method::GET, &object, &proto, Value::Null).await;
    let listed = send(&tim, Method::GET, &format!("{MAPS}?limit=1"), &[], Value::Null).await;
    assert!(text(listed).await.contains("ConfigMapList"));
    send(&tim, Method::POST, MAPS, &[], map("again")).await;
    send(
        &tim,
        Method::DELETE,
        &object,
        &[],
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}),
    )
    .await;
    send(&tim, Method::POST, "/api/v1/namespaces", &[], json!({"metadata": {"name": "n"}})).await;
    send(&tim, Method::GET, "/version", &[], Value::Null).await;
    send(&tim, Method::GET, "/healthz", &[], Value::Null).await;
    send(&eve, Method::GET, "/api/v1/nodes", &[], Value::Null).await;
    // A watch has begun before it ends.
    let watch =
        send(&tim, Method::GET, &format!("{SECRETS}?watch=true&resourceVersion=0"), &[], Value::Null).await;
    drop(watch);
    // Its end is recorded when the server notices it, which is not before the next request in any case.
    let ended = |line: &str| {
        [r#""verb":"watch""#, r#""stage":"ResponseComplete""#, r#""userAgent":"test""#]
            .iter()
            .all(|part| line.contains(part))
    };
    let log = || std::fs::read_to_string(dir.path().join("logs/audit.log")).unwrap();
    kaji_testing::wait::until("the end of the watch is in the log", async || log().lines().any(ended)).await;
    send(&tim, Method::GET, &format!("{SECRETS}?timeout=soon"), &[], Value::Null).await;
    let metrics = text(send(&tim, Method::GET, "/metrics", &[], Value::Null).await).await;
    assert!(metrics.contains("apiserver_audit_level_total{level=\"RequestResponse\"} 6"), "{metrics}");
    assert!(!metrics.contains("apiserver_audit_error_total{"), "{metrics}");
    cluster.stop().await;
    let log = std::fs::read_to_string(dir.path().join("logs/audit.log")).unwrap();
    assert!(!log.contains("hush") && !log.contains("aHVzaA"), "{log}");
    let events: Vec<Value> = events(dir.path()).into_iter().filter(|e| e["userAgent"] == "test").collect();
    expect_test::expect![[r#"
        {
          "annotations": {
            "authorization.k8s.io/decision": "allow"
          },
          "apiVersion": "audit.k8s.io/v1",
          "auditID": "mine",
          "kind": "Event",
          "level": "Metadata",
          "objectRef": {
            "apiVersion": "v1",
            "name": "s",
            "namespace": "default",
            "resource": "secrets"
          },
          "requestURI": "/api/v1/namespaces/default/secrets",
          "responseStatus": {
            "code": 201,
            "metadata": {}
          },
          "sourceIPs": [
            "192.0.2.7",
            "127.0.0.1"
          ],
          "stage": "ResponseComplete",
          "user": {
            "groups": [
              "system:masters",
              "system:authenticated"
            ],
            "username": "tim"
          },
          "userAgent": "test",
          "verb": "create"
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&events[0]).unwrap());
    let lines: Vec<String> = events.iter().map(line).collect();
    expect_test::expect![[r#"
        ResponseComplete Metadata create /api/v1/namespaces/default/secrets 201 -
            annotations {"authorization.k8s.io/decision":"allow"}
        ResponseComplete RequestResponse create /api/v1/namespaces/default/configmaps 201 -
            requestObject {"apiVersion":"v1","data":{"k":"v"},"kind":"ConfigMap","metadata":{"name":"a"}}
            responseObject {"apiVersion":"v1","data":{"k":"v"},"kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}
            annotations {"authorization.k8s.io/decision":"allow"}
        ResponseComplete RequestResponse patch /api/v1/namespaces/default/configmaps/a 200 -
            requestObject {"data":{"k":"w"}}
            responseObject {"apiVersion":"v1","data":{"k":"w"},"kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}
            annotations {"authorization.k8s.io/decision":"allow"}
        ResponseComplete RequestResponse get /api/v1/namespaces/default/configmaps/a 200 -
            responseObject {"apiVersion":"v1","data":{"k":"w"},"kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}
            annotations {"authorization.k8s.io/decision":"allow"}
        ResponseComplete RequestResponse list /api/v1/namespaces/default/configmaps?limit=1 200 -
            responseObject {"apiVersion":"v1","items":[{"data":{"k":"w"},"metadata":{"name":"a","namespace":"default"}}],"kind":"ConfigMapList","metadata":{}}
            annotations {"authorization.k8s.io/decision":"allow"}
        ResponseComplete RequestResponse create /api/v1/namespaces/default/configmaps 409 configmaps "a" already exists
            requestObject {"apiVersion":"v1","data":{"k":"again"},"kind":"ConfigMap","metadata":{"name":"a"}}
            responseObject {"apiVersion":"v1","code":409,"details":{"kind":"configmaps","name":"a"},"kind":"Status","message":"configmaps \"a\" already exists","metadata":{},"reason":"AlreadyExists","status":"Failure"}
            annotations {"authorization.k8s.io/decision":"allow"}
        ResponseComplete RequestResponse delete /api/v1/namespaces/default/configmaps/a 200 -
            requestObject {"apiVersion":"v1","gracePeriodSeconds":0,"kind":"DeleteOptions"}
            responseObject {"apiVersion":"v1","details":{"kind":"configmaps","name":"a"},"kind":"Status","metadata":{},"status":"Success"}
            annotations {"authorization.k8s.io/decision":"allow"}
        ResponseComplete Request create /api/v1/namespaces 201 -
            requestObject {"apiVersion":"v1","kind":"Namespace","metadata":{"labels":{"kubernetes.io/metadata.name":"n"},"name":"n"},"spec":{},"status":{"phase":"Active"}}
            annotations {"authorization.k8s.io/decision":"allow"}
        ResponseComplete Metadata list /api/v1/nodes 403 nodes is forbidden: User "eve" cannot list resource "nodes" in API group "" at the cluster scope
            annotations {"authorization.k8s.io/decision":"forbid"}
        ResponseStarted Metadata watch /api/v1/namespaces/default/secrets?watch=true&resourceVersion=0 200 -
            annotations {"authorization.k8s.io/decision":"allow"}
        ResponseComplete Metadata watch /api/v1/namespaces/default/secrets?watch=true&resourceVersion=0 200 -
            annotations {"authorization.k8s.io/decision":"allow"}
        ResponseStarted Metadata list /api/v1/namespaces/default/secrets?timeout=soon 400 invalid timeout specified in the request URL - time: invalid duration "soon""#]].assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn what_must_be_recorded_and_cannot_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut audit = options(dir.path(), "rules: [{level: Metadata, users: [tim]}]\n");
    audit.log.path = "/dev/full".into();
    audit.log.max_size = 0;
    audit.log.batch.mode = "blocking-strict".into();
    let cluster = TestCluster::start_with(|o| o.audit = audit).await;
    let tim = client(&cluster, "tim", &["system:masters"]);
    let refused = send(&tim, Method::GET, "/version?x=1", &[], Value::Null).await;
    assert_eq!(refused.status(), 500);
    assert_eq!(text(refused).await, "Internal Server Error: \"/version?x=1\": failed to store audit event\n");
    let admin = client(&cluster, "admin", &["system:masters"]);
    let metrics = text(send(&admin, Method::GET, "/metrics", &[], Value::Null).await).await;
    assert!(metrics.contains("apiserver_audit_requests_rejected_total 1"), "{metrics}");
    assert!(metrics.contains("apiserver_audit_error_total{plugin=\"log\"} 1"), "{metrics}");
    cluster.stop().await;
}

/// A server that is down twice, then tells what it got.
async fn receiver() -> (String, mpsc::UnboundedReceiver<(String, Value)>) {
    let (got, gets) = mpsc::unbounded_channel();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/audit", listener.local_addr().unwrap());
    let failures = Arc::new(AtomicU32::new(2));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (got, failures) = (got.clone(), failures.clone());
            let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                let (got, failures) = (got.clone(), failures.clone());
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let mut response = Response::new(Full::<Bytes>::default());
                    if failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
                    {
                        *response.status_mut() = http::StatusCode::NOT_FOUND;
                    } else {
                        let token = parts.headers["authorization"].to_str().unwrap();
                        let head = format!("{} {} {token}", parts.method, parts.uri);
                        got.send((head, serde_json::from_slice(&body).unwrap())).unwrap();
                    }
                    Ok::<_, Infallible>(response)
                }
            });
            let io = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
        }
    });
    (url, gets)
}

#[tokio::test]
async fn a_webhook_gets_lists_and_is_tried_again() {
    let (url, mut gets) = receiver().await;
    let dir = tempfile::tempdir().unwrap();
    let mut audit =
        options(dir.path(), "omitStages: [ResponseStarted]\nrules: [{level: Metadata, users: [tim]}]\n");
    audit.log.path.clear();
    let config = dir.path().join("webhook.kubeconfig");
    let content = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "a", "cluster": {"server": url}}],
        "users": [{"name": "b", "user": {"token": "s3cret"}}],
        "contexts": [{"name": "c", "context": {"cluster": "a", "user": "b"}}],
    });
    std::fs::write(&config, content.to_string()).unwrap();
    audit.webhook.config_file = Some(config);
    audit.webhook.initial_backoff = Duration::ZERO;
    audit.webhook.batch.max_size = 2;
    let cluster = TestCluster::start_with(|o| o.audit = audit).await;
    let tim = client(&cluster, "tim", &["system:masters"]);
    send(&tim, Method::GET, "/version", &[], Value::Null).await;
    let (head, list) = gets.recv().await.unwrap();
    assert_eq!(head, "POST /audit?timeout=30s Bearer s3cret");
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
    let stages = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|e| format!("{} {}", e["stage"].as_str().unwrap(), e["requestURI"].as_str().unwrap()))
            .collect()
    };
    assert_eq!(stages(&list), ["RequestReceived /version", "ResponseComplete /version"]);
    // What does not fill a batch is sent at the end.
    let watch = send(&tim, Method::GET, &format!("{SECRETS}?watch=true"), &[], Value::Null).await;
    cluster.stop().await;
    drop(watch);
    let (_, list) = gets.recv().await.unwrap();
    assert_eq!(stages(&list), [format!("RequestReceived {SECRETS}?watch=true")]);
}

#[tokio::test]
async fn what_cannot_be_used_keeps_a_cluster_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    let start = async |audit: AuditOptions| {
        let mut options = kaji::Options::new(dir.path().join("data"));
        options.listen = ([127, 0, 0, 1], 0).into();
        options.store = kaji::StoreKind::Memory;
        options.audit = audit;
        kaji::Cluster::start(options).await.err().unwrap().to_string()
    };
    let good = "rules: [{level: Metadata}]\n";
    let mut audit = options(dir.path(), good);
    audit.log.format = "xml".into();
    assert_eq!(start(audit).await, "invalid audit log format xml, allowed formats are \"legacy,json\"");
    let audit = options(dir.path(), "rules: [{level: metadata}]\n");
    let file = dir.path().join("policy.yaml");
    assert_eq!(
        start(audit).await,
        format!(
            "loading audit policy file: rules[0].level: Unsupported value: \"metadata\": supported values: \"None\", \"Metadata\", \"Request\", \"RequestResponse\": from file {}",
            file.display()
        )
    );
    let mut audit = options(dir.path(), good);
    audit.webhook.config_file = Some(dir.path().join("missing"));
    assert!(start(audit).await.starts_with("initializing audit webhook: "));
}

//! Explanations of the API server over TLS: what they say to each caller, and by which requests they are made.

use crate::common::{
    TestCluster,
    access::{admin, ok, person},
    wire,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use kaji_meta::{Query, Status, SystemClock};
use kaji_refusals::{Limits, Refusals};
use kaji_resource::UserInfo;
use kaji_server::{
    Authentication, CallerReads, Discovery, Explain, Explanations, Health, Impersonation, MAX_READS, Metrics,
    OpenApi, Peer, ReadError, ResponseBody, Shutdown, Stack,
};
use serde_json::{Value, json};
use std::sync::Arc;
use tower::ServiceExt;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const WHY_BIG: &str = "/kaji/why?subject=pod/big&namespace=default";

/// `METHOD path` over TLS: with a token, with the admin's certificate for `"admin"`, without credentials for `""`.
async fn ask(cluster: &TestCluster, line: &str, token: &str, headers: &[(&str, &str)]) -> (u16, Value) {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    if !matches!(token, "" | "admin") {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let stream = wire::connect(cluster, token == "admin").await;
    let response = wire::send_on(stream, request.body(Empty::new()).unwrap()).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = || Value::from(String::from_utf8_lossy(&body).into_owned());
    (code, serde_json::from_slice(&body).unwrap_or_else(|_| text()))
}

/// A service account of the default namespace with these rules of the cluster, if there are any, and its token.
async fn account(cluster: &TestCluster, name: &str, rules: Value) -> String {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    ok(cluster, &admin(), &format!("POST {accounts}"), json!({"metadata": {"name": name}})).await;
    let subject = json!({"kind": "ServiceAccount", "namespace": "default", "name": name});
    grant(cluster, name, rules, subject).await;
    let token = ok(cluster, &admin(), &format!("POST {accounts}/{name}/token"), json!({"spec": {}})).await;
    token["status"]["token"].as_str().unwrap().to_owned()
}

async fn grant(cluster: &TestCluster, name: &str, rules: Value, subject: Value) {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    ok(cluster, &admin(), &format!("POST {RBAC}/clusterroles"), role).await;
    bind(cluster, name, name, subject).await;
}

async fn bind(cluster: &TestCluster, name: &str, role: &str, subject: Value) {
    let binding = json!({"metadata": {"name": name}, "subjects": [subject],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}});
    ok(cluster, &admin(), &format!("POST {RBAC}/clusterrolebindings"), binding).await;
}

/// A pod that the cluster's one node, `small`, has no room for.
async fn cluster() -> TestCluster {
    let cluster = TestCluster::start(0).await;
    pod_without_a_node(&cluster).await;
    cluster
}

async fn pod_without_a_node(cluster: &TestCluster) {
    let status = json!({"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True"}]});
    let node = json!({"metadata": {"name": "small"}, "status": status});
    ok(cluster, &admin(), "POST /api/v1/nodes", node).await;
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "4"}}});
    let pod = json!({"metadata": {"name": "big"}, "spec": {"containers": [container]}});
    ok(cluster, &admin(), "POST /api/v1/namespaces/default/pods", pod).await;
}

fn pods(verbs: &[&str]) -> Value {
    json!({"apiGroups": [""], "resources": ["pods"], "verbs": verbs})
}

/// The summary of the first cause, and whether the chain names the node.
fn told(report: &Value) -> (&str, bool) {
    (report["causes"][0]["summary"].as_str().unwrap(), report["causes"].to_string().contains("small"))
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_told_what_they_may_read() {
    let cluster = cluster().await;
    let (code, report) = ask(&cluster, &format!("GET {WHY_BIG}"), "admin", &[]).await;
    assert_eq!((code, &report["subject"]), (200, &json!("Pod default/big")), "{report}");
    assert_eq!(told(&report), ("no node takes it (0 of 1)", true), "{report}");
    assert!(report["causes"].to_string().contains("Insufficient cpu"), "{report}");
    assert_eq!(report["unknown"], json!([]));

    let reader = account(&cluster, "reader", json!([pods(&["get"])])).await;
    let (code, report) = ask(&cluster, &format!("GET {WHY_BIG}"), &reader, &[]).await;
    assert_eq!((code, told(&report)), (200, ("it has no node", false)), "{report}");
    let unknown: Vec<&str> = report["unknown"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let unknown = unknown.join(" ");
    for refused in ["nodes", "pods"] {
        let user = "system:serviceaccount:default:reader";
        let text = format!(r#"User "{user}" cannot list resource "{refused}""#);
        assert!(unknown.contains(&text), "{unknown}");
    }
    assert!(!report.to_string().contains("small"), "{report}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_without_rights_learns_nothing() {
    let cluster = cluster().await;
    let nothing = account(&cluster, "nothing", json!([])).await;
    let of = |name: &str| format!("GET /kaji/why?subject=pod/{name}&namespace=default");
    let (code, big) = ask(&cluster, &of("big"), &nothing, &[]).await;
    assert_eq!((code, &big["kind"], &big["reason"]), (403, &json!("Status"), &json!("Forbidden")), "{big}");
    let message = big["message"].as_str().unwrap();
    let (_, absent) = ask(&cluster, &of("absent"), &nothing, &[]).await;
    assert_eq!(absent["message"].as_str().unwrap().replace("absent", "big"), message);
    let (_, itself) = ask(&cluster, "GET /api/v1/namespaces/default/pods/big", &nothing, &[]).await;
    assert_eq!(itself["message"], message);
    // A caller that may read it gets 404.
    let (code, absent) = ask(&cluster, &of("absent"), "admin", &[]).await;
    assert_eq!((code, &absent["message"]), (404, &json!("pods \"absent\" not found")));

    let parameters = json!({"parameters": ["subject", "namespace", "refusal"]});
    assert_eq!(ask(&cluster, "GET /kaji/why", &nothing, &[]).await, (200, parameters));
    let (code, refused) = ask(&cluster, &of("big"), "", &[]).await;
    let text = r#"forbidden: User "system:anonymous" cannot get path "/kaji/why""#;
    assert_eq!((code, refused["message"].as_str().unwrap()), (403, text));
    assert_eq!(ask(&cluster, &of("big"), "wrong", &[]).await.0, 401);
    for (line, code) in [
        ("GET /kaji/why?subject=pod", 400),
        ("GET /kaji/why?subject=pods.example.com/a", 400),
        ("GET /kaji/why?refusal=nonsense", 400),
        ("GET /kaji/why/", 404),
        ("POST /kaji/why?subject=pod/big", 405),
    ] {
        assert_eq!(ask(&cluster, line, "admin", &[]).await.0, code, "{line}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_have_the_callers_groups_and_no_others() {
    let cluster = cluster().await;
    // A group that has the path, and nothing of what every authenticated user has.
    let group =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"});
    bind(&cluster, "anonymous", "kaji:explanations-reader", group).await;
    let (code, refused) = ask(&cluster, &format!("GET {WHY_BIG}"), "", &[]).await;
    let text = r#"forbidden: User "system:anonymous" cannot get path "/api""#;
    assert_eq!((code, refused["message"].as_str().unwrap()), (403, text));
    // A right of a service account's group reaches its reads.
    let group =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts"});
    grant(&cluster, "accounts", json!([pods(&["get"])]), group).await;
    let nothing = account(&cluster, "nothing", json!([])).await;
    let (code, report) = ask(&cluster, &format!("GET {WHY_BIG}"), &nothing, &[]).await;
    assert_eq!((code, told(&report)), (200, ("it has no node", false)), "{report}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_impersonated_as_their_request_is() {
    let cluster = cluster().await;
    let why = format!("GET {WHY_BIG}");
    account(&cluster, "nothing", json!([])).await;
    let to_nothing = [("impersonate-user", "system:serviceaccount:default:nothing")];
    let (code, refused) = ask(&cluster, &why, "admin", &to_nothing).await;
    let text = r#"pods "big" is forbidden: User "system:serviceaccount:default:nothing" cannot get resource "pods" in API group "" in the namespace "default""#;
    assert_eq!((code, refused["message"].as_str().unwrap()), (403, text));

    // One that may impersonate an administrator for some requests alone.
    let ada = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ada"});
    bind(&cluster, "ada", "cluster-admin", ada).await;
    let on = "impersonate-on:user-info:get";
    let ada = json!({"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "resourceNames": ["ada"],
        "verbs": ["impersonate:user-info"]});
    let paths = |paths: &[&str]| json!({"nonResourceURLs": paths, "verbs": [on]});
    let robot = account(&cluster, "robot", json!([ada, paths(&["/kaji/why"])])).await;
    let to_ada = [("impersonate-user", "ada")];
    assert_eq!(ask(&cluster, "GET /kaji/why", &robot, &to_ada).await.0, 200);
    assert_eq!(ask(&cluster, &why, &robot, &to_ada).await.0, 403);
    let subject = json!({"kind": "ServiceAccount", "namespace": "default", "name": "robot"});
    grant(&cluster, "more", json!([paths(&["/api", "/apis"]), pods(&[on])]), subject).await;
    let (code, report) = ask(&cluster, &why, &robot, &to_ada).await;
    assert_eq!((code, told(&report)), (200, ("it has no node", false)), "{report}");
    assert!(report["unknown"].to_string().contains("impersonate"), "{report}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_recorded_as_requests_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.yaml");
    let rules = "rules: [{level: Metadata, omitStages: [RequestReceived]}]\n";
    std::fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
    let log = dir.path().join("audit.log");
    let mut audit = kaji_audit::Options { policy_file: Some(policy), ..Default::default() };
    audit.log.path = log.to_str().unwrap().into();
    let cluster = TestCluster::start_with(|options| options.audit = audit).await;
    pod_without_a_node(&cluster).await;
    let headers = [
        ("audit-id", "one"),
        ("user-agent", "browser"),
        ("x-forwarded-for", "192.0.2.7"),
        ("impersonate-user", "ada"),
    ];
    let ada = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ada"});
    bind(&cluster, "ada", "cluster-admin", ada).await;
    assert_eq!(ask(&cluster, &format!("GET {WHY_BIG}"), "admin", &headers).await.0, 200);
    cluster.stop().await;
    let log = std::fs::read_to_string(log).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let events: Vec<Value> = events.filter(|event| event["auditID"] == "one").collect();
    let uris: Vec<&str> = events.iter().map(|event| event["requestURI"].as_str().unwrap()).collect();
    for uri in [WHY_BIG, "/api", "/apis", "/api/v1/namespaces/default/pods/big", "/api/v1/nodes?limit=2000"] {
        assert!(uris.contains(&uri), "{uri}: {uris:?}");
    }
    for event in &events {
        for part in ["user", "impersonatedUser", "userAgent", "sourceIPs"] {
            assert_eq!(event[part], events[0][part], "{event}");
        }
    }
    let event = &events[0];
    assert_eq!(event["impersonatedUser"]["username"], "ada");
    assert_eq!(event["userAgent"], "browser");
    assert_eq!(event["sourceIPs"], json!(["192.0.2.7", "127.0.0.1"]));
}

/// Says what becomes of reads.
struct Probe;

impl Explain for Probe {
    fn parameters(&self) -> &'static [&'static str] {
        &[]
    }

    fn explain(&self, reads: CallerReads, _: Query) -> BoxFuture<'static, Result<Bytes, Status>> {
        Box::pin(async move {
            let mut said = vec![];
            for request in [
                Request::post("/api/v1/namespaces/default/configmaps"),
                Request::delete("/api/v1/nodes/small"),
                Request::get("/kaji/why?subject=pod/big"),
                Request::get("/version").header("impersonate-user", "root"),
                Request::get("/version").header("authorization", "Bearer wrong"),
            ] {
                said.push(shown(reads.clone().oneshot(request.body(()).unwrap()).await));
            }
            let mut more = 0;
            while let Ok(read) = reads.clone().oneshot(Request::get("/version").body(()).unwrap()).await {
                assert_eq!(read.status(), 200);
                more += 1;
            }
            said.push(more.to_string());
            said.push(shown(reads.oneshot(Request::get("/version").body(()).unwrap()).await));
            Ok(said.join("\n").into())
        })
    }
}

fn shown(read: Result<Response<ResponseBody>, ReadError>) -> String {
    read.map_or_else(|error| error.to_string(), |response| response.status().to_string())
}

/// The cluster's server, with a probe for its explanations.
fn probed(test: &TestCluster) -> Arc<Stack> {
    let good = &test.cluster.stack;
    Arc::new(Stack {
        engine: good.engine.clone(),
        authentication: Authentication {
            chain: good.authentication.chain.clone(),
            clock: Arc::new(SystemClock),
        },
        impersonation: Impersonation::default(),
        issuer: None,
        aggregator: good.aggregator.clone(),
        connector: good.connector.clone(),
        authorizer: good.authorizer.clone(),
        health: Health::default(),
        shutdown: Shutdown::default(),
        metrics: Metrics::default(),
        zpages: good.zpages.clone(),
        discovery: Discovery::default(),
        openapi: Arc::new(OpenApi::new(kaji_schema::docs::type_doc)),
        address: good.address.clone(),
        flow: good.flow.clone(),
        request_timeout: good.request_timeout,
        body_memory: good.body_memory.clone(),
        audit: None,
        traces: None,
        random: good.random.clone(),
        refusals: Arc::new(Refusals::new(Arc::new(SystemClock), Limits::default())),
        snapshots: None,
        explanations: Some(Explanations::new(Arc::new(Probe))),
    })
}

async fn probe(stack: &Arc<Stack>, user: UserInfo) -> String {
    let request = Request::get("/kaji/why?subject=x").extension(Peer::trusted(Arc::new(user)));
    let response = stack.clone().serve(request.body(Empty::<Bytes>::new()).unwrap()).await;
    assert_eq!(response.status(), 200);
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_reads_are_made_and_only_so_many() {
    let test = TestCluster::start(0).await;
    let stack = probed(&test);
    let text = probe(&stack, admin()).await;
    assert_eq!(text, probe(&stack, person("ada")).await);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..5],
        ["POST is no read", "DELETE is no read", "404 Not Found", "200 OK", "200 OK"],
        "{text}"
    );
    assert_eq!(lines[5..], [(MAX_READS - 3).to_string(), ReadError::TooMany.to_string()], "{text}");
    test.stop().await;
}

//! What breaks while a request is served breaks that request alone: wherever it happens, the answer is 500, it is counted,
//! recorded and logged, and the next request is served.

use crate::common::{
    TestCluster,
    access::{admin, person},
};
use bytes::Bytes;
use futures_util::stream;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use kaji_auth::{
    Authorizer,
    authn::{Anonymous, Chain, TokenAuthenticator, TokenChain, Verdict},
    authz::{Attributes, Outcome, Rules},
};
use kaji_meta::{SystemClock, field::ErrorList};
use kaji_refusals::{Limits, Refusals};
use kaji_resource::{BoxFuture, Ctx, Hooks, ResourceDef, Scope, UserInfo, name_column};
use kaji_server::{
    Authentication, Discovery, Health, Impersonation, Metrics, OpenApi, Peer, ResponseBody, Shutdown, Stack,
};
use serde_json::Value;
use std::{convert::Infallible, sync::Arc};

const TEXT: &str = "This request caused apiserver to panic. Look in the logs for details.\n";

struct Breaks(Arc<dyn Authorizer>);

impl TokenAuthenticator for Breaks {
    fn authenticate<'a>(&'a self, _: &'a str, _: &'a [String]) -> BoxFuture<'a, Verdict> {
        Box::pin(async { panic!("authentication broke") })
    }
}

impl Authorizer for Breaks {
    fn authorize<'a>(&'a self, asked: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        assert_ne!(asked.user.name, "eve", "authorization broke");
        self.0.authorize(asked)
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Rules> {
        self.0.rules(user, namespace)
    }
}

impl Hooks for Breaks {
    fn validate_create(&self, _: &Ctx<'_>, _: &Value) -> ErrorList {
        panic!("validation broke")
    }
}

/// The same cluster, with parts that break.
async fn broken(test: &TestCluster) -> Arc<Stack> {
    let good = &test.cluster.stack;
    let breaks = || Breaks(good.authorizer.clone());
    let columns = const { &[name_column()] };
    // The type of another kind: there is none of their own.
    let fragile = ResourceDef::builtin("", "v1", "ConfigMap", "fragiles", Scope::Cluster, columns, breaks());
    good.engine.register(vec![fragile]).await.unwrap();
    let mut tokens = TokenChain::new(vec![]);
    tokens.push(Arc::new(breaks()));
    let health = Health::default();
    health.add("broken", Arc::new(|| panic!("a check broke")));
    Arc::new(Stack {
        engine: good.engine.clone(),
        authentication: Authentication {
            chain: Chain { proxy: None, tokens: Arc::new(tokens), anonymous: Anonymous::Everywhere },
            clock: Arc::new(SystemClock),
        },
        impersonation: Impersonation::default(),
        issuer: None,
        aggregator: good.aggregator.clone(),
        connector: good.connector.clone(),
        authorizer: Arc::new(breaks()),
        health,
        shutdown: Shutdown::default(),
        metrics: Metrics::default(),
        zpages: good.zpages.clone(),
        discovery: Discovery::default(),
        openapi: Arc::new(OpenApi::new(kaji_schema::docs::type_doc)),
        address: good.address.clone(),
        flow: good.flow.clone(),
        request_timeout: good.request_timeout,
        body_memory: good.body_memory.clone(),
        audit: good.audit.clone(),
        traces: None,
        random: good.random.clone(),
        refusals: Arc::new(Refusals::new(Arc::new(SystemClock), Limits::default())),
        snapshots: None,
        explanations: None,
    })
}

async fn ask<B>(stack: &Arc<Stack>, user: Option<UserInfo>, request: &str, body: B) -> (u16, String)
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (method, path) = request.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    match user {
        Some(user) => request = request.extension(Peer::trusted(Arc::new(user))),
        None => request = request.header("authorization", "Bearer t"),
    }
    let response: http::Response<ResponseBody> = stack.clone().serve(request.body(body).unwrap()).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_breaks_breaks_one_request() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.yaml");
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
        .unwrap();
    let log = dir.path().join("audit.log");
    let mut audit = kaji_audit::Options { policy_file: Some(policy), ..Default::default() };
    audit.log.path = log.to_str().unwrap().into();
    let test = TestCluster::start_with(|o| o.audit = audit).await;
    let stack = broken(&test).await;
    let none = || Full::new(Bytes::new());
    let map =
        || Full::new(Bytes::from(r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}"#));
    let breaking = || {
        StreamBody::new(stream::poll_fn(|_| -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            panic!("a body broke")
        }))
    };
    let maps = "POST /api/v1/namespaces/default/configmaps";
    let expected = (500, TEXT.to_owned());
    assert_eq!(ask(&stack, None, "GET /api/v1/nodes", none()).await, expected, "authentication");
    assert_eq!(ask(&stack, Some(person("eve")), "GET /version", none()).await, expected, "authorization");
    assert_eq!(ask(&stack, Some(admin()), "GET /readyz", none()).await, expected, "a plain path");
    assert_eq!(ask(&stack, Some(admin()), maps, breaking()).await, expected, "a body");
    assert_eq!(ask(&stack, Some(admin()), "POST /api/v1/fragiles", map()).await, expected, "the engine");

    // All others are served, and nothing is held any more.
    assert_eq!(ask(&stack, Some(admin()), maps, map()).await.0, 201);
    assert_eq!(ask(&stack, Some(admin()), "GET /api/v1/fragiles/m", none()).await.0, 404);
    let page = stack.metrics.render(&stack.engine, &stack.flow);
    let broke: u32 = page
        .lines()
        .filter(|l| l.starts_with("apiserver_request_total{") && l.contains("code=\"500\""))
        .map(|l| l.rsplit(' ').next().unwrap().parse::<u32>().unwrap())
        .sum();
    assert_eq!(broke, 5, "{page}");
    let held: Vec<&str> =
        page.lines().filter(|l| l.starts_with("apiserver_current_inflight_requests{")).collect();
    assert!(held.len() == 2 && held.iter().all(|l| l.ends_with(" 0")), "{held:?}");
    drop(stack);
    test.stop().await;
    let log = std::fs::read_to_string(log).unwrap();
    // A request has no user yet when its authentication panics, so there is no record to go on with.
    assert_eq!(log.lines().filter(|l| l.contains("\"stage\":\"Panic\"")).count(), 4, "{log}");
}

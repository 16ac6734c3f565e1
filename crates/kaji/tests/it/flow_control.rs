//! API Priority and Fairness over the real stack: requests that are rejected or queued, and the objects that the server keeps.

use crate::common::{TestCluster, api::Api};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use k8s_openapi::api::core::v1::ConfigMap;
use kaji_meta::field::ErrorList;
use kaji_resource::{Ctx, Hooks, ResourceDef, Scope, UserInfo, Verb, name_column};
use kaji_server::{FlowControl, LocalService, RequestInfo, ResponseBody, flowcontrol::Seat};
use kube::api::WatchEvent;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;
use tower::ServiceExt;

const MINUTE: Duration = Duration::from_secs(60);
const PODS: &str = "/api/v1/namespaces/default/pods";
const SCHEMAS: &str = "flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";

/// A user; its requests go to the level "tiny", which has one seat.
async fn tiny(cluster: &TestCluster, response: Value) -> LocalService {
    let api = Api(cluster);
    let level = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": {"name": "tiny"},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 1, "borrowingLimitPercent": 0, "limitResponse": response}}});
    let schema = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": {"name": "tiny"},
        "spec": {"matchingPrecedence": 2, "priorityLevelConfiguration": {"name": "tiny"},
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{"subjects": [{"kind": "User", "user": {"name": "tiny"}}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
                    "namespaces": ["*"], "clusterScope": true}]}]}});
    api.ok(Verb::Create, SCHEMAS, schema).await;
    api.until(SCHEMAS, "tiny", |s| dangling(s) == Some("True")).await;
    api.ok(Verb::Create, LEVELS, level).await;
    api.until(SCHEMAS, "tiny", |s| dangling(s) == Some("False")).await;
    LocalService::new(cluster.cluster.stack.clone(), user())
}

fn user() -> UserInfo {
    UserInfo { name: "tiny".into(), groups: vec!["system:authenticated".into()], ..UserInfo::default() }
}

/// A seat of the level "tiny", taken as a request takes it.
async fn seat(cluster: &TestCluster, uri: &str) -> Seat {
    let stack = &cluster.cluster.stack;
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let info = RequestInfo::parse(&Method::GET, path, kaji_meta::Query::parse(query)).unwrap();
    let seat = stack.flow.acquire_seats(&stack.engine, &user(), &info, MINUTE, &mut Default::default()).await;
    seat.ok().unwrap().unwrap()
}

fn dangling(schema: Option<&Value>) -> Option<&str> {
    schema?["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "Dangling")?["status"].as_str()
}

async fn get(client: &LocalService, path: &str) -> Response<ResponseBody> {
    client.clone().oneshot(Request::get(path).body(Full::<Bytes>::default()).unwrap()).await.unwrap()
}

async fn text_of(client: &LocalService, path: &str) -> String {
    let page = get(client, path).await.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(page.to_vec()).unwrap()
}

/// One cell of the debug page about levels.
async fn cell(admin: &LocalService, level: &str, column: usize) -> String {
    let page = text_of(admin, "/debug/api_priority_and_fairness/dump_priority_levels").await;
    let line = page.lines().find(|l| l.starts_with(&format!("{level},"))).unwrap();
    line.split(',').nth(column).unwrap().trim().to_owned()
}

const WAITING: usize = 4;
const EXECUTING: usize = 5;

async fn until_cell(admin: &LocalService, column: usize, value: &str) {
    while cell(admin, "tiny", column).await != value {
        tokio::task::yield_now().await;
    }
}

fn admin(cluster: &TestCluster) -> LocalService {
    let groups = vec!["system:masters".into(), "system:authenticated".into()];
    let user = UserInfo { name: "admin".into(), groups, ..UserInfo::default() };
    LocalService::new(cluster.cluster.stack.clone(), user)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_requests_without_a_seat() {
    let cluster = TestCluster::start_with(|options| options.limits.reading = 10).await;
    let (client, admin) = (tiny(&cluster, json!({"type": "Reject"})).await, admin(&cluster));
    let held = seat(&cluster, PODS).await;
    assert_eq!(cell(&admin, "tiny", EXECUTING).await, "1");
    let refused = get(&client, "/version").await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    let api = Api(&cluster);
    for (header, path) in [
        ("x-kubernetes-pf-flowschema-uid", format!("{SCHEMAS}/tiny")),
        ("x-kubernetes-pf-prioritylevel-uid", format!("{LEVELS}/tiny")),
    ] {
        let object = api.ok(Verb::Get, &path, Value::Null).await;
        assert_eq!(refused.headers()[header], object["metadata"]["uid"].as_str().unwrap());
    }
    let text = refused.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "Too many requests, please try again later.\n");
    // Others have seats of their own.
    assert_eq!(get(&admin, PODS).await.status(), 200);
    drop(held);
    assert_eq!(get(&client, "/version").await.status(), 200);
    let metrics = text_of(&admin, "/metrics").await;
    for line in [
        r#"apiserver_flowcontrol_rejected_requests_total{flow_schema="tiny",priority_level="tiny",reason="concurrency-limit"} 1"#,
        r#"apiserver_flowcontrol_current_limit_seats{priority_level="tiny"} 1"#,
        r#"apiserver_flowcontrol_priority_level_seat_utilization_count{phase="executing",priority_level="tiny"} "#,
        r#"apiserver_request_total{code="429",component="",dry_run="",group="",resource="",scope="",subresource="/version",verb="GET",version=""} 1"#,
        r#"apiserver_flowcontrol_dispatched_requests_total{flow_schema="tiny",priority_level="tiny"} 2"#,
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    cluster.stop().await;
}

/// Stores how many CPU permits are held while a create is validated.
struct HeldPermits {
    flow: Arc<FlowControl>,
    held: Arc<AtomicUsize>,
}

impl Hooks for HeldPermits {
    fn validate_create(&self, _: &Ctx<'_>, _: &Value) -> ErrorList {
        self.held.store(self.flow.held_cpu_permits(), Ordering::Relaxed);
        ErrorList::default()
    }
}

#[tokio::test]
async fn a_write_holds_its_cpu_permit_while_it_computes() {
    let cluster = TestCluster::start(0).await;
    let stack = &cluster.cluster.stack;
    let held = Arc::new(AtomicUsize::new(usize::MAX));
    let hooks = HeldPermits { flow: stack.flow.clone(), held: held.clone() };
    let columns = const { &[name_column()] };
    let def = ResourceDef::builtin("", "v1", "ConfigMap", "probes", Scope::Cluster, columns, hooks);
    stack.engine.register(vec![def]).await.unwrap();
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "tiny"}, "subjects": [{"kind": "User", "name": "tiny"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    Api(&cluster).ok(Verb::Create, "rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p"}}).to_string();
    let request = Request::post("/api/v1/probes").header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(object))).unwrap();
    let client = LocalService::new(stack.clone(), user());
    assert_eq!(client.oneshot(request).await.unwrap().status(), 201);
    assert_eq!(held.load(Ordering::Relaxed), 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_has_its_seat_until_it_has_begun() {
    let cluster = TestCluster::start_with(|options| options.limits.reading = 10).await;
    let (client, admin) = (tiny(&cluster, json!({"type": "Reject"})).await, admin(&cluster));
    let seat = seat(&cluster, &format!("{PODS}?watch=1")).await;
    // One event that is there at once, then nothing.
    let events = stream::iter([Bytes::from_static(b"{}")]).chain(stream::pending()).boxed();
    let mut body = kaji_server::flowcontrol::hold(ResponseBody::Stream(events), Some(seat), MINUTE);
    assert!(body.frame().await.is_some());
    assert_eq!(get(&client, "/version").await.status(), 429);
    assert!(futures_util::poll!(body.frame()).is_pending());
    assert_eq!(cell(&admin, "tiny", EXECUTING).await, "0");
    assert_eq!(get(&client, "/version").await.status(), 200);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_loses_its_seat() {
    let cluster = TestCluster::start_with(|options| options.limits.reading = 10).await;
    let (_client, admin) = (tiny(&cluster, json!({"type": "Reject"})).await, admin(&cluster));
    let seat = seat(&cluster, PODS).await;
    let pieces = ResponseBody::Lazy(Box::new(std::iter::repeat(Bytes::from_static(b"{}"))));
    let _unread = kaji_server::flowcontrol::hold(pieces, Some(seat), Duration::from_millis(1));
    until_cell(&admin, EXECUTING, "0").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_requests_without_a_free_seat() {
    let cluster = TestCluster::start_with(|options| options.limits.reading = 10).await;
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 2});
    let client = tiny(&cluster, json!({"type": "Queue", "queuing": queuing})).await;
    let admin = admin(&cluster);
    let held = seat(&cluster, PODS).await;
    let one = || {
        let client = client.clone();
        tokio::spawn(async move { get(&client, "/version").await.status().as_u16() })
    };
    let waits = one();
    until_cell(&admin, WAITING, "1").await;
    let leaves = one();
    until_cell(&admin, WAITING, "2").await;
    assert_eq!(get(&client, "/version").await.status(), 429, "the queue is full");
    // A request that is cancelled leaves its queue.
    leaves.abort();
    until_cell(&admin, WAITING, "1").await;
    let requests =
        text_of(&admin, "/debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1").await;
    assert!(requests.lines().any(|l| l.starts_with("tiny,") && l.contains("/version,")), "{requests}");
    let metrics = text_of(&admin, "/metrics").await;
    assert!(
        metrics.contains(r#"apiserver_current_inqueue_requests{request_kind="readOnly"} 1"#),
        "{metrics}"
    );
    drop(held);
    assert_eq!(waits.await.unwrap(), 200);
    until_cell(&admin, EXECUTING, "0").await;
    cluster.stop().await;
}

/// A client that counts against the level of service accounts, unlike the administrator, which is exempt.
async fn account(cluster: &TestCluster, name: &str) -> kube::Client {
    let api = Api(cluster);
    api.ok(Verb::Create, "/v1/serviceaccounts?namespace=default", json!({"metadata": {"name": name}})).await;
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    });
    let bindings = "rbac.authorization.k8s.io/v1/rolebindings?namespace=default";
    api.ok(Verb::Create, bindings, binding).await;
    let asked = format!("/v1/serviceaccounts/{name}/token?namespace=default");
    let token = api.ok(Verb::Create, &asked, json!({"spec": {}})).await["status"]["token"].clone();
    let file = std::fs::read_to_string(&cluster.kubeconfig).unwrap();
    let mut config: Value = serde_saphyr::from_str(&file).unwrap();
    config["users"][0]["user"] = json!({"token": token});
    let config = serde_json::from_value(config).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

/// Connections that flood change threads while they are used: nothing of what goes over them may suffer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_answered_whole() {
    const AT_ONCE: usize = 64;
    const EACH: usize = 12;
    let cluster = TestCluster::start(0).await;
    let maps: kube::Api<ConfigMap> = kube::Api::default_namespaced(account(&cluster, "flood").await);
    let begin = maps.list(&Default::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = maps.watch(&Default::default(), &begin).await.unwrap().boxed();
    let one = |i: usize| {
        let maps = maps.clone();
        async move {
            for j in 0..EACH {
                let name = format!("m-{i}-{j}");
                let text = "x".repeat(100 * j);
                let data = [("k".to_owned(), text.clone())];
                let mut map = ConfigMap { data: Some(data.into()), ..Default::default() };
                map.metadata.name = Some(name.clone());
                maps.create(&Default::default(), &map).await.unwrap();
                assert_eq!(maps.get(&name).await.unwrap().data.unwrap()["k"], text);
            }
        }
    };
    let all: JoinSet<()> = (0..AT_ONCE).map(one).collect();
    let mut seen = std::collections::BTreeSet::new();
    let watching = async {
        while seen.len() < AT_ONCE * EACH {
            let Some(Ok(WatchEvent::Added(map))) = events.next().await else { continue };
            seen.insert(map.metadata.name.unwrap());
        }
    };
    let done = async { tokio::join!(all.join_all(), watching) };
    tokio::time::timeout(MINUTE * 2, done).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_keeps_its_own_configuration_up() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let names = |list: Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|o| o["metadata"]["name"].as_str().unwrap().into())
            .collect()
    };
    let schemas = names(api.ok(Verb::List, SCHEMAS, Value::Null).await);
    let levels = names(api.ok(Verb::List, LEVELS, Value::Null).await);
    expect_test::expect![[r#"
        catch-all exempt global-default kube-controller-manager kube-scheduler kube-system-service-accounts probes service-accounts system-leader-election system-node-high system-nodes
        catch-all exempt global-default leader-election node-high system workload-high workload-low"#]]
    .assert_eq(&format!("{}\n{}", schemas.join(" "), levels.join(" ")));
    for name in &schemas {
        api.until(SCHEMAS, name, |s| dangling(s) == Some("False")).await;
    }
    let admin = admin(&cluster);
    let before = api.ok(Verb::Get, &format!("{SCHEMAS}/exempt"), Value::Null).await;
    assert_eq!(
        get(&admin, "/version").await.headers()["x-kubernetes-pf-flowschema-uid"],
        before["metadata"]["uid"].as_str().unwrap()
    );
    // Gone or changed, the server's objects come back.
    api.ok(Verb::Delete, &format!("{SCHEMAS}/catch-all"), Value::Null).await;
    api.ok(Verb::Delete, &format!("{LEVELS}/system"), Value::Null).await;
    let shares = json!([{"op": "replace", "path": "/spec/limited/nominalConcurrencyShares", "value": 7},
        {"op": "replace", "path": "/metadata/annotations/apf.kubernetes.io~1autoupdate-spec", "value": "false"}]);
    api.ok(Verb::Patch, &format!("{LEVELS}/workload-low"), shares).await;
    kaji_server::flowcontrol::ensure(&cluster.cluster.stack.engine).await.unwrap();
    api.ok(Verb::Get, &format!("{SCHEMAS}/catch-all"), Value::Null).await;
    let system = api.ok(Verb::Get, &format!("{LEVELS}/system"), Value::Null).await;
    assert_eq!(system["spec"]["limited"]["nominalConcurrencyShares"], 30);
    let taken = api.ok(Verb::Get, &format!("{LEVELS}/workload-low"), Value::Null).await;
    assert_eq!(taken["spec"]["limited"]["nominalConcurrencyShares"], 7);
    // Nothing to do the second time.
    let before = api.ok(Verb::List, LEVELS, Value::Null).await;
    kaji_server::flowcontrol::ensure(&cluster.cluster.stack.engine).await.unwrap();
    assert_eq!(before["items"], api.ok(Verb::List, LEVELS, Value::Null).await["items"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_fairness_requests_are_counted() {
    let cluster = TestCluster::start_with(|options| {
        options.limits = kaji_server::flowcontrol::Limits { reading: 1, mutating: 0, fair: false };
    })
    .await;
    let (client, admin) = (LocalService::new(cluster.cluster.stack.clone(), user()), admin(&cluster));
    let held = seat(&cluster, PODS).await;
    let refused = get(&client, "/version").await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    assert!(!refused.headers().contains_key("x-kubernetes-pf-flowschema-uid"));
    // Administrators are exempt, and what is not limited goes on.
    assert_eq!(get(&admin, PODS).await.status(), 200);
    let post = Request::post("/version").body(Full::<Bytes>::default()).unwrap();
    assert_ne!(client.clone().oneshot(post).await.unwrap().status(), 429);
    drop(held);
    assert_eq!(get(&client, "/version").await.status(), 200);
    assert_eq!(get(&admin, "/debug/api_priority_and_fairness/dump_queues").await.status(), 404);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_end_in_time() {
    let cluster = TestCluster::start(0).await;
    let admin = admin(&cluster);
    let bad = get(&admin, "/api/v1/pods?timeout=soon").await;
    assert_eq!(bad.status(), 400);
    // A body that never comes.
    let never = StreamBody::new(stream::pending::<Result<Frame<Bytes>, std::convert::Infallible>>());
    let request = Request::post("/api/v1/namespaces/default/configmaps?timeout=10ms").body(never).unwrap();
    let late = admin.clone().oneshot(request).await.unwrap();
    assert_eq!(late.status(), 504);
    let status = late.into_body().collect().await.unwrap().to_bytes();
    let status: Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(
        (&status["reason"], &status["message"]),
        (&json!("Timeout"), &json!("Timeout: request did not complete within the allotted timeout"))
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_holds_no_seat_while_it_reads() {
    let cluster = TestCluster::start_with(|options| options.limits.reading = 10).await;
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 10});
    let client = tiny(&cluster, json!({"type": "Queue", "queuing": queuing})).await;
    // The level has one seat, which each read has for itself.
    let text = text_of(&client, "/kaji/why?subject=pod/absent").await;
    assert!(text.contains(r#"cannot get resource \"pods\""#), "{text}");
    cluster.stop().await;
}

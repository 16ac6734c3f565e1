//! Rights, and priority and fairness, that are written at one server.

use super::Servers;
use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
    until,
};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use kaji_server::LocalService;
use serde_json::{Value, json};
use tower::ServiceExt;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// What alice's list is answered with.
async fn lists(server: &TestCluster) -> u16 {
    ask(server, &person("alice"), &format!("GET {MAPS}"), &Value::Null).await.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_count_at_both_servers() {
    let Some(servers) = Servers::start("rights_count_at_both_servers").await else { return };
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    let role = json!({"metadata": {"name": "lists"}, "rules": rules});
    ok(&servers.a, &admin(), &format!("POST {RBAC}/clusterroles"), role).await;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "alice"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "lists"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "alice"}]});
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    for round in 0..20 {
        let (one, other) = if round % 2 == 0 { (&servers.a, &servers.b) } else { (&servers.b, &servers.a) };
        assert_eq!(lists(other).await, 403);
        // A right that was given is there at once: nothing is refused by a cache that lags.
        ok(one, &admin(), &format!("POST {bindings}"), binding.clone()).await;
        assert_eq!(lists(other).await, 200, "round {round}");
        ok(one, &admin(), &format!("DELETE {bindings}/alice"), Value::Null).await;
        until("the right is gone at the other", async || lists(other).await == 403).await;
    }
    servers.stop().await;
}

/// The uids of schema and level by which a server classifies a request of alice's.
async fn classified(server: &TestCluster) -> [String; 2] {
    let service = LocalService::new(server.cluster.stack.clone(), person("alice"));
    let request = Request::get("/version").body(Full::<Bytes>::default()).unwrap();
    let headers = service.oneshot(request).await.unwrap().headers().clone();
    ["flowschema", "prioritylevel"].map(|what| {
        let header = headers.get(format!("x-kubernetes-pf-{what}-uid"));
        header.map(|uid| uid.to_str().unwrap().to_owned()).unwrap_or_default()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_control_counts_at_both_servers() {
    let Some(servers) = Servers::start("flow_control_counts_at_both_servers").await else { return };
    let (a, b) = (&servers.a, &servers.b);
    let known = async || classified(a).await == classified(b).await && !classified(b).await[0].is_empty();
    until("both have the schemas that every cluster has", known).await;
    let before = classified(b).await;
    let level = json!({"metadata": {"name": "mine"}, "spec": {"type": "Limited",
        "limited": {"nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}}}});
    let schema = json!({"metadata": {"name": "mine"}, "spec": {"matchingPrecedence": 2,
        "priorityLevelConfiguration": {"name": "mine"},
        "rules": [{"subjects": [{"kind": "User", "user": {"name": "alice"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}});
    let uid = |made: &Value| made["metadata"]["uid"].as_str().unwrap().to_owned();
    let level = uid(&ok(a, &admin(), &format!("POST {FLOW}/prioritylevelconfigurations"), level).await);
    let schema = uid(&ok(a, &admin(), &format!("POST {FLOW}/flowschemas"), schema).await);
    let wanted = [schema, level];
    for server in [a, b] {
        until("requests are classified by the new schema", async || classified(server).await == wanted).await;
    }
    ok(b, &admin(), &format!("DELETE {FLOW}/flowschemas/mine"), Value::Null).await;
    for server in [a, b] {
        until("requests are classified as before", async || classified(server).await == before).await;
    }
    servers.stop().await;
}

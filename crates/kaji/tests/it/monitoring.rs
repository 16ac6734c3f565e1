//! What Prometheus reads: pages in its text format, with upstream's names, and all that the dashboard asks for.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use kaji_testing::text_format::{self, Family};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

type Families = BTreeMap<String, Family>;

/// What Prometheus 3 sends.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

/// A page, its families and its content type.
async fn scrape(cluster: &TestCluster, path: &str) -> (Families, String) {
    let request =
        http::Request::get(path).header("accept", ACCEPT).body(kube::client::Body::empty()).unwrap();
    let response = cluster.kube().await.send(request).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let body = response.into_body().collect_bytes().await.unwrap();
    let page = String::from_utf8(body.to_vec()).unwrap();
    (text_format::parse(&page).unwrap_or_else(|error| panic!("{path}: {error}")), kind)
}

/// A deployment with a pod that runs on the simulated node.
async fn work(cluster: &TestCluster) {
    let labels = json!({"app": "a"});
    let deployment = json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    ok(cluster, &admin(), "POST /apis/apps/v1/namespaces/default/deployments", deployment).await;
    until("the deployment is available", async || {
        let path = "GET /apis/apps/v1/namespaces/default/deployments/a";
        ok(cluster, &admin(), path, Value::Null).await["status"]["availableReplicas"] == 1
    })
    .await;
}

/// The metrics that an expression names: what is neither a function, nor a label, nor a word of the language.
fn names(expression: &str) -> BTreeSet<String> {
    let (mut names, mut word, mut depth, mut by) = (BTreeSet::new(), String::new(), 0_usize, false);
    for c in expression.chars().chain([' ']) {
        if c.is_ascii_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        let ended = std::mem::take(&mut word);
        if by && c == ')' {
            by = false;
        } else if ended == "by" || ended == "without" {
            by = true;
        } else if !by && depth == 0 && c != '(' && ended.contains('_') {
            names.insert(ended);
        }
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
    }
    names
}

#[test]
fn finds_the_names_of_an_expression() {
    let expression = "histogram_quantile(0.99, sum by (le, dry_run) (rate(a_bucket{code_x=~\"5..\", b=\"c\"}[$__rate_interval]))) / b_total";
    assert_eq!(names(expression), ["a_bucket", "b_total"].map(str::to_owned).into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_show_what_the_dashboard_asks_for() {
    let cluster = TestCluster::start(1).await;
    work(&cluster).await;
    ok(&cluster, &admin(), "GET /api/v1/pods?watch=1&timeoutSeconds=1", Value::Null).await;
    let (mut served, kind) = scrape(&cluster, "/metrics").await;
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8; escaping=allow-utf-8");
    let requests = &served["apiserver_request_total"];
    let created = [("verb", "POST"), ("resource", "deployments"), ("scope", "resource"), ("code", "201")];
    assert_eq!(requests.sum(&created), 1.0);
    assert!(requests.help.starts_with("[STABLE] "), "{}", requests.help);
    for (name, bound) in [
        ("apiserver_request_duration_seconds", "30"),
        ("apiserver_request_sli_duration_seconds", "60"),
        ("apiserver_response_sizes", "1e+06"),
        ("workqueue_queue_duration_seconds", "9.999999999999999e-06"),
    ] {
        let mut bounds = served[name].samples.iter().filter_map(|s| s.labels.get("le"));
        assert!(bounds.any(|le| le == bound), "{name} has no bucket {bound}");
    }
    for name in ["authentication_attempts", "authenticated_user_requests", "apiserver_longrunning_requests"] {
        assert!(served.contains_key(name), "{name}");
    }
    for (name, labels) in [
        ("apiserver_admission_step_admission_duration_seconds", [("type", "admit"), ("operation", "CREATE")]),
        (
            "scheduler_framework_extension_point_duration_seconds",
            [("extension_point", "Filter"), ("status", "Success")],
        ),
        (
            "scheduler_framework_extension_point_duration_seconds",
            [("extension_point", "Bind"), ("status", "Success")],
        ),
        (
            "scheduler_plugin_evaluation_total",
            [("extension_point", "Filter"), ("plugin", "NodeResourcesFit")],
        ),
        ("scheduler_queue_incoming_pods_total", [("queue", "active"), ("event", "UnscheduledPodAdd")]),
    ] {
        let count = served.get(name).map_or(0.0, |family| family.sum(&labels));
        assert!(count > 0.0, "{name} {labels:?}");
    }
    let nodes = ok(&cluster, &admin(), "GET /api/v1/nodes", Value::Null).await;
    let node = nodes["items"][0]["metadata"]["name"].as_str().unwrap();
    let (of_node, _) = scrape(&cluster, &format!("/api/v1/nodes/{node}/proxy/metrics/resource")).await;
    served.extend(of_node);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/grafana/kaji.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let expressions = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let asked: BTreeSet<String> = expressions.flat_map(|t| names(t["expr"].as_str().unwrap())).collect();
    assert!(asked.len() > 20, "{asked:?}");
    let is_served = |name: &str| {
        served.contains_key(name)
            || ["_bucket", "_sum", "_count"].iter().any(|end| {
                let family = name.strip_suffix(end).and_then(|family| served.get(family));
                family.is_some_and(|family| family.kind == "histogram")
            })
    };
    let lacking: Vec<&String> = asked.iter().filter(|name| !is_served(name)).collect();
    assert!(lacking.is_empty(), "the dashboard asks for {lacking:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn health_checks_are_service_level_indicators() {
    let cluster = TestCluster::start(0).await;
    let outcomes = async |path: &str| {
        assert_eq!(ask(&cluster, &admin(), path, &Value::Null).await.0, 200);
        let (page, _) = scrape(&cluster, "/metrics/slis").await;
        let of = |check| [("name", check), ("type", "readyz"), ("status", "success")];
        assert_eq!(page["kubernetes_healthcheck"].sum(&of("ping")[..2]), 1.0);
        let total = &page["kubernetes_healthchecks_total"];
        (total.sum(&of("ping")), total.sum(&of("log")))
    };
    let (ping, log) = outcomes("GET /readyz").await;
    assert_eq!(outcomes("GET /readyz?exclude=log").await, (ping + 1.0, log));
    cluster.stop().await;
}

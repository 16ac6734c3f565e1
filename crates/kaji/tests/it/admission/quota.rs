//! Quotas: charged exactly under concurrent writes, and released.

use super::{PODS, pod};
use crate::common::{TestCluster, api::Api};
use futures_util::{StreamExt, stream};
use kaji_resource::Verb;
use serde_json::{Value, json};

const QUOTAS: &str = "/v1/resourcequotas?namespace=default";
const QUOTA: &str = "/v1/resourcequotas/q?namespace=default";
const MAPS: &str = "/v1/configmaps?namespace=default";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

fn quota(hard: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}})
}

/// A quota with a status that has been counted.
async fn counted(api: &Api<'_>, hard: Value, used: Value) {
    let mut made = api.ok(Verb::Create, QUOTAS, quota(&hard)).await;
    made["status"] = json!({"hard": hard, "used": used});
    api.ok(Verb::Update, "/v1/resourcequotas/q/status?namespace=default", made).await;
}

async fn used(api: &Api<'_>) -> Value {
    api.ok(Verb::Get, QUOTA, Value::Null).await["status"]["used"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_never_spend_more_than_there_is() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    counted(&api, json!({"configmaps": "10"}), json!({"configmaps": "0"})).await;
    let create = |i: usize| {
        let api = &api;
        async move { api.raw(Verb::Create, MAPS, "application/json", &map(&format!("m{i}"))).await.code }
    };
    // Another writer changes the quota's status all the while.
    let touch = |_| {
        let api = &api;
        async move {
            let patch = json!([{"op": "add", "path": "/metadata/annotations", "value": {"touched": "yes"}}]);
            api.raw(Verb::Patch, QUOTA, "application/json-patch+json", &patch).await.code
        }
    };
    let (codes, touched): (Vec<u16>, Vec<u16>) = tokio::join!(
        stream::iter((0..40).map(create)).buffer_unordered(16).collect(),
        stream::iter((0..20).map(touch)).buffer_unordered(4).collect(),
    );
    assert!(touched.iter().all(|c| *c == 200), "{touched:?}");
    let made = codes.iter().filter(|c| **c == 201).count();
    assert_eq!((made, codes.iter().filter(|c| **c == 403).count()), (10, 30));
    assert_eq!(used(&api).await, json!({"configmaps": "10"}));
    let maps = api.ok(Verb::List, MAPS, Value::Null).await;
    assert_eq!(maps["items"].as_array().unwrap().len(), 10);
    assert_eq!(
        api.refused(Verb::Create, MAPS, map("x")).await,
        (403, r#"configmaps "x" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=10, limited: configmaps=10"#.into())
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_written_is_not_charged() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let names = json!({"configmaps": "2", "services": "5", "services.nodeports": "1"});
    counted(&api, names, json!({"configmaps": "0", "services": "0", "services.nodeports": "0"})).await;
    api.ok(Verb::Create, "/v1/configmaps?namespace=default&dryRun=All", map("a")).await;
    api.ok(Verb::Create, MAPS, map("a")).await;
    assert_eq!(api.refused(Verb::Create, MAPS, map("a")).await.0, 409);
    assert_eq!(used(&api).await["configmaps"], "1");
    let services = "/v1/services?namespace=default";
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}]}});
    let mut made = api.ok(Verb::Create, services, service).await;
    made["spec"]["type"] = "NodePort".into();
    made = api.ok(Verb::Update, "/v1/services/s?namespace=default", made).await;
    assert_eq!(used(&api).await["services.nodeports"], "1");
    made["spec"]["ports"] = json!([{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]);
    assert_eq!(
        api.refused(Verb::Update, "/v1/services/s?namespace=default", made).await,
        (403, r#"services "s" is forbidden: exceeded quota: q, requested: services.nodeports=1, used: services.nodeports=1, limited: services.nodeports=1"#.into())
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_must_say_what_a_quota_limits() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    counted(&api, json!({"requests.cpu": "1", "pods": "9"}), json!({"requests.cpu": "0"})).await;
    let (code, text) = api.refused(Verb::Create, PODS, pod("x", json!({}))).await;
    assert_eq!(
        (code, text.as_str()),
        (403, r#"pods "x" is forbidden: failed quota: q: must specify requests.cpu for: c"#)
    );
    let ask = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]});
    assert_eq!(
        api.refused(Verb::Create, PODS, pod("x", ask)).await,
        (403, r#"pods "x" is forbidden: status unknown for quota: q, resources: pods,requests.cpu"#.into())
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controller_counts_and_gives_back() {
    let cluster = TestCluster::start(1).await;
    let api = Api(&cluster);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
    api.ok(Verb::Create, "/v1/namespaces", namespace).await;
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    api.ok(Verb::Create, "apiextensions.k8s.io/v1/customresourcedefinitions", crd).await;
    let established = |v: Option<&Value>| {
        v.is_some_and(|v| {
            let conditions = v["status"]["conditions"].as_array();
            conditions.is_some_and(|c| c.iter().any(|c| c["type"] == "Established" && c["status"] == "True"))
        })
    };
    api.until("apiextensions.k8s.io/v1/customresourcedefinitions", "widgets.example.com", established).await;
    let hard = json!({"secrets": "2", "pods": "1", "count/widgets.example.com": "1"});
    api.ok(Verb::Create, "/v1/resourcequotas?namespace=n", quota(&hard)).await;
    let is = |used: Value| move |q: Option<&Value>| q.is_some_and(|q| q["status"]["used"] == used);
    let count = |secrets: &str, pods: &str, widgets: &str| {
        is(json!({"secrets": secrets, "pods": pods, "count/widgets.example.com": widgets}))
    };
    api.until("/v1/resourcequotas", "q", count("0", "0", "0")).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    api.ok(Verb::Create, "/v1/secrets?namespace=n", secret).await;
    api.ok(Verb::Create, "/v1/pods?namespace=n", pod("p", json!({"terminationGracePeriodSeconds": 0}))).await;
    let widget =
        |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}});
    let widgets = "example.com/v1/widgets?namespace=n";
    api.ok(Verb::Create, widgets, widget("w")).await;
    api.until("/v1/resourcequotas", "q", count("1", "1", "1")).await;
    assert_eq!(
        api.refused(Verb::Create, widgets, widget("x")).await,
        (403, r#"widgets.example.com "x" is forbidden: exceeded quota: q, requested: count/widgets.example.com=1, used: count/widgets.example.com=1, limited: count/widgets.example.com=1"#.into())
    );
    api.ok(Verb::Delete, "/v1/secrets/s?namespace=n", Value::Null).await;
    api.ok(Verb::Delete, "/v1/pods/p?namespace=n", Value::Null).await;
    api.ok(Verb::Delete, "example.com/v1/widgets/w?namespace=n", Value::Null).await;
    api.until("/v1/resourcequotas", "q", count("0", "0", "0")).await;
    cluster.stop().await;
}

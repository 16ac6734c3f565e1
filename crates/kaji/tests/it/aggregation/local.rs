//! What the cluster itself makes for the aggregation layer.

use super::{
    API_SERVICES,
    extension::{create, delete},
};
use crate::common::{
    TestCluster,
    access::{admin, ok, user},
    api::Api,
};
use kaji_resource::Verb;
use serde_json::{Value, json};

const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

fn definition() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let version = |name: &str, served: bool, storage: bool| json!({"name": name, "served": served, "storage": storage, "schema": schema});
    json!({"metadata": {"name": "toys.custom.example.com"}, "spec": {
        "group": "custom.example.com", "scope": "Namespaced",
        "names": {"plural": "toys", "singular": "toy", "kind": "Toy", "listKind": "ToyList"},
        "versions": [version("v1", true, true), version("v0", false, false)],
    }})
}

#[tokio::test]
async fn what_is_served_here_has_api_services() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let list = api.ok(Verb::List, API_SERVICES, Value::Null).await;
    let mut lines: Vec<String> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| {
            let spec = &o["spec"];
            let condition = &o["status"]["conditions"][0];
            format!(
                "{} {} {} {} {} {}",
                o["metadata"]["name"].as_str().unwrap(),
                spec["groupPriorityMinimum"],
                spec["versionPriority"],
                o["metadata"]["labels"][MANAGED].as_str().unwrap(),
                condition["status"].as_str().unwrap(),
                condition["reason"].as_str().unwrap(),
            )
        })
        .collect();
    lines.sort();
    expect_test::expect![[r#"
        v1. 18000 1 onstart True Local
        v1.admissionregistration.k8s.io 16700 15 onstart True Local
        v1.apiextensions.k8s.io 16700 15 onstart True Local
        v1.apps 17800 15 onstart True Local
        v1.authentication.k8s.io 17700 15 onstart True Local
        v1.authorization.k8s.io 17600 15 onstart True Local
        v1.autoscaling 17500 15 onstart True Local
        v1.batch 17400 15 onstart True Local
        v1.certificates.k8s.io 17300 15 onstart True Local
        v1.coordination.k8s.io 16500 15 onstart True Local
        v1.discovery.k8s.io 16200 15 onstart True Local
        v1.events.k8s.io 17750 15 onstart True Local
        v1.flowcontrol.apiserver.k8s.io 16100 21 onstart True Local
        v1.networking.k8s.io 17200 15 onstart True Local
        v1.node.k8s.io 16300 15 onstart True Local
        v1.policy 17100 15 onstart True Local
        v1.rbac.authorization.k8s.io 17000 15 onstart True Local
        v1.resource.k8s.io 16200 21 onstart True Local
        v1.scheduling.k8s.io 16600 15 onstart True Local
        v1.storage.k8s.io 16800 15 onstart True Local
        v1.storagemigration.k8s.io 15800 15 onstart True Local
        v2.autoscaling 17500 30 onstart True Local"#]]
    .assert_eq(&lines.join("\n"));
    cluster.stop().await;
}

#[tokio::test]
async fn definitions_bring_and_take_theirs() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let name = "v1.custom.example.com";
    create(&cluster, "apiextensions.k8s.io", "customresourcedefinitions", "", definition()).await;
    let mut found = Value::Null;
    let there = |o: Option<&Value>| o.inspect(|o| found = (*o).clone()).is_some();
    api.until(API_SERVICES, name, there).await;
    assert_eq!(found["metadata"]["labels"], json!({MANAGED: "true"}));
    assert_eq!(
        found["spec"],
        json!({"group": "custom.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 100})
    );
    assert_eq!(found["status"]["conditions"][0]["reason"], "Local");
    // It is kept as it should be.
    let patch = json!([{"op": "replace", "path": "/spec/versionPriority", "value": 7}]);
    api.ok(Verb::Patch, &format!("{API_SERVICES}/{name}"), patch).await;
    api.until(API_SERVICES, name, |o| o.is_some_and(|o| o["spec"]["versionPriority"] == 100)).await;
    let uid = found["metadata"]["uid"].clone();
    delete(&cluster, "apiregistration.k8s.io", "apiservices", "", name).await;
    api.until(API_SERVICES, name, |o| o.is_some_and(|o| o["metadata"]["uid"] != uid)).await;
    // A client may manage it instead.
    let own = json!([{"op": "replace", "path": "/metadata/labels", "value": {}},
        {"op": "replace", "path": "/spec/versionPriority", "value": 8}]);
    api.ok(Verb::Patch, &format!("{API_SERVICES}/{name}"), own).await;
    let back = json!([{"op": "replace", "path": "/metadata/labels", "value": {MANAGED: "true"}}]);
    let kept = api.ok(Verb::Get, &format!("{API_SERVICES}/{name}"), Value::Null).await;
    assert_eq!(kept["spec"]["versionPriority"], 8);
    api.ok(Verb::Patch, &format!("{API_SERVICES}/{name}"), back).await;
    delete(&cluster, "apiextensions.k8s.io", "customresourcedefinitions", "", "toys.custom.example.com")
        .await;
    api.until(API_SERVICES, name, |o| o.is_none()).await;
    cluster.stop().await;
}

/// The map has the authorities that extension servers trust.
#[tokio::test]
async fn publishes_the_authorities_that_extension_servers_trust() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let path = "/v1/configmaps/extension-apiserver-authentication?namespace=kube-system";
    let map = api.ok(Verb::Get, path, Value::Null).await;
    let mut data = map["data"].as_object().unwrap().clone();
    let pki = &cluster.cluster.pki;
    for (key, authority) in
        [("client-ca-file", &pki.ca), ("requestheader-client-ca-file", &pki.front_proxy_ca)]
    {
        let found = data.remove(key).unwrap();
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(found.as_str().unwrap()), lines(&authority.certificate), "{key}");
    }
    assert_eq!(
        Value::from(data),
        json!({
            "requestheader-allowed-names": "[\"front-proxy-client\"]",
            "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
            "requestheader-username-headers": "[\"X-Remote-User\"]",
        })
    );
    // The role for it leads there.
    let server =
        user("system:serviceaccount:default:ext", &["system:serviceaccounts", "system:authenticated"]);
    let read = "GET /api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    assert_eq!(super::ask(&cluster, &server, read, &Value::Null).await.0, 403);
    let rbac = "rbac.authorization.k8s.io";
    let role = json!({"apiGroup": rbac, "kind": "Role", "name": "extension-apiserver-authentication-reader"});
    let subjects = json!([{"kind": "ServiceAccount", "name": "ext", "namespace": "default"}]);
    let binding = json!({"metadata": {"name": "ext"}, "roleRef": role, "subjects": subjects});
    create(&cluster, rbac, "rolebindings", "kube-system", binding).await;
    ok(&cluster, &server, read, Value::Null).await;
    // It comes back, and what others add stays.
    let uid = map["metadata"]["uid"].clone();
    ok(&cluster, &admin(), &read.replace("GET", "DELETE"), Value::Null).await;
    let maps = "/v1/configmaps";
    let name = "extension-apiserver-authentication";
    api.until(maps, name, |o| o.is_some_and(|o| o["metadata"]["uid"] != uid)).await;
    let names = "[\"other\"]";
    let patch = json!([{"op": "replace", "path": "/data/requestheader-allowed-names", "value": names}]);
    api.ok(Verb::Patch, path, patch).await;
    let both = "[\"other\",\"front-proxy-client\"]";
    api.until(maps, name, |o| o.is_some_and(|o| o["data"]["requestheader-allowed-names"] == both)).await;
    cluster.stop().await;
}

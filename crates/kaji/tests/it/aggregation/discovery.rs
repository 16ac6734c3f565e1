//! Discovery of what this server and extension servers serve.

use super::{
    extension::{Extension, GROUP, NAME, create, delete},
    reason,
};
use crate::common::{
    self, TestCluster,
    access::{admin, ask, ok},
    api::Api,
};
use kaji_resource::Verb;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

const ALL: &str = "GET /apis\naccept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The server's version in the aggregated document.
async fn version(cluster: &TestCluster) -> Value {
    let all = ok(cluster, &admin(), ALL, Value::Null).await;
    let group = all["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == GROUP);
    group.map_or(Value::Null, |g| g["versions"][0].clone())
}

/// Waits until it is as fresh as that.
async fn freshness(cluster: &TestCluster, wanted: &str) -> Value {
    let mut found = Value::Null;
    common::until(wanted, async || {
        found = version(cluster).await;
        found["freshness"] == wanted
    })
    .await;
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_other_servers_are_listed() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    let before = ok(&cluster, &admin(), ALL, Value::Null).await;
    create(&cluster, "apiregistration.k8s.io", "apiservices", "", extension.api_service()).await;
    // Nothing is known of it yet, and that is said at once.
    assert_eq!(version(&cluster).await, json!({"version": "v1", "freshness": "Stale"}));
    create(&cluster, "", "services", "default", extension.external()).await;
    let found = freshness(&cluster, "Current").await;
    assert_eq!(
        found["resources"],
        json!([{"resource": "echoes", "scope": "Namespaced", "verbs": ["get", "list"], "singularResource": "echo",
            "responseKind": {"group": GROUP, "version": "v1", "kind": "Echo"}}])
    );
    // By priority: behind all built-in groups, before custom resources.
    let names = |list: &Value, pointer: &str| -> Vec<String> {
        let all = list[pointer].as_array().unwrap().iter();
        all.map(|g| g["name"].as_str().or(g["metadata"]["name"].as_str()).unwrap().to_owned()).collect()
    };
    let (mut expected, new) = (names(&before, "items"), ok(&cluster, &admin(), ALL, Value::Null).await);
    // The metrics that the server computes have the priority of metrics-server, which is lower.
    assert_eq!(expected.last().map(String::as_str), Some("metrics.k8s.io"));
    assert_eq!(expected[expected.len() - 2], "kaji.dev");
    expected.insert(expected.len() - 2, GROUP.to_owned());
    assert_eq!(names(&new, "items"), expected);
    let legacy = ok(&cluster, &admin(), "GET /apis", Value::Null).await;
    assert_eq!(names(&legacy, "groups"), names(&new, "items"));
    let group = ok(&cluster, &admin(), "GET /apis/ext.example.com", Value::Null).await;
    let version_of = json!({"groupVersion": "ext.example.com/v1", "version": "v1"});
    assert_eq!((&group["preferredVersion"], &group["kind"]), (&version_of, &json!("APIGroup")));
    // A higher priority moves it.
    let patch = json!([{"op": "replace", "path": "/spec/groupPriorityMinimum", "value": 17_790}]);
    Api(&cluster).ok(Verb::Patch, &format!("{}/{NAME}", super::API_SERVICES), patch).await;
    let moved = names(&ok(&cluster, &admin(), "GET /apis", Value::Null).await, "groups");
    assert_eq!(moved[..3], ["apiregistration.k8s.io", "apps", GROUP]);
    // What cannot be reached is stale, and what is gone is gone.
    delete(&cluster, "", "services", "default", "ext").await;
    assert_eq!(freshness(&cluster, "Stale").await["resources"], Value::Null);
    delete(&cluster, "apiregistration.k8s.io", "apiservices", "", NAME).await;
    assert_eq!(ok(&cluster, &admin(), ALL, Value::Null).await, before);
    assert_eq!(ask(&cluster, &admin(), "GET /apis/ext.example.com", &Value::Null).await.0, 404);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_and_old_servers_do_not_delay_discovery() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    extension.state.hangs.store(true, Ordering::SeqCst);
    extension.join(&cluster).await;
    reason(&cluster, NAME, "Passed").await;
    // A background task waits for it, but no client does.
    assert_eq!(version(&cluster).await["freshness"], "Stale");
    ok(&cluster, &admin(), "GET /apis", Value::Null).await;
    ok(&cluster, &admin(), "GET /openapi/v3", Value::Null).await;
    cluster.stop().await;

    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    extension.state.old.store(true, Ordering::SeqCst);
    extension.join(&cluster).await;
    let found = freshness(&cluster, "Current").await;
    assert_eq!(found["resources"][0]["resource"], "echoes");
    assert_eq!(found["resources"][0]["responseKind"]["kind"], "Echo");
    // What it has of OpenAPI is there in the newer form, too.
    let mut at = String::new();
    common::until("the specification is converted", async || {
        let index = ok(&cluster, &admin(), "GET /openapi/v3", Value::Null).await;
        let found = &index["paths"]["apis/ext.example.com/v1"]["serverRelativeURL"];
        at = found.as_str().unwrap_or_default().to_owned();
        !at.is_empty()
    })
    .await;
    assert!(at.starts_with("/openapi/v3/apis/ext.example.com/v1?hash="), "{at}");
    let document = ok(&cluster, &admin(), &format!("GET {at}"), Value::Null).await;
    assert_eq!(document["openapi"], "3.0.0");
    let pod = &document["components"]["schemas"]["io.k8s.api.core.v1.Pod"];
    let echo = json!({"$ref": "#/components/schemas/com.example.ext.v1.Echo"});
    assert_eq!(pod["properties"]["echo"], echo);
    let paths: Vec<_> = document["paths"].as_object().unwrap().keys().collect();
    assert_eq!(paths, ["/apis/ext.example.com/v1/echoes"]);
    let (code, _) =
        ask(&cluster, &admin(), "GET /openapi/v3/apis/ext.example.com/v1?hash=0", &Value::Null).await;
    assert_eq!(code, 301);
    cluster.stop().await;
}

/// One document for all, in which names that are used twice get different keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openapi_is_merged() {
    let cluster = TestCluster::start(0).await;
    let extension = Extension::start(&cluster).await;
    extension.join(&cluster).await;
    reason(&cluster, NAME, "Passed").await;
    let path = "/apis/ext.example.com/v1/echoes";
    let mut all = Value::Null;
    common::until("the specification is merged", async || {
        all = ok(&cluster, &admin(), "GET /openapi/v2", Value::Null).await;
        all["paths"].get(path).is_some()
    })
    .await;
    let pod = "io.k8s.api.core.v1.Pod";
    let answer = &all["paths"][path]["get"]["responses"]["200"]["schema"]["$ref"];
    assert_eq!(answer, &format!("#/definitions/{pod}_v2"));
    assert_eq!(all["definitions"][format!("{pod}_v2")]["description"], "another pod");
    assert_ne!(all["definitions"][pod]["description"], "another pod");
    assert!(all["definitions"].get("com.example.ext.v1.Echo").is_some());
    // Its other paths are none of its business.
    assert_ne!(all["paths"]["/api/v1/pods"]["get"]["operationId"], "stolen");
    let binary = "GET /openapi/v2\naccept: application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    assert_eq!(ask(&cluster, &admin(), binary, &Value::Null).await.0, 200);
    let index = ok(&cluster, &admin(), "GET /openapi/v3", Value::Null).await;
    let at = index["paths"]["apis/ext.example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    assert_eq!(at, "/openapi/v3/apis/ext.example.com/v1?hash=E1");
    let document = ok(&cluster, &admin(), &format!("GET {at}"), Value::Null).await;
    assert_eq!(document["openapi"], "3.0.0");
    delete(&cluster, "apiregistration.k8s.io", "apiservices", "", NAME).await;
    let all = ok(&cluster, &admin(), "GET /openapi/v2", Value::Null).await;
    assert!(all["paths"].get(path).is_none());
    assert_eq!(ask(&cluster, &admin(), &format!("GET {at}"), &Value::Null).await.0, 404);
    cluster.stop().await;
}

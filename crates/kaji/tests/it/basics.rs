//! What conformance asks of single objects and no lifecycle of a kind shows: namespaces, the status of a definition, the
//! server's own service, nodes that take pods; and watches over WebSockets.

mod websockets;

use crate::common::{TestCluster, api::Api};
use kaji_resource::Verb;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Metadata by the front door, conditions by the status, finalizers by `finalize`.
#[tokio::test]
async fn a_namespace_has_three_doors() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let (own, status, finalize) =
        ("/v1/namespaces/space", "/v1/namespaces/space/status", "/v1/namespaces/space/finalize");
    let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "space"}});
    let made = api.ok(Verb::Create, "/v1/namespaces", made).await;
    assert_eq!(made["status"]["phase"], "Active");
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "space");

    let label = json!([{"op": "add", "path": "/metadata/labels/patched", "value": "yes"}]);
    let mut next = api.ok(Verb::Patch, own, label).await;
    assert_eq!(next["metadata"]["labels"]["patched"], "yes");
    next["metadata"]["labels"]["updated"] = "yes".into();
    next["spec"]["finalizers"] = json!(["example.com/x"]);
    next["status"]["conditions"] = condition("Ignored");
    let next = api.ok(Verb::Update, own, next).await;
    assert_eq!(next["metadata"]["labels"]["updated"], "yes");
    assert_eq!(
        (&next["spec"]["finalizers"], &next["status"]["conditions"]),
        (&json!(["kubernetes"]), &Value::Null)
    );

    let mut read = api.ok(Verb::Get, status, Value::Null).await;
    read["status"]["conditions"] = condition("StatusUpdate");
    let updated = api.ok(Verb::Update, status, read).await;
    assert_eq!(updated["status"]["conditions"], condition("StatusUpdate"));
    let patch = json!([
        {"op": "add", "path": "/metadata/annotations", "value": {"patched-status": "yes"}},
        {"op": "replace", "path": "/status/conditions", "value": condition("StatusPatch")},
    ]);
    let patched = api.ok(Verb::Patch, status, patch).await;
    assert_eq!(patched["metadata"]["annotations"]["patched-status"], "yes");
    assert_eq!(patched["status"], json!({"phase": "Active", "conditions": condition("StatusPatch")}));

    let mut bound = api.ok(Verb::Get, own, Value::Null).await;
    for finalizers in [json!(["kubernetes", "example.com/x"]), json!(["kubernetes"])] {
        bound["spec"]["finalizers"] = finalizers.clone();
        bound = api.ok(Verb::Update, finalize, bound).await;
        assert_eq!(bound["spec"]["finalizers"], finalizers);
        assert_eq!(api.ok(Verb::Get, own, Value::Null).await, bound);
    }
    cluster.stop().await;
}

fn condition(kind: &str) -> Value {
    json!([{"type": kind, "status": "True", "reason": "E2E", "message": "set by the test",
        "lastTransitionTime": "2026-01-02T03:04:05Z"}])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_has_a_status() {
    const CRDS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let made = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.example.com", "labels": {"of": "test"}},
        "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let made = api.ok(Verb::Create, CRDS, made).await;
    let has = |d: Option<&Value>, kind: &str| {
        let conditions = d.and_then(|d| d["status"]["conditions"].as_array().cloned()).unwrap_or_default();
        conditions.iter().any(|c| c["type"] == kind && c["status"] == "True")
    };
    api.until(CRDS, "foos.example.com", |d| has(d, "Established")).await;
    let status = format!("{CRDS}/foos.example.com/status");
    let mut read = api.ok(Verb::Get, &status, Value::Null).await;
    assert_eq!(read["spec"], made["spec"]);
    read["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .extend(condition("Updated").as_array().unwrap().clone());
    read["spec"]["scope"] = "Namespaced".into();
    let updated = api.ok(Verb::Update, &status, read).await;
    assert!(has(Some(&updated), "Updated") && has(Some(&updated), "Established"));
    assert_eq!(updated["spec"], made["spec"]);
    let patch = json!([{"op": "add", "path": "/status/conditions", "value": condition("Patched")}]);
    assert!(has(Some(&api.ok(Verb::Patch, &status, patch).await), "Patched"));
    // Conditions that an update removes are added again.
    api.until(CRDS, "foos.example.com", |d| has(d, "Established") && has(d, "Patched")).await;

    let selected = format!("{CRDS}?labelSelector=of=test");
    assert_eq!(api.ok(Verb::List, &selected, Value::Null).await["items"].as_array().unwrap().len(), 1);
    api.ok(Verb::DeleteCollection, &selected, Value::Null).await;
    while api.raw(Verb::List, "example.com/v1/foos", "", &Value::Null).await.code != 404 {
        tokio::task::yield_now().await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn the_server_is_a_service() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let service = api.ok(Verb::Get, "/v1/services/kubernetes?namespace=default", Value::Null).await;
    assert_eq!(
        (&service["spec"]["ports"][0]["name"], &service["spec"]["ports"][0]["port"]),
        (&json!("https"), &json!(443))
    );
    let endpoints = api.ok(Verb::Get, "/v1/endpoints/kubernetes?namespace=default", Value::Null).await;
    let slices = "discovery.k8s.io/v1/endpointslices?namespace=default&labelSelector=kubernetes.io/service-name=kubernetes";
    let slices = api.ok(Verb::List, slices, Value::Null).await;
    let mut found = (BTreeSet::new(), BTreeSet::new());
    for slice in slices["items"].as_array().unwrap() {
        let addresses =
            slice["endpoints"].as_array().unwrap().iter().flat_map(|e| e["addresses"].as_array().unwrap());
        found.0.extend(addresses.map(Value::to_string));
        found.1.extend(slice["ports"].as_array().unwrap().iter().map(|p| p["port"].to_string()));
    }
    let mut wanted = (BTreeSet::new(), BTreeSet::new());
    for subset in endpoints["subsets"].as_array().unwrap() {
        wanted.0.extend(subset["addresses"].as_array().unwrap().iter().map(|a| a["ip"].to_string()));
        wanted.1.extend(subset["ports"].as_array().unwrap().iter().map(|p| p["port"].to_string()));
    }
    assert_eq!(found, wanted);
    let port = cluster.cluster.url().rsplit_once(':').unwrap().1.trim_end_matches('/').to_owned();
    assert_eq!((wanted.0.len(), wanted.1), (1, BTreeSet::from([port])));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_take_pods() {
    let cluster = TestCluster::start(2).await;
    let api = Api(&cluster);
    for node in ["sim-1", "sim-2"] {
        let takes = |n: &Value| {
            let conditions = n["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
            ready && n["spec"]["taints"].is_null() && n["spec"]["unschedulable"].is_null()
        };
        api.until("/v1/nodes", node, |n| n.is_some_and(takes)).await;
    }
    cluster.stop().await;
}

/// What single kinds do that others do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generations_collections_and_deleted_objects() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let generation = |object: &Value| object["metadata"].get("generation").and_then(Value::as_i64);

    // A generation that nothing counts is the client's; updates keep it.
    let maps = "/v1/configmaps";
    let map = |n: i64| json!({"metadata": {"name": "m", "generation": n}, "data": {"n": n.to_string()}});
    assert_eq!(
        generation(&api.ok(Verb::Create, &format!("{maps}?namespace=default"), map(7)).await),
        Some(7)
    );
    let path = format!("{maps}/m?namespace=default");
    assert_eq!(generation(&api.ok(Verb::Update, &path, map(9)).await), Some(7));

    let drivers = "storage.k8s.io/v1/csidrivers";
    let driver =
        api.ok(Verb::Create, drivers, json!({"metadata": {"generateName": "driver-"}, "spec": {}})).await;
    let name = driver["metadata"]["name"].as_str().unwrap();
    let change = json!([{"op": "replace", "path": "/spec/requiresRepublish", "value": true}]);
    let changed = api.ok(Verb::Patch, &format!("{drivers}/{name}"), change).await;
    assert_eq!((generation(&driver), generation(&changed)), (None, Some(1)));

    let scalers = "autoscaling/v2/horizontalpodautoscalers";
    let scaler = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
    let made = api.ok(Verb::Create, &format!("{scalers}?namespace=default"), scaler).await;
    let change = json!([{"op": "replace", "path": "/spec/maxReplicas", "value": 4}]);
    let changed = api.ok(Verb::Patch, &format!("{scalers}/h?namespace=default"), change).await;
    assert_eq!((generation(&made), generation(&changed)), (Some(1), Some(2)));

    // The answer to a deletion that shows the object names the version in which it is gone.
    let version =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let templates = "/v1/podtemplates";
    let template = json!({"metadata": {"name": "t"}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let made = api.ok(Verb::Create, &format!("{templates}?namespace=default"), template).await;
    let path = format!("{templates}/t?namespace=default");
    let dry = api.ok(Verb::Delete, &format!("{path}&dryRun=All"), Value::Null).await;
    assert_eq!(version(&dry), version(&made));
    let gone = api.ok(Verb::Delete, &path, Value::Null).await;
    assert!(version(&gone) > version(&made), "{gone}");

    let rules = "resource.k8s.io/v1/devicetaintrules";
    let rule = json!({"metadata": {"name": "r"}, "spec": {"taint": {"key": "k", "effect": "NoExecute"}}});
    api.ok(Verb::Create, rules, rule.clone()).await;
    let (code, message) = api.refused(Verb::Update, &format!("{rules}/r"), rule).await;
    assert_eq!(code, 422, "{message}");
    assert!(
        message.ends_with("metadata.resourceVersion: Invalid value: 0: must be specified for an update"),
        "{message}"
    );
    assert_eq!(api.ok(Verb::Delete, &format!("{rules}/r"), Value::Null).await["kind"], "Status");

    // The system's own classes are kept from single deletions only, as upstream has it.
    let classes = "scheduling.k8s.io/v1/priorityclasses";
    let class = json!({"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000});
    let made = api.raw(Verb::Create, classes, "application/json", &class).await;
    assert!(matches!(made.code, 201 | 409), "{}", made.code);
    let (code, message) =
        api.refused(Verb::Delete, &format!("{classes}/system-node-critical"), Value::Null).await;
    assert_eq!(code, 403, "{message}");
    api.ok(Verb::DeleteCollection, classes, Value::Null).await;
    let left = api.ok(Verb::List, classes, Value::Null).await;
    assert_eq!(left["items"].as_array().map(Vec::len), Some(0), "{left}");
    cluster.stop().await;
}

/// What every cluster has comes back within seconds.
#[tokio::test]
async fn objects_of_every_cluster_are_made_again() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let all = [
        ("/v1/services", "default"),
        ("/v1/endpoints", "default"),
        ("networking.k8s.io/v1/servicecidrs", ""),
    ];
    let mut uids = vec![];
    for (resource, namespace) in all {
        let path = format!("{resource}/kubernetes?namespace={namespace}");
        uids.push((api.ok(Verb::Get, &path, Value::Null).await["metadata"]["uid"].clone(), path));
    }
    for (_, path) in &uids {
        // The endpoints may have gone with their service.
        api.raw(Verb::Delete, path, "", &Value::Null).await;
    }
    // Without its loop nothing removes the finalizer of the range.
    let release = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
    api.raw(
        Verb::Patch,
        "networking.k8s.io/v1/servicecidrs/kubernetes",
        "application/json-patch+json",
        &release,
    )
    .await;
    for ((resource, _), (uid, _)) in all.into_iter().zip(uids) {
        api.until(resource, "kubernetes", |o| o.is_some_and(|o| o["metadata"]["uid"] != uid)).await;
    }
    cluster.stop().await;
}

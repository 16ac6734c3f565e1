//! Pods that lost their owner are adopted by what selects them, with the rights that each controller has.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use kaji::StoreKind;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The pods with a label.
async fn pods(test: &TestCluster, app: &str) -> Vec<Value> {
    let path = format!("GET {PODS}?labelSelector=app%3D{app}");
    let (_, found) = ask(test, &admin(), &path, &Value::Null).await;
    found["items"].as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn orphans_are_adopted_again() {
    let test = TestCluster::start_over(tempfile::tempdir().unwrap(), 1, StoreKind::Memory, |_| {}).await;
    let kinds = ["replicasets", "statefulsets", "daemonsets"];
    for resource in kinds {
        let labels = json!({"app": resource});
        let spec = json!({"containers": [{"name": "c", "image": "i"}]});
        let mut spec = json!({"spec": {"template": {"metadata": {"labels": labels}, "spec": spec}}});
        if resource == "statefulsets" {
            spec["spec"]["serviceName"] = "s".into();
        }
        spec["spec"]["selector"] = json!({"matchLabels": labels});
        spec["metadata"] = json!({"name": resource});
        ok(&test, &admin(), &format!("POST /apis/apps/v1/namespaces/default/{resource}"), spec).await;
    }
    for resource in kinds {
        until("a pod runs", async || {
            let pods = pods(&test, resource).await;
            pods.len() == 1 && pods[0]["status"]["phase"] == "Running"
        })
        .await;
        let pod = pods(&test, resource).await.remove(0);
        let path = format!("PATCH {PODS}/{}", pod["metadata"]["name"].as_str().unwrap());
        let orphan = json!({"metadata": {"uid": pod["metadata"]["uid"], "ownerReferences": null}});
        ok(&test, &admin(), &path, orphan).await;
        until("it is adopted", async || {
            let pods = pods(&test, resource).await;
            let same = pods.iter().find(|other| other["metadata"]["uid"] == pod["metadata"]["uid"]);
            same.is_some_and(|same| same["metadata"]["ownerReferences"] == pod["metadata"]["ownerReferences"])
        })
        .await;
    }
    test.stop().await;
}

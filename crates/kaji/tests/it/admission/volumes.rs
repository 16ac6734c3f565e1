//! Claims stay while pods use them, and grow where they can.

use super::{PODS, pod};
use crate::common::{TestCluster, api::Api};
use kaji_resource::Verb;
use serde_json::{Value, json};

const CLAIMS: &str = "/v1/persistentvolumeclaims?namespace=default";

fn claim(name: &str, class: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {"storageClassName": class,
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_claim_stays() {
    let cluster = TestCluster::start(1).await;
    let api = Api(&cluster);
    api.until("/v1/serviceaccounts", "default", |account| account.is_some()).await;
    let made = api.ok(Verb::Create, CLAIMS, claim("c", "none")).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    let nodes = api.ok(Verb::List, "/v1/nodes", Value::Null).await;
    let node = nodes["items"][0]["metadata"]["name"].clone();
    api.ok(Verb::Create, PODS, pod("p", json!({"nodeName": node, "volumes": volume}))).await;
    let one = "/v1/persistentvolumeclaims/c?namespace=default";
    let deleted = api.ok(Verb::Delete, one, Value::Null).await;
    assert!(deleted["metadata"]["deletionTimestamp"].is_string());
    api.ok(Verb::Delete, "/v1/pods/p?namespace=default&gracePeriodSeconds=0", Value::Null).await;
    api.until("/v1/persistentvolumeclaims", "c", |claim| claim.is_none()).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_grow_where_their_class_says_so() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    for (name, grows) in [("elastic", true), ("rigid", false)] {
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": "p", "allowVolumeExpansion": grows});
        api.ok(Verb::Create, "storage.k8s.io/v1/storageclasses", class).await;
        let made = api.ok(Verb::Create, CLAIMS, claim(name, name)).await;
        let one = format!("/v1/persistentvolumeclaims/{name}?namespace=default");
        let mut larger = made.clone();
        larger["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        // Validation comes first, and knows it too.
        assert_eq!(api.refused(Verb::Update, &one, larger).await.0, 422);
        let mut bound = made;
        bound["spec"]["volumeName"] = json!("v");
        let mut bound = api.ok(Verb::Update, &one, bound).await;
        bound["status"]["phase"] = json!("Bound");
        let status = format!("/v1/persistentvolumeclaims/{name}/status?namespace=default");
        let mut bound = api.ok(Verb::Update, &status, bound).await;
        bound["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        let (code, message) = api.refused(Verb::Update, &one, bound).await;
        if grows {
            assert_eq!(code, 200, "{message}");
        } else {
            assert_eq!(
                (code, message.as_str()),
                (
                    403,
                    r#"persistentvolumeclaims "rigid" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"#
                )
            );
        }
    }
    cluster.stop().await;
}

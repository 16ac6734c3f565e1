//! A server over objects some of which cannot be read: it starts, makes nothing again that was removed, tokens are good as long as
//! the objects they are bound to are there, whatever else of their resource is damaged, and other resources' garbage is collected.

use crate::{
    common::{
        TestCluster,
        access::{admin, ask, ok},
        until,
    },
    etcd::{client, raw, store},
};
use kaji::StorageMediaType;
use kaji_store::{Range, Store, Txn};
use kaji_testing::etcd::Etcd;
use serde_json::{Value, json};
use std::time::Duration;

const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/local-path";
const DEFAULT: &str = "/api/v1/namespaces/default";
const DAMAGED: [&str; 3] = ["configmaps", "secrets", "pods"];

async fn post(cluster: &TestCluster, path: &str, body: Value) -> Value {
    ok(cluster, &admin(), &format!("POST {path}"), body).await
}

/// A token of the account `robot` that is bound to an object.
async fn token(cluster: &TestCluster, kind: &str, name: &str) -> String {
    let spec = json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}});
    let answer =
        post(cluster, &format!("{DEFAULT}/serviceaccounts/robot/token"), json!({"spec": spec})).await;
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// What a TokenReview says of a token: the error, or the user's name.
async fn reviewed(cluster: &TestCluster, token: &str) -> String {
    let review = json!({"spec": {"token": token}});
    let answer = post(cluster, "/apis/authentication.k8s.io/v1/tokenreviews", review).await;
    let status = &answer["status"];
    let text = status["error"].as_str().or(status["user"]["username"].as_str());
    text.unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_and_authenticates_while_objects_are_damaged() {
    let Some(etcd) = Etcd::start("starts_and_authenticates_while_objects_are_damaged") else { return };
    let start = async |dir| TestCluster::start_in(dir, 1, store(&etcd, StorageMediaType::Json)).await;
    let first = start(tempfile::tempdir().unwrap()).await;
    post(&first, &format!("{DEFAULT}/serviceaccounts"), json!({"metadata": {"name": "robot"}})).await;
    post(&first, &format!("{DEFAULT}/secrets"), json!({"metadata": {"name": "s"}})).await;
    let spec = json!({"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]});
    post(&first, &format!("{DEFAULT}/pods"), json!({"metadata": {"name": "p"}, "spec": spec})).await;
    let tokens = [token(&first, "Pod", "p").await, token(&first, "Secret", "s").await];
    ok(&first, &admin(), &format!("DELETE {CLASS}"), Value::Null).await;
    let dir = first.stop().await;
    let etcd_client = client(&etcd).await;
    for resource in DAMAGED {
        let key = format!("/registry/{resource}/default/damaged");
        etcd_client.txn(Txn::put(&*key, &b"{"[..])).await.unwrap();
    }

    let second = start(dir).await;
    for resource in DAMAGED {
        let (code, _) = ask(&second, &admin(), &format!("GET {DEFAULT}/{resource}"), &Value::Null).await;
        assert_eq!(code, 500, "{resource}");
    }
    assert!(raw(&etcd, "/registry/storageclasses/").await.is_empty());
    const ROBOT: &str = "system:serviceaccount:default:robot";
    for bound in &tokens {
        assert_eq!(reviewed(&second, bound).await, ROBOT);
    }
    let later = token(&second, "Pod", "p").await;
    assert_eq!(reviewed(&second, &later).await, ROBOT);

    let pod = etcd_client.range(Range::key("/registry/pods/default/p")).await.unwrap().kvs.remove(0);
    etcd_client.txn(Txn::delete("/registry/pods/default/p", pod.mod_revision)).await.unwrap();
    assert_eq!(reviewed(&second, &later).await, "service account token has been invalidated");
    assert_eq!(reviewed(&second, &tokens[1]).await, ROBOT);
    second.stop().await;
}

/// A new resource, of which the first list fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collects_garbage_while_a_new_resource_cannot_be_listed() {
    let Some(etcd) = Etcd::start("collects_garbage_while_a_new_resource_cannot_be_listed") else { return };
    let store = store(&etcd, StorageMediaType::Json);
    let cluster = TestCluster::start_in(tempfile::tempdir().unwrap(), 1, store).await;
    let maps = format!("{DEFAULT}/configmaps");
    let collect = async || {
        let owner = post(&cluster, &maps, json!({"metadata": {"name": "owner"}})).await;
        let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
            "uid": owner["metadata"]["uid"]}]);
        let dependent = json!({"metadata": {"name": "dependent", "ownerReferences": owners}});
        post(&cluster, &maps, dependent).await;
        ok(&cluster, &admin(), &format!("DELETE {maps}/owner"), Value::Null).await;
        until("the dependent is collected", async || {
            let path = format!("GET {maps}/dependent");
            ask(&cluster, &admin(), &path, &Value::Null).await.0 == 404
        })
        .await;
    };
    collect().await;
    let damaged = Txn::put("/registry/example.com/widgets/default/damaged", &b"{"[..]);
    client(&etcd).await.txn(damaged).await.unwrap();
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    });
    post(&cluster, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    until("the collector has tried to list it", async || {
        let (_, metrics) = ask(&cluster, &admin(), "GET /metrics", &Value::Null).await;
        let metrics = metrics.as_str().unwrap_or_default();
        metrics.lines().any(|line| {
            line.starts_with("apiserver_request_total{")
                && [r#"code="500""#, r#"resource="widgets""#, r#"verb="LIST""#]
                    .iter()
                    .all(|l| line.contains(l))
        })
    })
    .await;
    // Far less than lists of new resources have.
    tokio::time::timeout(Duration::from_secs(20), collect()).await.expect("collection goes on");
    cluster.stop().await;
}

//! Service accounts of pods.

use super::{PODS, pod};
use crate::common::{TestCluster, api::Api};
use kaji_resource::Verb;
use serde_json::json;

const ACCOUNTS: &str = "/v1/serviceaccounts?namespace=default";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_run_as_accounts() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let made = api.ok(Verb::Create, PODS, pod("plain", json!({}))).await;
    assert_eq!(
        (&made["spec"]["serviceAccountName"], &made["spec"]["serviceAccount"]),
        (&json!("default"), &json!("default"))
    );
    let volume = &made["spec"]["volumes"][0];
    let name = volume["name"].as_str().unwrap();
    assert!(name.starts_with("kube-api-access-") && name.len() == 21, "{name}");
    assert_eq!(volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3607);
    assert_eq!(made["spec"]["containers"][0]["volumeMounts"][0]["name"], name);
    assert_eq!(
        api.refused(Verb::Create, PODS, pod("x", json!({"serviceAccountName": "none"}))).await,
        (403, r#"pods "x" is forbidden: error looking up service account default/none: serviceaccount "none" not found"#.into())
    );
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"},
        "automountServiceAccountToken": false, "imagePullSecrets": [{"name": "pull"}]});
    api.ok(Verb::Create, ACCOUNTS, account).await;
    let made = api.ok(Verb::Create, PODS, pod("robot", json!({"serviceAccountName": "robot"}))).await;
    assert_eq!(made["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    assert!(made["spec"]["volumes"].is_null());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mirror_pods_have_no_account() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let mirror = |name: &str, spec| {
        let mut pod = pod(name, spec);
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        pod["spec"]["nodeName"] = "n".into();
        pod
    };
    let made = api.ok(Verb::Create, PODS, mirror("a", json!({}))).await;
    assert!(made["spec"]["serviceAccountName"].is_null() && made["spec"]["volumes"].is_null());
    assert_eq!(
        api.refused(Verb::Create, PODS, mirror("b", json!({"serviceAccountName": "default"}))).await,
        (403, r#"pods "b" is forbidden: a mirror pod may not reference service accounts"#.into())
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_namespace_s_account_is_waited_for() {
    let cluster = TestCluster::start(1).await;
    let api = Api(&cluster);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fresh"}});
    api.ok(Verb::Create, "/v1/namespaces", namespace).await;
    api.ok(Verb::Create, "/v1/pods?namespace=fresh", pod("p", json!({}))).await;
    cluster.stop().await;
}

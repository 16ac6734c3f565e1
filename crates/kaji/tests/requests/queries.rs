//! Query parameters: authorization and verbs take the same value of each.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person, user},
};
use kaji_auth::names::{AUTHENTICATED, NODES};
use serde_json::{Value, json};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Two secrets, and an account that may read the first.
async fn secrets() -> TestCluster {
    let test = TestCluster::start(0).await;
    for name in ["s1", "s2"] {
        ok(&test, &admin(), &format!("POST {SECRETS}"), json!({"metadata": {"name": name}})).await;
    }
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["s1"],
        "verbs": ["get", "list", "watch"]}]);
    let role = json!({"metadata": {"name": "reader"}, "rules": rules});
    ok(&test, &admin(), &format!("POST {RBAC}/clusterroles"), role).await;
    let binding = json!({
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "rita"}],
    });
    ok(&test, &admin(), &format!("POST {RBAC}/clusterrolebindings"), binding).await;
    test
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_names_hold_for_repeated_selectors() {
    let test = secrets().await;
    let node = user("system:node:one", &[NODES, AUTHENTICATED]);
    for account in [person("rita"), node] {
        for query in [
            "fieldSelector=&fieldSelector=metadata.name%3Ds1",
            "fieldSelector&fieldSelector=metadata.name%3Ds1",
            "fieldSelector=metadata.name%3Ds2&fieldSelector=metadata.name%3Ds1",
            // Pairs that Go's parser drops.
            "fieldSelector=metadata.name%3Ds1;",
            "fieldSelector=metadata.name%3Ds1%",
        ] {
            let (code, answer) = ask(&test, &account, &format!("GET {SECRETS}?{query}"), &Value::Null).await;
            assert_eq!(code, 403, "{} {query}: {answer}", account.name);
        }
    }
    let list = format!("GET {SECRETS}?fieldSelector=metadata.name%3Ds1&fieldSelector=");
    let list = ok(&test, &person("rita"), &list, Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_dry_run_value_counts() {
    let test = TestCluster::start(0).await;
    let map = json!({"metadata": {"name": "m"}});
    for query in ["dryRun=", "dryRun", "dryRun=All&dryRun=", "dryRun=&dryRun=All", "dryRun=All&dryRun=x"] {
        let (code, answer) = ask(&test, &admin(), &format!("POST {MAPS}?{query}"), &map).await;
        assert_eq!(code, 422, "{query}: {answer}");
        let (code, _) = ask(&test, &admin(), &format!("GET {MAPS}/m"), &Value::Null).await;
        assert_eq!(code, 404, "{query}");
    }
    ok(&test, &admin(), &format!("POST {MAPS}?dryRun=All&dryRun=All"), map.clone()).await;
    ok(&test, &admin(), &format!("POST {MAPS}?dryRun=All;"), map).await;
    test.stop().await;
}

//! The last decisions about objects are remembered until they are settled, and shown to those that may read the objects.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
};
use kaji_testing::wait::until;
use serde_json::{Value, json};

const DECISIONS: &str = "/apis/kaji.dev/v1alpha1/namespaces/default/decisions";

fn lines(list: &Value) -> Vec<String> {
    let line = |decision: &Value| {
        let text =
            |pointer: &str| decision.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned();
        let about =
            format!("{}/{} ({})", text("/object/resource"), text("/object/name"), text("/object/owner"));
        let rejections: Vec<String> = decision["rejections"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|r| format!(" [{} {} {}]", r["plugin"], r["reason"], r["nodes"]))
            .collect();
        format!(
            "{} {about} {}: {}{}",
            text("/component"),
            text("/reason"),
            text("/message"),
            rejections.concat()
        )
    };
    let mut lines: Vec<String> = list["items"].as_array().unwrap().iter().map(line).collect();
    lines.sort();
    lines
}

async fn shown(cluster: &TestCluster, user: &kaji_resource::UserInfo) -> Vec<String> {
    let (code, list) = ask(cluster, user, &format!("GET {DECISIONS}"), &json!(null)).await;
    assert_eq!(code, 200, "{list}");
    lines(&list)
}

/// The lines of the two loops that the test is about: the replica set's, then the scheduler's.
fn of_pods(lines: &[String]) -> Vec<String> {
    let components = ["replicaset-controller ", "kube-scheduler "];
    let of = |component: &&str| {
        lines.iter().filter(|line| line.starts_with(component)).cloned().collect::<Vec<_>>()
    };
    components.iter().flat_map(of).collect()
}

async fn grant(cluster: &TestCluster, name: &str, resource: &str) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": name}, "rules": [
        {"apiGroups": [""], "resources": [resource], "verbs": ["get", "list"]},
        {"apiGroups": ["kaji.dev"], "resources": ["decisions"], "verbs": ["list"]}]});
    let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]});
    ok(cluster, &admin(), &format!("POST {rbac}/roles"), role).await;
    ok(cluster, &admin(), &format!("POST {rbac}/rolebindings"), binding).await;
}

#[tokio::test]
async fn verdicts_and_errors_are_remembered_until_they_are_settled() {
    let cluster = TestCluster::start(1).await;
    grant(&cluster, "reader", "pods").await;
    grant(&cluster, "other", "services").await;
    until("the account of pods", async || {
        let account = "GET /api/v1/namespaces/default/serviceaccounts/default";
        ask(&cluster, &admin(), account, &json!(null)).await.0 == 200
    })
    .await;
    let pods = "/api/v1/namespaces/default/pods";
    let big = json!({"metadata": {"name": "big"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"requests": {"cpu": "4k"}}}]}});
    ok(&cluster, &admin(), &format!("POST {pods}"), big).await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}});
    ok(&cluster, &admin(), &format!("POST {quotas}"), quota).await;
    until("the quota is counted", async || {
        let (_, quota) = ask(&cluster, &admin(), &format!("GET {quotas}/few"), &json!(null)).await;
        quota["status"]["used"]["pods"] == "1"
    })
    .await;
    let labels = json!({"app": "web"});
    let set = json!({"metadata": {"name": "web"}, "spec": {"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    ok(&cluster, &admin(), &format!("POST {sets}"), set).await;
    // The node is tainted until it is ready.
    until("the decisions of both loops", async || {
        let all = of_pods(&shown(&cluster, &admin()).await);
        all.len() == 2 && all[1].contains("Insufficient cpu")
    })
    .await;
    let all = of_pods(&shown(&cluster, &person("reader")).await);
    let [of_replica_set, of_scheduler] = all.as_slice() else { panic!("{all:?}") };
    let verdict = "kube-scheduler pods/big (-) Unschedulable: 0/1 nodes are available: 1 Insufficient cpu";
    assert!(of_scheduler.starts_with(verdict), "{of_scheduler}");
    let rejection = r#" ["NodeResourcesFit" "Insufficient cpu" [""#;
    assert!(of_scheduler.contains(rejection), "{of_scheduler}");
    let refused = "replicaset-controller pods/- (ReplicaSet web) Forbidden: pods \"web-";
    assert!(of_replica_set.starts_with(refused), "{of_replica_set}");
    assert!(of_replica_set.contains("exceeded quota: few"), "{of_replica_set}");
    assert_eq!(shown(&cluster, &person("other")).await, Vec::<String>::new());
    let (code, _) = ask(&cluster, &person("nothing"), &format!("GET {DECISIONS}"), &json!(null)).await;
    assert_eq!(code, 403);
    // A pod that is gone, and a write that goes through, settle them.
    ok(&cluster, &admin(), &format!("DELETE {quotas}/few"), json!(null)).await;
    ok(&cluster, &admin(), &format!("DELETE {pods}/big?gracePeriodSeconds=0"), json!(null)).await;
    until("nothing is left", async || of_pods(&shown(&cluster, &admin()).await).is_empty()).await;
    cluster.stop().await;
}

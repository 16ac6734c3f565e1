//! Groups of pods, with the feature gate and the version that are off by default.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use kaji::{Options, StoreKind};
use kaji_meta::{Features, ServedVersions};
use serde_json::{Value, json};

const GROUPS: &str = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups";
const WORKLOADS: &str = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/workloads";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn switched_on(options: &mut Options) {
    options.features = Features::ALL;
    options.served = ServedVersions::parse(["scheduling.k8s.io/v1beta1=true"]).unwrap();
}

fn pod(name: &str) -> Value {
    // One of them fits on a node.
    let container = json!({"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 8080}]});
    json!({"metadata": {"name": name}, "spec": {"containers": [container], "schedulingGroup": {"podGroupName": "g"}}})
}

async fn get(test: &TestCluster, path: &str) -> Value {
    ask(test, &admin(), &format!("GET {path}"), &Value::Null).await.1
}

async fn bound(test: &TestCluster) -> usize {
    let pods = get(test, PODS).await;
    pods["items"].as_array().into_iter().flatten().filter(|pod| pod["spec"]["nodeName"].is_string()).count()
}

fn condition(group: &Value) -> String {
    let condition = &group["status"]["conditions"][0];
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    format!("{} {} {}: {}", text("type"), text("status"), text("reason"), text("message"))
}

#[tokio::test]
async fn groups_are_off_by_default() {
    let test = TestCluster::start(0).await;
    let (code, _) = ask(&test, &admin(), &format!("GET {GROUPS}"), &Value::Null).await;
    assert_eq!(code, 404);
    let made = ok(&test, &admin(), &format!("POST {PODS}"), pod("p")).await;
    assert!(made["spec"]["schedulingGroup"].is_null(), "{made}");
    test.stop().await;
}

#[tokio::test]
async fn gangs_are_scheduled_as_a_whole() {
    let test = TestCluster::start_over(tempfile::tempdir().unwrap(), 2, StoreKind::Memory, switched_on).await;
    let template = json!({"name": "t", "schedulingPolicy": {"gang": {"minCount": 3}}});
    let workload = json!({"metadata": {"name": "w"}, "spec": {"podGroupTemplates": [template]}});
    ok(&test, &admin(), &format!("POST {WORKLOADS}"), workload).await;
    let group = |template: &str| {
        json!({"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}},
            "workloadRef": {"workloadName": "w", "templateName": template}}})
    };
    let (code, answer) = ask(&test, &admin(), &format!("POST {GROUPS}"), &group("other")).await;
    assert_eq!(code, 403, "{answer}");
    let made = ok(&test, &admin(), &format!("POST {GROUPS}"), group("t")).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["scheduling.k8s.io/podgroup-protection"]));
    assert_eq!(
        (&made["spec"]["priority"], &made["spec"]["disruptionMode"]),
        (&json!(0), &json!({"single": {}}))
    );
    for name in ["p", "q", "r"] {
        let made = ok(&test, &admin(), &format!("POST {PODS}"), pod(name)).await;
        assert_eq!(made["spec"]["schedulingGroup"]["podGroupName"], "g");
    }
    until("the group is found to be unschedulable", async || {
        condition(&get(&test, &format!("{GROUPS}/g")).await)
            == "PodGroupInitiallyScheduled False Unschedulable: minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
    })
    .await;
    assert_eq!(bound(&test).await, 0);
    let smaller = json!({"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}});
    ok(&test, &admin(), &format!("PATCH {GROUPS}/g"), smaller).await;
    until("two pods are bound", async || bound(&test).await == 2).await;
    until("the group is scheduled", async || {
        condition(&get(&test, &format!("{GROUPS}/g")).await) == "PodGroupInitiallyScheduled True Scheduled: "
    })
    .await;
    ok(&test, &admin(), &format!("DELETE {GROUPS}/g"), Value::Null).await;
    assert!(get(&test, &format!("{GROUPS}/g")).await["metadata"]["deletionTimestamp"].is_string());
    ok(&test, &admin(), &format!("DELETE {PODS}"), Value::Null).await;
    until("the group is gone", async || {
        ask(&test, &admin(), &format!("GET {GROUPS}/g"), &Value::Null).await.0 == 404
    })
    .await;
    test.stop().await;
}

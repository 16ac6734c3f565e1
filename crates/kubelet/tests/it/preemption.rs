//! A pod ends for a critical one that lacks what it has.

use crate::fake::Fake;
use crate::whole_node::{Node, start};
use serde_json::{Value, json};
use std::time::Duration;

async fn until(fake: &Fake, running: &[&str]) {
    let runs = async {
        while fake.runtime.running() != running {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), runs).await.unwrap();
}

/// A pod with a container of the same name.
fn pod(name: &str, priority: i32, cpu: &str, version: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": version},
        "spec": {
            "nodeName": "node-1", "priority": priority,
            "containers": [{"name": name, "image": "i", "resources": {"requests": {"cpu": cpu}}}],
        },
        "status": {"phase": "Pending"},
    })
}

#[tokio::test]
async fn a_pod_ends_for_a_critical_one_that_lacks_what_it_has() {
    let mut victim = pod("victim", 0, "1500m", "2");
    let fake = Fake::new();
    let Node { mut seen, pods, task, running: _running } = start(&fake, victim.clone());
    until(&fake, &["victim/0"]).await;
    pods.send(pod("critical", 2_000_000_000, "1", "6")).unwrap();
    let event = seen.first(|path, body| path.ends_with("/events") && body["reason"] == "Preempting").await;
    let failed =
        seen.first(|path, body| path.ends_with("/pods/victim/status") && body["status"]["phase"] == "Failed");
    let status = failed.await["status"].clone();
    let conditions = status["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
    expect_test::expect![[r#"
        "Warning" "victim" "Preempted in order to admit critical pod"
        "Preempting" "Preempted in order to admit critical pod"
        "TerminationByKubelet" "Pod was preempted by Kubelet to accommodate a critical pod.""#]]
    .assert_eq(&format!(
        "{} {} {}\n{} {}\n{} {}",
        event["type"],
        event["involvedObject"]["name"],
        event["message"],
        status["reason"],
        status["message"],
        target["reason"],
        target["message"]
    ));
    // It waits until the API shows that the other one is over.
    assert!(fake.runtime.running().is_empty());
    victim["metadata"]["resourceVersion"] = "7".into();
    victim["status"] = json!({"phase": "Failed", "startTime": "2026-01-01T00:00:00Z"});
    pods.send(victim).unwrap();
    until(&fake, &["critical/0"]).await;
    task.abort();
}

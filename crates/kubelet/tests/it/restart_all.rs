//! Rules that restart all containers of a pod.

use crate::fake::Fake;
use crate::lifecycle::{Run, pod, ready};
use serde_json::{Value, json};

fn rules() -> Value {
    json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}])
}

/// Names of the containers that were restarted once, with why their last run has ended.
fn restarted(status: &Value) -> Vec<String> {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let all = lists.iter().flat_map(|list| status[*list].as_array().into_iter().flatten());
    let restarted = all.filter(|s| s["restartCount"].as_i64() > Some(0));
    restarted
        .map(|s| {
            let ended = &s["lastState"]["terminated"];
            format!("{} {}: {}", s["name"].as_str().unwrap(), s["restartCount"], ended["reason"])
        })
        .collect()
}

#[tokio::test]
async fn an_exit_of_a_sidecar_restarts_all_containers_of_a_pod_that_restarts_none() {
    let always = "Always";
    let run = Run::start(
        Fake::new(),
        &pod(json!({
            "restartPolicy": "Never",
            "initContainers": [
                {"name": "init", "image": "i"},
                {"name": "sidecar", "image": "i", "restartPolicy": always},
                {"name": "source", "image": "i", "restartPolicy": always, "restartPolicyRules": rules()},
            ],
            "containers": [{"name": "regular", "image": "i"}],
        })),
    );
    run.until("init runs", |_| run.fake.runtime.running() == ["init/0"]).await;
    run.fake.runtime.exit("init", 0);
    run.until("ready", ready).await;
    run.fake.runtime.state.lock().unwrap().calls.clear();
    run.fake.runtime.exit("source", 42);
    let again = |_: &Value| run.fake.runtime.running().iter().any(|name| name.starts_with("init/"));
    let status = run.until("init runs again", again).await;
    let phase = status["phase"].as_str().unwrap_or_default();
    assert!(matches!(phase, "Running" | "Pending"), "{phase}: such a pod has not failed");
    assert!(run.calls().starts_with("stop regular 2\nstop sidecar 2\n"), "{}", run.calls());
    run.fake.runtime.exit("init", 0);
    let status = run.until("ready again", |s| ready(s) && restarted(s).len() == 4).await;
    expect_test::expect![[r#"
        init 1: "RestartingAllContainers"
        sidecar 1: "RestartingAllContainers"
        source 1: "RestartingAllContainers"
        regular 1: "RestartingAllContainers""#]]
    .assert_eq(&restarted(&status).join("\n"));
    let conditions = status["conditions"].as_array().unwrap();
    let restarting = conditions.iter().find(|c| c["type"] == "AllContainersRestarting").unwrap();
    assert_eq!(restarting["status"], "False");
}

#[tokio::test]
async fn an_exit_of_an_init_container_begins_initialization_anew() {
    let run = Run::start(
        Fake::new(),
        &pod(json!({
            "restartPolicy": "Never",
            "initContainers": [
                {"name": "sidecar", "image": "i", "restartPolicy": "Always"},
                {"name": "source", "image": "i", "restartPolicy": "Never", "restartPolicyRules": rules()},
            ],
            "containers": [{"name": "regular", "image": "i"}],
        })),
    );
    run.until("source runs", |_| run.fake.runtime.running() == ["sidecar/0", "source/0"]).await;
    run.fake.runtime.exit("source", 42);
    run.until("source runs again", |s| run.fake.runtime.running().len() == 2 && restarted(s).len() == 2)
        .await;
    run.fake.runtime.exit("source", 0);
    let status = run.until("ready", ready).await;
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    // An exit that no rule is about ends such a pod.
    run.fake.runtime.exit("regular", 1);
    run.until("failed", |s| s["phase"] == "Failed").await;
}

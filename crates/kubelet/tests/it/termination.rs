//! How pods end: grace periods, hooks, the order of containers, and the last status.

use crate::fake::Fake;
use crate::lifecycle::{Run, pod, ready};
use kaji_kubelet::pods::worker::Ending;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Notify;

/// A pod that is to be deleted within so many seconds.
fn deleted(pod: &Value, grace: i64) -> Value {
    let mut pod = pod.clone();
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:07Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
    pod
}

fn hook(command: &str) -> Value {
    json!({"preStop": {"exec": {"command": [command]}}})
}

/// What was done with containers after they were started.
fn ends(run: &Run) -> Vec<String> {
    let calls = run.calls();
    let ends = calls.lines().filter(|call| call.starts_with("exec ") || call.starts_with("stop "));
    ends.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_pod_that_is_deleted_before_its_containers_have_started_fails() {
    let pod = pod(json!({"containers": [{"name": "c", "image": "i", "imagePullPolicy": "Never"}]}));
    let run = Run::start(Fake::new(), &pod);
    let waits = |s: &Value| {
        s["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImageNeverPull"
            && s["phase"] == "Pending"
    };
    run.until("waits", waits).await;
    run.change(&deleted(&pod, 30));
    let status = run.until("failed", |s| s["phase"] == "Failed").await;
    assert_eq!(
        status["containerStatuses"][0]["state"]["terminated"],
        json!({
            "exitCode": 137,
            "reason": "ContainerStatusUnknown",
            "message": "The container could not be located when the pod was terminated",
        })
    );
    run.until("deleted", |_| *run.fake.api.deleted.lock().unwrap()).await;
}

#[tokio::test]
async fn a_pod_that_is_deleted_during_its_initialization_fails_without_ends_of_what_was_not_next() {
    let pod = pod(json!({
        "initContainers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}],
        "containers": [{"name": "c", "image": "i"}],
    }));
    let run = Run::start(Fake::new(), &pod);
    run.until("a runs", |s| s["initContainerStatuses"][0]["state"]["running"].is_object()).await;
    run.change(&deleted(&pod, 30));
    let status = run.until("failed", |s| s["phase"] == "Failed").await;
    let state = |list: &str, index: usize| {
        let state = &status[list][index]["state"];
        format!("{} {}", state["terminated"]["reason"], state["waiting"]["reason"])
    };
    let init = "initContainerStatuses";
    expect_test::expect![[r#"
        "Error" null
        null "PodInitializing"
        null "PodInitializing""#]]
    .assert_eq(&[state(init, 0), state(init, 1), state("containerStatuses", 0)].join("\n"));
}

#[tokio::test]
async fn a_pod_that_the_node_does_not_take_has_lost_no_container() {
    let mut pod = pod(json!({"containers": [{"name": "c", "image": "i"}]}));
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    pod["status"]["conditions"] = json!([condition("PodScheduled"), condition("example.com/gate")]);
    let run = Run::rejected(Fake::new(), &pod);
    let status = run.until("failed", |s| s["phase"] == "Failed").await;
    expect_test::expect![[r#"{"conditions":[{"status":"True","type":"example.com/gate"}],"message":"Pod was rejected: m","observedGeneration":1,"phase":"Failed","qosClass":"BestEffort","reason":"OutOfcpu","startTime":"2026-01-01T00:00:00Z"}"#]]
        .assert_eq(&status.to_string());
    assert_eq!(run.calls(), "");
}

#[tokio::test]
async fn hooks_run_at_once_and_sidecars_stop_after_the_regular_containers() {
    let pod = pod(json!({
        "terminationGracePeriodSeconds": 60,
        "initContainers": [
            {"name": "first", "image": "i", "restartPolicy": "Always", "lifecycle": hook("first")},
            {"name": "second", "image": "i", "restartPolicy": "Always"},
        ],
        "containers": [{"name": "c", "image": "i", "lifecycle": hook("c")}],
    }));
    let run = Run::start(Fake::new(), &pod);
    run.until("ready", ready).await;
    let release = Arc::new(Notify::new());
    run.fake.runtime.state.lock().unwrap().stops_wait = Some(release.clone());
    run.change(&deleted(&pod, 60));
    // The stop of the regular container is held up, and the sidecars' behind it; their hooks are not.
    run.until("hooks", |_| ends(&run).len() == 2).await;
    let mut hooks = ends(&run);
    hooks.sort_unstable();
    assert_eq!(hooks, ["exec c", "exec first"]);
    let killed = || {
        let events = run.fake.api.events.lock().unwrap().clone();
        events.iter().filter(|event| event.starts_with("Killing: Stopping container")).count()
    };
    assert_eq!(killed(), 3);
    run.fake.runtime.state.lock().unwrap().stops_wait = None;
    release.notify_one();
    run.until("deleted", |_| *run.fake.api.deleted.lock().unwrap()).await;
    assert_eq!(ends(&run)[2..], ["stop c 60", "stop second 60", "stop first 60"]);
}

#[tokio::test]
async fn a_pod_that_is_deleted_without_grace_has_its_hook_begun_and_is_not_killed_at_once() {
    let container = json!({"name": "c", "image": "i", "lifecycle": hook("c")});
    let pod = pod(json!({"terminationGracePeriodSeconds": 30, "containers": [container]}));
    let run = Run::start(Fake::new(), &pod);
    run.until("ready", ready).await;
    run.change(&deleted(&pod, 0));
    run.until("deleted", |_| *run.fake.api.deleted.lock().unwrap()).await;
    assert_eq!(ends(&run), ["exec c", "stop c 2"]);
}

#[tokio::test]
async fn the_condition_of_a_pod_that_the_kubelet_ends_may_say_more_than_its_message() {
    let run = Run::start(Fake::new(), &pod(json!({"containers": [{"name": "c", "image": "i"}]})));
    run.until("ready", ready).await;
    run.end(Ending {
        reason: "Preempting".to_owned(),
        message: "short".to_owned(),
        disruption: Some("longer".to_owned()),
        ..Ending::default()
    });
    let status = run.until("failed", |s| s["phase"] == "Failed").await;
    let target = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "DisruptionTarget");
    let target = target.unwrap();
    expect_test::expect![[r#""Preempting" "short" "TerminationByKubelet" "longer""#]].assert_eq(&format!(
        "{} {} {} {}",
        status["reason"], status["message"], target["reason"], target["message"]
    ));
    // The pod's own grace period.
    assert!(run.calls().ends_with("stop c 30"), "{}", run.calls());
}

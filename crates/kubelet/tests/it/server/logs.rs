//! Logs of containers: which container is meant, what of its log is sent, and a client that follows.

use super::{Served, next_bytes};
use http::Method;
use kaji_containers::{ContainerConfig, ContainerMetadata, ContainerRuntime};
use serde_json::{Value, json};
use std::fs::{File, create_dir_all};
use std::io::Write;
use std::path::PathBuf;

fn pod(status: Value) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [{"name": "c"}, {"name": "d"}]},
        "status": {"containerStatuses": [status]},
    })
}

fn container(state: Value, last: Value) -> Value {
    json!({
        "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state, "lastState": last,
        "containerID": state["running"]["id"].as_str().unwrap_or_default(),
    })
}

/// A container that runs, and its log.
async fn running(served: &Served, attempt: u32) -> (String, PathBuf) {
    let fake = &served.fake;
    let log = fake.cx.config.pod_log_dir.join(format!("n_p_u/c/{attempt}.log"));
    create_dir_all(log.parent().unwrap()).unwrap();
    let config = ContainerConfig {
        metadata: ContainerMetadata { name: "c".into(), attempt },
        log_path: log.to_str().unwrap().to_owned(),
        labels: [("io.kubernetes.pod.uid".to_owned(), "u".to_owned())].into(),
        ..ContainerConfig::default()
    };
    let id = fake.runtime.create_container("s", config).await.unwrap();
    fake.runtime.start_container(&id).await.unwrap();
    (format!("kaji://{id}"), log)
}

fn append(log: &PathBuf, stream: &str, text: &str) {
    let mut file = File::options().append(true).create(true).open(log).unwrap();
    writeln!(file, "2026-01-01T00:00:00.5Z {stream} F {text}").unwrap();
}

#[tokio::test]
async fn serves_whole_logs() {
    let served = Served::start().await;
    let (old, old_log) = running(&served, 0).await;
    append(&old_log, "stdout", "before");
    served.fake.runtime.exit("c", 1);
    let (new, log) = running(&served, 1).await;
    append(&log, "stdout", "one");
    append(&log, "stderr", "two");
    append(&log, "stdout", "three");
    let last = json!({"terminated": {"exitCode": 1, "containerID": old}});
    served.pods.set(pod(container(json!({"running": {"id": new}}), last)));
    let mut lines = vec![];
    for query in [
        "",
        "?previous=true",
        "?timestamps=true&tailLines=2",
        "?stream=Stderr",
        "?limitBytes=6",
        "?tailLines=-1",
        "?tailLines=many",
        "?sinceTime=2026-01-01T00:00:01Z",
    ] {
        lines.push(served.shown(&format!("/containerLogs/n/p/c{query}")).await);
    }
    for path in ["n/q/c", "n/p/x", "n/p/d", "n/p/", "n//c", "/p/c", "n/p", "n/p/c/c"] {
        lines.push(served.shown(&format!("/containerLogs/{path}")).await);
    }
    expect_test::expect![[r#"
        /containerLogs/n/p/c: 200 one
        two
        three
        /containerLogs/n/p/c?previous=true: 200 before
        /containerLogs/n/p/c?timestamps=true&tailLines=2: 200 2026-01-01T00:00:00.500000000Z two
        2026-01-01T00:00:00.500000000Z three
        /containerLogs/n/p/c?stream=Stderr: 200 two
        /containerLogs/n/p/c?limitBytes=6: 200 one
        tw
        /containerLogs/n/p/c?tailLines=-1: 422 {"message": "Invalid request."}
        /containerLogs/n/p/c?tailLines=many: 400 {"message": "Unable to decode query."}
        /containerLogs/n/p/c?sinceTime=2026-01-01T00:00:01Z: 200 
        /containerLogs/n/q/c: 404 pod "q" does not exist
        /containerLogs/n/p/x: 404 container "x" not found in pod "p"
        /containerLogs/n/p/d: 400 container "d" in pod "p" is not available
        /containerLogs/n/p/: 400 {"message": "Missing container name."}
        /containerLogs/n//c: 400 {"message": "Missing podID."}
        /containerLogs//p/c: 400 {"message": "Missing podNamespace."}
        /containerLogs/n/p: 404 404: Page Not Found
        /containerLogs/n/p/c/c: 404 404: Page Not Found"#]]
    .assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn logs_that_are_not_there() {
    let served = Served::start().await;
    let mut lines = vec![];
    let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
    served.pods.set(pod(container(waiting.clone(), json!({}))));
    lines.push(served.shown("/containerLogs/n/p/c").await);
    lines.push(served.shown("/containerLogs/n/p/c?previous=true").await);
    served.pods.set(pod(container(json!({"running": {"id": "kaji://gone"}}), json!({}))));
    lines.push(served.shown("/containerLogs/n/p/c").await);
    lines.push(served.shown("/containerLogs/n/p/c?stream=Stderr").await);
    // The status is older than what the runtime shows.
    served.pods.set(pod(container(waiting, json!({}))));
    let (_, log) = running(&served, 0).await;
    let shown = served.shown("/containerLogs/n/p/c").await;
    let directory = served.fake.dir.path().to_str().unwrap();
    lines.push(shown.replace(directory, "DIR"));
    append(&log, "stdout", "one");
    lines.push(served.shown("/containerLogs/n/p/c").await);
    expect_test::expect![[r#"
        /containerLogs/n/p/c: 400 container "c" in pod "p" is waiting to start: ContainerCreating
        /containerLogs/n/p/c?previous=true: 400 previous terminated container "c" in pod "p" not found
        /containerLogs/n/p/c: 200 unable to retrieve container logs for kaji://gone
        /containerLogs/n/p/c?stream=Stderr: 400 unable to retrieve container logs for kaji://gone
        /containerLogs/n/p/c: 200 failed to try resolving symlinks in path "DIR/pods/n_p_u/c/0.log": lstat DIR/pods/n_p_u/c/0.log: no such file or directory
        /containerLogs/n/p/c: 200 one"#]].assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn a_log_is_followed_over_a_rotation_until_its_container_ends() {
    let served = Served::start().await;
    let (id, log) = running(&served, 0).await;
    append(&log, "stdout", "one");
    served.pods.set(pod(container(json!({"running": {"id": id}}), json!({}))));
    let mut response =
        served.send(Method::GET, "/containerLogs/n/p/c?follow=true&tailLines=1", "admin").await;
    assert_eq!(next_bytes(&mut response).await.unwrap(), "one\n");
    append(&log, "stderr", "two");
    assert_eq!(next_bytes(&mut response).await.unwrap(), "two\n");
    std::fs::rename(&log, log.with_extension("log.20260101-000000")).unwrap();
    append(&log, "stdout", "three");
    assert_eq!(next_bytes(&mut response).await.unwrap(), "three\n");
    append(&log, "stdout", "four");
    served.fake.runtime.exit("c", 0);
    assert_eq!(next_bytes(&mut response).await.unwrap(), "four\n");
    assert_eq!(next_bytes(&mut response).await, None);
}

#[tokio::test]
async fn a_server_that_stops_ends_what_it_sends() {
    let served = Served::start().await;
    let (id, log) = running(&served, 0).await;
    append(&log, "stdout", "one");
    served.pods.set(pod(container(json!({"running": {"id": id}}), json!({}))));
    let mut response = served.send(Method::GET, "/containerLogs/n/p/c?follow=true", "admin").await;
    assert_eq!(next_bytes(&mut response).await.unwrap(), "one\n");
    served.stop.send_replace(true);
    let body = http_body_util::BodyExt::collect(response.into_body()).await;
    assert!(body.is_err(), "the connection ends in the middle of the body");
}

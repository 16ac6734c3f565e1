//! Creating, starting, stopping and removing.

use crate::common::node;
use kaji_containers::{
    ContainerRuntime, ContainerState, LinuxResources, NamespaceMode, PodSandboxState, ResourceUpdate,
    RuntimeError,
};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_container_runs_and_leaves_nothing() {
    let Some(node) = node("runs").await else { return };
    let sandbox = node.sandbox().await;
    let before = Instant::now();
    let id = node.start(&sandbox, node.script("echo hello; hostname; exit 3")).await;
    eprintln!("create and start: {:?}", before.elapsed());
    let status = node.ended(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"));
    assert!(status.started_at_nanos > 0 && status.finished_at_nanos >= status.started_at_nanos);
    assert_eq!(node.output(&status), "hello\npod0\n");
    assert_eq!(status.image_ref, "sha256:1");
    let again = node.runtime().start_container(&id).await;
    assert!(matches!(again, Err(RuntimeError::FailedPrecondition(_))), "{again:?}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_program_is_a_start_error() {
    let Some(node) = node("missing").await else { return };
    let sandbox = node.sandbox().await;
    let mut config = node.script("");
    config.command = vec!["no-such-program".into()];
    let id = node.runtime().create_container(&sandbox, config).await.unwrap();
    let error = node.runtime().start_container(&id).await.unwrap_err();
    let text = "exec: \"no-such-program\": executable file not found in $PATH";
    assert!(matches!(&error, RuntimeError::StartFailed(message) if message.contains(text)), "{error:?}");
    let status = node.runtime().container_status(&id).await.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
    assert!(status.message.contains(text), "{}", status.message);
    assert_eq!(status.info.state, ContainerState::Exited);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_with_the_signal_and_then_kills() {
    let Some(node) = node("stops").await else { return };
    let sandbox = node.sandbox().await;
    let polite = node
        .start(&sandbox, node.script("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done"))
        .await;
    node.printed(&polite, "up").await;
    node.runtime().stop_container(&polite, Duration::from_secs(20)).await.unwrap();
    let status = node.runtime().container_status(&polite).await.unwrap();
    assert_eq!((status.exit_code, node.output(&status).as_str()), (7, "up\nbye\n"));

    let deaf = node.start(&sandbox, node.script("trap '' TERM; echo up; while :; do sleep 0.01; done")).await;
    node.printed(&deaf, "up").await;
    node.runtime().stop_container(&deaf, Duration::from_millis(50)).await.unwrap();
    assert_eq!(node.runtime().container_status(&deaf).await.unwrap().exit_code, 137);
    node.runtime().stop_container(&deaf, Duration::ZERO).await.unwrap();
    node.runtime().remove_container(&deaf).await.unwrap();
    node.runtime().remove_container(&deaf).await.unwrap();
    assert!(node.runtime().container_status(&deaf).await.unwrap_err().is_not_found());
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_used_once_and_missing_images_are_refused() {
    let Some(node) = node("names").await else { return };
    let config = node.sandbox_config();
    let sandbox = node.runtime().run_pod_sandbox(config.clone()).await.unwrap();
    let again = node.runtime().run_pod_sandbox(config).await;
    assert!(matches!(again, Err(RuntimeError::AlreadyExists(_))), "{again:?}");
    let container = node.script("true");
    node.runtime().create_container(&sandbox, container.clone()).await.unwrap();
    let again = node.runtime().create_container(&sandbox, container).await;
    assert!(matches!(again, Err(RuntimeError::AlreadyExists(_))), "{again:?}");
    let mut missing = node.script("true");
    missing.image = "missing".into();
    let refused = node.runtime().create_container(&sandbox, missing).await;
    assert!(matches!(refused, Err(RuntimeError::ImageNotPresent(_))), "{refused:?}");
    // What cannot be created leaves nothing.
    let mut wrong = node.script("true");
    wrong.security.run_as_username = "absent".into();
    assert!(node.runtime().create_container(&sandbox, wrong).await.is_err());
    assert_eq!(node.runtime().list_containers(Default::default()).await.unwrap().len(), 1);
    node.runtime().stop_pod_sandbox(&sandbox).await.unwrap();
    let status = node.runtime().pod_sandbox_status(&sandbox).await.unwrap();
    assert_eq!(status.info.state, PodSandboxState::NotReady);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_share_pid_namespaces_when_asked() {
    let Some(node) = node("pids").await else { return };
    let mut config = node.sandbox_config();
    config.security.namespaces.pid = NamespaceMode::Pod;
    let sandbox = node.runtime().run_pod_sandbox(config).await.unwrap();
    let shared = |text: &str| {
        let mut config = node.script(text);
        config.security.namespaces.pid = NamespaceMode::Pod;
        config
    };
    let first = node.start(&sandbox, shared("exec sleep 1000")).await;
    let second = node.start(&sandbox, shared("ps; ls -l /proc/1/root/ 2>&1; echo done")).await;
    let status = node.ended(&second).await;
    let text = node.output(&status);
    assert!(text.contains("sleep 1000") && text.contains("done"), "{text}");
    assert!(!text.contains(" home"), "{text}");
    assert_eq!(node.runtime().list_containers(Default::default()).await.unwrap().len(), 2);
    node.runtime().stop_container(&first, Duration::ZERO).await.unwrap();
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_set_and_changed() {
    let Some(node) = node("limits").await else { return };
    let sandbox = node.sandbox().await;
    let mut config = node.script("exec sleep 1000");
    config.resources =
        LinuxResources { memory_limit_bytes: 64 << 20, pids_limit: Some(50), ..Default::default() };
    let id = node.start(&sandbox, config).await;
    let stats = node.runtime().container_stats(&id).await.unwrap();
    let limit = stats.memory.available.unwrap() + stats.memory.working_set;
    assert_eq!(limit, 64 << 20);
    let resources = LinuxResources { memory_limit_bytes: 32 << 20, ..Default::default() };
    let update = ResourceUpdate { resources, ..Default::default() };
    node.runtime().update_container_resources(&id, update).await.unwrap();
    let stats = node.runtime().container_stats(&id).await.unwrap();
    assert_eq!(stats.memory.available.unwrap() + stats.memory.working_set, 32 << 20);
    let pods = node.runtime().list_pod_sandbox_stats(Default::default()).await.unwrap();
    assert_eq!((pods.len(), pods[0].containers.len()), (1, 1));
    assert!(pods[0].network.is_some());
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_takes_too_much_memory_is_oom_killed() {
    let Some(node) = node("oom").await else { return };
    let mut config =
        node.script("x=$(dd if=/dev/zero bs=1M count=200 2>/dev/null | tail -c 200000000); echo survived");
    config.resources = LinuxResources { memory_limit_bytes: 16 << 20, ..Default::default() };
    config.command = ["/bin/busybox", "tail", "-c", "200000000", "/dev/zero"].map(str::to_owned).to_vec();
    let (status, _) = node.run(config).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"));
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_get_their_variables_in_order_and_no_signal_that_is_ignored() {
    let Some(node) = node("variables").await else { return };
    let variables = [("ZULU", "1"), ("ALPHA", "$x = y"), ("MIKE", ""), ("BRAVO", "4")];
    let with_variables = |command: &[&str]| {
        let mut config = node.script("");
        config.command = command.iter().map(|part| (*part).to_owned()).collect();
        config.envs = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        config
    };
    let (_, text) = node.run(with_variables(&["env"])).await;
    let (head, tail) = text.split_once("\nHOSTNAME=").unwrap();
    assert!(head.starts_with("PATH=") && !head.contains('\n'), "{text}");
    let (_, tail) = tail.split_once('\n').unwrap();
    assert_eq!(tail, "ZULU=1\nALPHA=$x = y\nMIKE=\nBRAVO=4\nHOME=/root\n");
    let sandbox = node.sandbox().await;
    let id = node.start(&sandbox, with_variables(&["sleep", "1000"])).await;
    let run = async |command: &[&str]| {
        let command = command.iter().map(|part| (*part).to_owned()).collect();
        let output = node.runtime().exec_sync(&id, command, Duration::from_secs(20)).await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(&["env"]).await.split_once("ZULU").unwrap().1, tail.split_once("ZULU").unwrap().1);
    let status = run(&["cat", "/proc/self/status"]).await;
    for field in ["SigBlk:\t", "SigIgn:\t"] {
        let (_, mask) = status.split_once(field).unwrap();
        let mask = u64::from_str_radix(mask.lines().next().unwrap(), 16).unwrap();
        assert_eq!(mask & ((1 << 31) - 1), 0, "{field}{mask:x}");
    }
    node.finish().await;
}

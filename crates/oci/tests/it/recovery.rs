//! Containers outlive the manager and the shim.

use crate::common::node;
use kaji_containers::{ContainerRuntime, ContainerState, PodSandboxState};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn another_manager_adopts_containers() {
    let Some(mut node) = node("adopts").await else { return };
    let sandbox = node.sandbox().await;
    let running = node
        .start(&sandbox, node.script("echo up; while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 4"))
        .await;
    let ended = node.start(&sandbox, node.script("exit 6")).await;
    node.ended(&ended).await;
    let created = node.runtime().create_container(&sandbox, node.script("exit 8")).await.unwrap();
    node.printed(&running, "up").await;
    let pid = node.runtime().container_status(&running).await.unwrap().pid;
    node.open().await;
    let status = node.runtime().container_status(&running).await.unwrap();
    assert_eq!((status.info.state, status.pid), (ContainerState::Running, pid));
    assert_eq!(node.runtime().container_status(&ended).await.unwrap().exit_code, 6);
    let sandbox_status = node.runtime().pod_sandbox_status(&sandbox).await.unwrap();
    assert_eq!(sandbox_status.info.state, PodSandboxState::Ready);
    let command = ["touch", "/tmp/go"].map(str::to_owned).to_vec();
    node.runtime().exec_sync(&running, command, Duration::from_secs(20)).await.unwrap();
    assert_eq!(node.ended(&running).await.exit_code, 4);
    node.runtime().start_container(&created).await.unwrap();
    assert_eq!(node.ended(&created).await.exit_code, 8);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_goes_on_when_its_shim_is_killed() {
    let Some(node) = node("orphan").await else { return };
    let sandbox = node.sandbox().await;
    let script = "echo one; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo two; while [ ! -e /tmp/end ]; do sleep 0.01; done; exit 7";
    let id = node.start(&sandbox, node.script(script)).await;
    node.printed(&id, "one").await;
    let pid = node.runtime().container_status(&id).await.unwrap().pid;
    let shim = shim_of(pid);
    let killed = rustix::process::Pid::from_raw(shim).unwrap();
    rustix::process::kill_process(killed, rustix::process::Signal::KILL).unwrap();
    // The runtime starts another shim, which serves exec.
    let touch = |file: &str| ["touch", file].map(str::to_owned).to_vec();
    let started = std::time::Instant::now();
    while node.runtime().exec_sync(&id, touch("/tmp/go"), Duration::from_secs(20)).await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    node.printed(&id, "two").await;
    let status = node.runtime().container_status(&id).await.unwrap();
    assert_eq!((status.info.state, status.pid), (ContainerState::Running, pid));
    node.runtime().exec_sync(&id, touch("/tmp/end"), Duration::from_secs(20)).await.unwrap();
    // Before Linux 6.15 only a parent gets the code, unless it is late.
    let code = node.ended(&id).await.exit_code;
    assert!(code == 7 || (code == 255 && !tells_exit_codes()), "{code}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_given_up_goes_on() {
    let Some(node) = node("given-up").await else { return };
    let sandbox = node.sandbox().await;
    let id = node.runtime().create_container(&sandbox, node.script("exit 3")).await.unwrap();
    let lock = node.state().join("containers").join(&id).join("shim.lock");
    let began = async {
        while !lock.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = began => {}
        started = node.runtime().start_container(&id) => panic!("{started:?} without a shim"),
    }
    // Its exit is seen although the call for its start is gone.
    assert_eq!(node.ended(&id).await.exit_code, 3);
    node.runtime().stop_container(&id, Duration::ZERO).await.unwrap();
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_no_shim_had_begun_with_is_finished_by_the_next_manager() {
    let Some(mut node) = node("interrupted-start").await else { return };
    let sandbox = node.sandbox().await;
    let script = "echo ran; while :; do sleep 1; done";
    let id = node.runtime().create_container(&sandbox, node.script(script)).await.unwrap();
    let missing = node.script("true");
    let missing = kaji_containers::ContainerConfig { command: vec!["/none".into()], ..missing };
    let fails = node.runtime().create_container(&sandbox, missing).await.unwrap();
    // What a manager leaves that is killed between its record and its shim.
    node.manager = None;
    for id in [&id, &fails] {
        let file = node.state().join("containers").join(id).join("container.json");
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        record["started"] = true.into();
        std::fs::write(&file, record.to_string()).unwrap();
    }
    node.open().await;
    node.printed(&id, "ran").await;
    let status = node.runtime().container_status(&id).await.unwrap();
    assert_eq!(status.info.state, ContainerState::Running);
    assert_eq!(node.output(&status), "ran\n");
    let failed = node.ended(&fails).await;
    assert_eq!((failed.exit_code, failed.reason.as_str()), (128, "StartError"));
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn creations_that_are_given_up_leave_nothing() {
    let Some(node) = node("given-up-creation").await else { return };
    let sandbox = node.sandbox().await;
    for _ in 0..8 {
        begin(node.runtime().create_container(&sandbox, node.script("true"))).await;
        begin(node.runtime().run_pod_sandbox(node.sandbox_config())).await;
    }
    // Each is there from the beginning, and what is removed waits for its creation.
    assert_eq!(node.runtime().list_pod_sandboxes(Default::default()).await.unwrap().len(), 9);
    for container in node.runtime().list_containers(Default::default()).await.unwrap() {
        node.runtime().stop_container(&container.id, Duration::ZERO).await.unwrap();
    }
    node.runtime().stop_pod_sandbox(&sandbox).await.unwrap();
    node.finish().await;
}

/// Polls a future once, and drops it.
async fn begin(future: impl Future) {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let _ = future.as_mut().poll(cx);
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_is_killed_with_its_container_is_an_exit() {
    let Some(node) = node("both").await else { return };
    let sandbox = node.sandbox().await;
    let id = node.start(&sandbox, node.script("exec sleep 1000")).await;
    let pid = i32::try_from(node.runtime().container_status(&id).await.unwrap().pid).unwrap();
    let shim = shim_of(pid.cast_unsigned());
    for process in [shim, pid] {
        let process = rustix::process::Pid::from_raw(process).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }
    // Another shim has adopted it before its end, or has not.
    let code = node.ended(&id).await.exit_code;
    assert!([137, 255].contains(&code), "{code}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shims_go_on_without_their_launcher_and_another_one_is_started() {
    let Some(node) = node("launcher").await else { return };
    let sandbox = node.sandbox().await;
    let first =
        node.start(&sandbox, node.script("while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 5")).await;
    let shim = shim_of(node.runtime().container_status(&first).await.unwrap().pid);
    let words = |pid: u32| String::from_utf8(std::fs::read(format!("/proc/{pid}/cmdline")).unwrap()).unwrap();
    let shown = words(shim.cast_unsigned());
    let bundle = node.state().join("containers").join(&first);
    let wanted = format!("\0start\0{}\0", bundle.display());
    assert!(shown.contains(&wanted), "{shown:?} does not show {wanted:?}");
    let launcher = parent_of(shim.cast_unsigned()).unwrap();
    assert!(words(launcher).starts_with("kaji-shim-launcher\0"));
    let process = rustix::process::Pid::from_raw(launcher.cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    let second = node.start(&sandbox, node.script("exit 6")).await;
    assert_eq!(node.ended(&second).await.exit_code, 6);
    let touch = ["touch", "/tmp/go"].map(str::to_owned).to_vec();
    node.runtime().exec_sync(&first, touch, Duration::from_secs(20)).await.unwrap();
    assert_eq!(node.ended(&first).await.exit_code, 5);
    node.finish().await;
}

/// Whether the kernel shows exit codes to processes that are no parents.
fn tells_exit_codes() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 15)
}

/// The shim of a container: a child of the launcher, which is one of this process. A container may print before the process that built it has ended and the
/// shim, as the reaper, has become the parent.
pub fn shim_of(pid: u32) -> i32 {
    let started = std::time::Instant::now();
    loop {
        let parent = parent_of(pid).expect("the container runs");
        if parent_of(parent).and_then(parent_of) == Some(std::process::id()) {
            return parent.cast_signed();
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{pid} is not a child of a shim");
        std::thread::yield_now();
    }
}

/// `None` when the process has ended.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_keeps_nothing_open_that_its_starter_had() {
    let Some(node) = node("inherited").await else { return };
    let path = node.directory.path().join("held");
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    // Not closed on exec.
    let held = rustix::fs::open(&path, flags, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let sandbox = node.sandbox().await;
    let id = node.start(&sandbox, node.script("exec sleep 1000")).await;
    let pid = node.runtime().container_status(&id).await.unwrap().pid;
    for process in [shim_of(pid), pid.cast_signed()] {
        for entry in std::fs::read_dir(format!("/proc/{process}/fd")).unwrap() {
            let open = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
            assert_ne!(open, path, "of process {process}");
        }
    }
    drop(held);
    node.finish().await;
}

//! An exec that begins while its container ends.

use crate::common::node;
use kaji_containers::ContainerRuntime;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Whether a process was sent the signal; it may have ended.
fn send(pid: i32, signal: Signal) -> bool {
    kill_process(Pid::from_raw(pid).unwrap(), signal).is_ok()
}

/// Stops the process that is to enter the container's cgroup for an exec, and the one that has made it, before it has done so: the shim
/// makes the second, that makes the first. `None` when they were faster.
fn stop_builder(shim: i32, container: &str, known: &[i32]) -> Option<[i32; 2]> {
    let started = Instant::now();
    let in_container = |pid: i32| {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        cgroups.is_empty() || cgroups.contains(container)
    };
    let builder = loop {
        match children(shim).into_iter().find(|pid| !known.contains(pid)) {
            Some(pid) => break pid,
            None if started.elapsed() > Duration::from_secs(5) => return None,
            None => {}
        }
    };
    while send(builder, Signal::STOP) {
        if let [entering] = children(builder)[..] {
            send(entering, Signal::STOP);
            if !in_container(entering) {
                return Some([builder, entering]);
            }
            send(entering, Signal::CONT);
            send(builder, Signal::CONT);
            return None;
        }
        send(builder, Signal::CONT);
        // It may be what was built already, of which the shim is the parent, too.
        if in_container(builder) || started.elapsed() > Duration::from_secs(5) {
            return None;
        }
    }
    None
}

/// The shim of a container that runs.
fn shim_of(bundle: &Path) -> i32 {
    let run: serde_json::Value = serde_json::from_slice(&fs::read(bundle.join("run.json")).unwrap()).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", run["pid"])).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_that_begins_while_the_container_ends_leaves_nothing() {
    let own = std::process::id();
    if !Path::new(&format!("/proc/{own}/task/{own}/children")).exists() {
        return kaji_testing::skip::skipped(
            "late-exec",
            "the kernel does not list the children of processes",
        );
    }
    let Some(node) = node("late-exec").await else { return };
    let mut stopped = None;
    for _ in 0..100 {
        let sandbox = node.sandbox().await;
        let id = node.start(&sandbox, node.script("exec sleep 1000")).await;
        let shim = shim_of(&node.state().join("containers").join(&id));
        let known = children(shim);
        let (runtime, container) = (node.runtime().clone(), id.clone());
        let command = ["sleep", "1000"].map(str::to_owned).to_vec();
        let exec =
            tokio::spawn(
                async move { runtime.exec_sync(&container, command, Duration::from_secs(20)).await },
            );
        stopped = tokio::task::spawn_blocking(move || stop_builder(shim, &id, &known)).await.unwrap();
        let removed = node.runtime().remove_pod_sandbox(&sandbox);
        tokio::time::timeout(Duration::from_secs(20), removed).await.expect("it waits for nothing").unwrap();
        for pid in stopped.into_iter().flatten() {
            send(pid, Signal::CONT);
        }
        // Whether it ran is not the question.
        let _ = exec.await.unwrap();
        if stopped.is_some() {
            break;
        }
    }
    assert!(stopped.is_some(), "the builders were too fast");
    node.finish().await;
}

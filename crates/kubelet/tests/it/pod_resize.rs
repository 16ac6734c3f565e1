//! Resizes of a pod's own resources: cgroup, status, conditions, events.

use crate::fake::Fake;
use crate::lifecycle::{Run, pod, ready};
use kaji_containers::{ContainerStats, LinuxResources, MemoryUsage, PodSandboxStats};
use kaji_kubelet::pods::context::PodCgroups;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// Cgroups in memory: what they were set to, one line a write.
#[derive(Default)]
struct Cgroups(Mutex<Vec<String>>);

impl PodCgroups for Cgroups {
    fn ensure(&self, _: &str, limits: &LinuxResources) -> Result<(), String> {
        let memory = limits.memory_limit_bytes >> 20;
        let line = format!("shares {} quota {} memory {memory}Mi", limits.cpu_shares, limits.cpu_quota);
        self.0.lock().unwrap().push(line);
        Ok(())
    }
    fn remove(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
    fn pods(&self) -> Vec<(String, String)> {
        vec![]
    }
}

fn amounts(cpu: &str, memory: &str) -> Value {
    let both = json!({"cpu": cpu, "memory": memory});
    json!({"requests": both, "limits": both})
}

/// A pod that asks for this as a whole; the container `own` has a part of it.
fn asking(resources: &Value) -> Value {
    let mut pod = pod(json!({
        "resources": resources,
        "containers": [
            {"name": "inherits", "image": "i"},
            {"name": "own", "image": "i", "resources": amounts("50m", "32Mi")},
        ],
    }));
    pod["status"]["phase"] = "Running".into();
    pod
}

/// The pod uses this many bytes, all of them in the container that has the pod's limits.
fn using(usage: u64) -> PodSandboxStats {
    let memory = MemoryUsage { usage, ..MemoryUsage::default() };
    let container = ContainerStats { id: "c2".into(), memory, ..ContainerStats::default() };
    PodSandboxStats { pod_uid: "u".into(), memory, containers: vec![container], ..PodSandboxStats::default() }
}

fn started(resources: &Value) -> (Run, Arc<Cgroups>) {
    let mut fake = Fake::new();
    let cgroups = Arc::new(Cgroups::default());
    Arc::get_mut(&mut fake.cx).unwrap().cgroups = Some(cgroups.clone());
    (Run::start(fake, &asking(resources)), cgroups)
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"].as_array().and_then(|all| all.iter().find(|c| c["type"] == kind))
}

#[tokio::test]
async fn a_pod_s_own_resources_are_changed_in_place() {
    let before = amounts("200m", "256Mi");
    let (run, cgroups) = started(&before);
    let status = run.until("ready", ready).await;
    assert_eq!((&status["resources"], &status["allocatedResources"]), (&before, &before["requests"]));
    run.fake.runtime.state.lock().unwrap().calls.clear();
    cgroups.0.lock().unwrap().clear();

    let after = amounts("300m", "128Mi");
    run.fake.runtime.state.lock().unwrap().stats = vec![using(200 << 20)];
    run.change(&asking(&after));
    let fails = |s: &Value| condition(s, "PodResizeInProgress").is_some_and(|c| c["reason"] == "Error");
    let status = run.until("an error", fails).await;
    expect_test::expect![
        "cannot decrease memory limits: attempting to set pod memory limit (134217728) below current usage (209715200)"
    ]
    .assert_eq(condition(&status, "PodResizeInProgress").unwrap()["message"].as_str().unwrap());
    assert_eq!((&status["resources"], &status["allocatedResources"]), (&before, &after["requests"]));
    assert!(cgroups.0.lock().unwrap().is_empty(), "what cannot be had is not begun");

    run.fake.runtime.state.lock().unwrap().stats = vec![using(100 << 20)];
    let done = |s: &Value| s["resources"] == after && condition(s, "PodResizeInProgress").is_none();
    let status = run.until("resized", done).await;
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    // The cgroup has room for both sizes while the container that has the pod's limits is changed.
    expect_test::expect![[r#"
        shares 307 quota 30000 memory 256Mi
        shares 307 quota 30000 memory 128Mi"#]]
    .assert_eq(&cgroups.0.lock().unwrap().join("\n"));
    expect_test::expect![[r#"
        update memory 134217728 shares 0 quota 0
        update memory 0 shares 307 quota 30000"#]]
    .assert_eq(&run.calls().lines().filter(|l| l.starts_with("update")).collect::<Vec<_>>().join("\n"));
    let events = run.fake.api.events.lock().unwrap().clone();
    assert_eq!(events.iter().filter(|e| e.starts_with("ResizeCompleted")).count(), 1, "{events:?}");
}

#[tokio::test]
async fn a_pod_that_is_not_resized_tells_of_no_resize() {
    let (run, cgroups) = started(&amounts("200m", "256Mi"));
    run.until("ready", ready).await;
    expect_test::expect!["shares 204 quota 20000 memory 256Mi"]
        .assert_eq(&cgroups.0.lock().unwrap().join("\n"));
    let events = run.fake.api.events.lock().unwrap().clone();
    assert!(!events.iter().any(|e| e.starts_with("Resize")), "{events:?}");
}

//! A pod from its binding to its deletion.

use crate::fake::Fake;
use kaji_containers::{LinuxResources, RuntimeError};
use kaji_kubelet::pods::context::PodCgroups;
use kaji_kubelet::pods::core::Pod;
use kaji_kubelet::pods::worker::{Desired, Ending, ShownAs, Worker};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// One pod's worker.
pub struct Run {
    pub fake: Fake,
    desired: watch::Sender<Desired>,
    wake: Arc<Notify>,
    task: JoinHandle<()>,
}

pub fn pod(spec: Value) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 1},
        "spec": spec,
        "status": {"phase": "Pending"},
    })
}

fn parsed(pod: &Value) -> Arc<Pod> {
    Arc::new(serde_json::from_value(pod.clone()).unwrap())
}

impl Run {
    pub fn start(fake: Fake, pod: &Value) -> Run {
        Run::with(fake, pod, None)
    }

    /// A pod that the node does not take.
    pub fn rejected(fake: Fake, pod: &Value) -> Run {
        let (reason, message) = ("OutOfcpu".to_owned(), "Pod was rejected: m".to_owned());
        Run::with(fake, pod, Some(Ending { reason, message, ..Ending::default() }))
    }

    fn with(fake: Fake, pod: &Value, refused: Option<Ending>) -> Run {
        let (desired, changes) = watch::channel(Desired {
            pod: parsed(pod),
            gone: false,
            refused,
            shown_as: ShownAs::Itself,
            pending: None,
        });
        let wake = Arc::new(Notify::new());
        let task = tokio::spawn(Worker::new(fake.cx.clone(), changes, wake.clone()).run());
        Run { fake, desired, wake, task }
    }

    /// Waits until the API shows a status for which this holds.
    pub async fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for attempt in 1..4000 {
            if let Some(status) = &*self.fake.api.status.lock().unwrap() {
                last = serde_json::to_value(status).unwrap();
            }
            if holds(&last) {
                return last;
            }
            // Not at once: a status that the next round replaces is to be seen.
            if attempt % 16 == 0 {
                self.wake.notify_one();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{what}: {last:#} after {:?}", self.fake.runtime.state.lock().unwrap().calls);
    }

    pub fn calls(&self) -> String {
        self.fake.runtime.state.lock().unwrap().calls.join("\n")
    }

    /// The kubelet ends the pod.
    pub fn end(&self, ending: Ending) {
        self.desired.send_modify(|d| d.refused = Some(ending));
    }

    pub fn change(&self, pod: &Value) {
        self.desired.send_modify(|d| d.pod = parsed(pod));
    }
}

pub fn ready(status: &Value) -> bool {
    let conditions = status["conditions"].as_array();
    conditions.is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

pub fn waiting(status: &Value) -> &Value {
    &status["containerStatuses"][0]["state"]["waiting"]
}

#[tokio::test]
async fn a_runtime_class_names_the_handler_of_the_sandbox() {
    let containers = json!([{"name": "c", "image": "i", "imagePullPolicy": "IfNotPresent"}]);
    let of_class = |class: &str| pod(json!({"runtimeClassName": class, "containers": containers}));
    let run = Run::start(Fake::new(), &of_class("isolated"));
    run.until("ready", ready).await;
    assert_eq!(run.fake.runtime.state.lock().unwrap().sandboxes[0].info.runtime_handler, "kata");
    run.task.abort();

    let run = Run::start(Fake::new(), &of_class("unknown"));
    let failed = || {
        let expected = "FailedCreatePodSandBox: Failed to create pod sandbox: runtimeclass.node.k8s.io \"unknown\" not found";
        run.fake.api.events.lock().unwrap().iter().any(|event| event == expected)
    };
    run.until("an event", |_| failed()).await;
    assert!(run.fake.runtime.state.lock().unwrap().sandboxes.is_empty());
    run.task.abort();
}

#[tokio::test]
async fn a_pod_runs_is_ready_and_is_deleted() {
    let mut pod = pod(json!({
        "terminationGracePeriodSeconds": 7,
        "containers": [{"name": "c", "image": "i", "imagePullPolicy": "IfNotPresent", "env": [{"name": "A", "value": "1"}]}],
    }));
    let run = Run::start(Fake::new(), &pod);
    let status = run.until("ready", ready).await;
    expect_test::expect![[r#"
        Running 10.1.0.2 192.0.2.1 BestEffort kaji://c2
        PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True PodScheduled=True"#]]
    .assert_eq(&format!(
        "{} {} {} {} {}\n{}",
        status["phase"].as_str().unwrap(),
        status["podIP"].as_str().unwrap(),
        status["hostIP"].as_str().unwrap(),
        status["qosClass"].as_str().unwrap(),
        status["containerStatuses"][0]["containerID"].as_str().unwrap(),
        status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| format!("{}={}", c["type"].as_str().unwrap(), c["status"].as_str().unwrap()))
            .collect::<Vec<_>>()
            .join(" ")
    ));
    assert!(run.fake.dir.path().join("pods/n_p_u/c").is_dir(), "the log's directory");
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:07Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 3.into();
    run.change(&pod);
    let Run { fake, task, desired, .. } = run;
    tokio::time::timeout(Duration::from_secs(20), task).await.unwrap().unwrap();
    drop(desired);
    assert!(*fake.api.deleted.lock().unwrap());
    let state = fake.runtime.state.lock().unwrap();
    expect_test::expect![[r#"
        sandbox 0
        pull i:latest
        create c/0
        start 
        stop c 3
        remove-sandbox s1"#]]
    .assert_eq(&state.calls.join("\n"));
    assert!(state.containers.is_empty() && state.sandboxes.is_empty());
    assert!(!fake.dir.path().join("pods/n_p_u").exists() && !fake.dir.path().join("kubelet/pods/u").exists());
    let last = serde_json::to_value(&*fake.api.status.lock().unwrap()).unwrap();
    assert_eq!(last["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    assert_eq!(last["phase"], "Failed");
}

#[tokio::test]
async fn a_pod_with_a_user_namespace_has_ids_of_its_own() {
    let pod = pod(json!({"hostUsers": false, "containers": [{"name": "c", "image": "i"}]}));
    let fake = Fake::new();
    fake.runtime.state.lock().unwrap().user_namespaces = true;
    let run = Run::start(fake, &pod);
    run.until("ready", ready).await;
    let ids = std::fs::read_to_string(run.fake.dir.path().join("kubelet/pods/u/userns")).unwrap();
    assert!(ids.contains(r#"{"hostId":65536,"containerId":0,"length":65536}"#), "{ids}");
    let refused = Run::start(Fake::new(), &pod);
    let event = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    let started = std::time::Instant::now();
    while !refused.fake.api.events.lock().unwrap().iter().any(|e| e.contains(event)) {
        assert!(started.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_container_that_fails_is_restarted_with_growing_delays() {
    let run = Run::start(Fake::new(), &pod(json!({"containers": [{"name": "c", "image": "i"}]})));
    run.until("ready", ready).await;
    run.fake.runtime.exit("c", 1);
    let restarts = |n: i64| move |s: &Value| s["containerStatuses"][0]["restartCount"] == n && ready(s);
    run.until("restarted at once", restarts(1)).await;
    run.fake.runtime.exit("c", 2);
    let status = run.until("waits", |s| waiting(s)["reason"] == "CrashLoopBackOff").await;
    assert_eq!(waiting(&status)["message"], "back-off 10s restarting failed container=c pod=p_n(u)");
    assert_eq!(status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 2);
    assert_eq!(status["phase"], "Running");
    run.fake.clock.advance(jiff::SignedDuration::from_secs(11));
    run.until("restarted again", restarts(2)).await;
}

#[tokio::test]
async fn init_containers_run_in_order_and_sidecars_go_on() {
    let run = Run::start(
        Fake::new(),
        &pod(json!({
            "restartPolicy": "Never",
            "initContainers": [{"name": "a", "image": "i"}, {"name": "side", "image": "i", "restartPolicy": "Always"}],
            "containers": [{"name": "c", "image": "i"}],
        })),
    );
    let init = |s: &Value| s["initContainerStatuses"][0]["state"]["running"].is_object();
    let status = run.until("the first runs", init).await;
    assert_eq!(waiting(&status)["reason"], "PodInitializing");
    assert_eq!(run.fake.runtime.running(), ["a/0"]);
    run.fake.runtime.exit("a", 0);
    run.until("all run", ready).await;
    assert_eq!(run.fake.runtime.running(), ["side/0", "c/0"]);
    run.fake.runtime.exit("c", 0);
    let status = run.until("over", |s| s["phase"] == "Succeeded").await;
    assert!(run.fake.runtime.running().is_empty(), "{status}");
    let calls = run.calls();
    assert!(calls.ends_with("stop side 30"), "{calls}");
}

#[tokio::test]
async fn failures_of_pulls_and_configurations_are_shown() {
    let fake = Fake::new();
    let refused = RuntimeError::Internal("no such host".into());
    fake.runtime.state.lock().unwrap().failures.push(("pull", refused));
    let run = Run::start(fake, &pod(json!({"containers": [{"name": "c", "image": "i"}]})));
    let status = run.until("fails", |s| waiting(s)["reason"] == "ErrImagePull").await;
    assert_eq!(waiting(&status)["message"], "no such host");
    let status = run.until("waits", |s| waiting(s)["reason"] == "ImagePullBackOff").await;
    assert_eq!(waiting(&status)["message"], "Back-off pulling image \"i\": ErrImagePull: no such host");
    run.fake.clock.advance(jiff::SignedDuration::from_secs(11));
    run.until("runs", ready).await;

    let env = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k"}}}]);
    let run = Run::start(Fake::new(), &pod(json!({"containers": [{"name": "c", "image": "i", "env": env}]})));
    let status = run.until("fails", |s| waiting(s)["reason"] == "CreateContainerConfigError").await;
    assert_eq!(waiting(&status)["message"], "configmap \"none\" not found");
}

#[tokio::test]
async fn a_pod_becomes_unready_while_its_containers_end() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let probe =
        json!({"tcpSocket": {"host": "127.0.0.1", "port": port}, "periodSeconds": 1, "failureThreshold": 1});
    let mut pod = pod(json!({"containers": [{"name": "c", "image": "i", "readinessProbe": probe}]}));
    let run = Run::start(Fake::new(), &pod);
    let second = jiff::SignedDuration::from_secs(1);
    let tick = || run.fake.clock.advance(second);
    run.until("ready", |status| {
        tick();
        ready(status)
    })
    .await;
    let release = Arc::new(Notify::new());
    run.fake.runtime.state.lock().unwrap().stops_wait = Some(release.clone());
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:07Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 300.into();
    run.change(&pod);
    drop(server);
    let status = run.until("unready", |status| {
        tick();
        !ready(status)
    });
    assert_eq!(status.await["phase"], "Running");
    run.fake.runtime.state.lock().unwrap().stops_wait = None;
    release.notify_one();
    let Run { fake, task, desired, .. } = run;
    tokio::time::timeout(Duration::from_secs(20), task).await.unwrap().unwrap();
    drop(desired);
    assert!(*fake.api.deleted.lock().unwrap());
}

#[tokio::test]
async fn images_of_volumes_are_pulled_as_their_policies_say() {
    let of_policy = |policy: &str| {
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        pod(json!({
            "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}],
            "volumes": [
                {"name": "v", "image": {"reference": "data", "pullPolicy": policy}},
                {"name": "unused", "image": {"reference": "unused", "pullPolicy": "Always"}},
            ],
        }))
    };
    let fake = Fake::new();
    fake.runtime.state.lock().unwrap().images = vec!["data:latest".to_owned()];
    let refused = RuntimeError::Internal("no such host".into());
    fake.runtime.state.lock().unwrap().failures.push(("pull", refused));
    let run = Run::start(fake, &of_policy("Always"));
    let status = run.until("fails", |s| waiting(s)["reason"] == "ErrImagePull").await;
    assert_eq!(waiting(&status)["message"], "no such host");
    run.until("waits", |s| waiting(s)["reason"] == "ImagePullBackOff").await;
    let events = run.fake.api.events.lock().unwrap().join("\n");
    assert!(events.contains("Failed: Error: ErrImagePull"), "{events}");
    run.fake.clock.advance(jiff::SignedDuration::from_secs(11));
    run.until("runs", ready).await;
    expect_test::expect![[r#"
        sandbox 0
        pull data:latest
        pull data:latest
        pull i:latest
        create c/0
        start "#]]
    .assert_eq(&run.calls());
    let mounts = run.fake.runtime.state.lock().unwrap().containers[0].mounts.clone();
    let of_volume = mounts.iter().find_map(|mount| mount.image.as_ref()).unwrap();
    assert_eq!(of_volume.image, "data:latest");

    let run = Run::start(Fake::new(), &of_policy("Never"));
    let status = run.until("fails", |s| waiting(s)["reason"] == "ErrImageNeverPull").await;
    let message = "Container image \"data\" is not present with pull policy of Never";
    assert_eq!(waiting(&status)["message"], message);
}

#[tokio::test]
async fn a_restart_of_the_kubelet_touches_no_running_container() {
    let spec = pod(json!({"containers": [{"name": "c", "image": "i"}]}));
    let run = Run::start(Fake::new(), &spec);
    run.until("ready", ready).await;
    let calls = run.calls();
    let Run { fake, desired, task, .. } = run;
    task.abort();
    drop(desired);
    *fake.api.status.lock().unwrap() = None;
    let run = Run::start(fake, &spec);
    run.until("ready again", ready).await;
    assert_eq!(run.calls(), calls);
    assert_eq!(run.fake.runtime.running(), ["c/0"]);
}

#[tokio::test]
async fn a_container_that_was_ready_stays_ready_over_a_restart_of_the_kubelet() {
    let probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 3600});
    let startup = json!({"exec": {"command": ["begun"]}, "periodSeconds": 1});
    let mut object = pod(json!({
        "containers": [{"name": "c", "image": "i", "readinessProbe": probe, "startupProbe": startup}],
    }));
    let run = Run::start(Fake::new(), &object);
    let status = run.until("ready", ready).await;
    let Run { fake, desired, task, .. } = run;
    task.abort();
    drop(desired);
    *fake.api.status.lock().unwrap() = None;
    fake.runtime.state.lock().unwrap().calls.clear();
    object["status"] = status;
    object["spec"]["containers"][0]["readinessProbe"]["initialDelaySeconds"] = 3600.into();
    // Any status that is written would say that the container is not ready.
    let seen = fake.api.clone();
    let run = Run::start(fake, &object);
    for _ in 0..50 {
        run.wake.notify_one();
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(seen.status.lock().unwrap().is_none(), "nothing has changed");
    }
    assert!(!run.calls().contains("begun"), "{}", run.calls());
}

#[tokio::test]
async fn an_evicted_pod_fails_after_its_containers_have_ended() {
    let run = Run::start(Fake::new(), &pod(json!({"containers": [{"name": "c", "image": "i"}]})));
    run.until("ready", ready).await;
    let (reason, message) = ("Evicted".to_owned(), "The node was low on resource: memory. ".to_owned());
    run.desired.send_modify(|d| {
        d.refused = Some(Ending { disruption: Some(message.clone()), reason, message, grace: Some(1) })
    });
    let status = run.until("failed", |s| s["phase"] == "Failed").await;
    assert_eq!(
        (&status["reason"], &status["message"]),
        (&json!("Evicted"), &json!("The node was low on resource: memory. "))
    );
    let conditions = status["conditions"].as_array().unwrap();
    let disruption = conditions.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
    assert_eq!(disruption["reason"], "TerminationByKubelet");
    assert_eq!(disruption["message"], status["message"]);
    // The runtime stops a container no faster than in two seconds, whatever grace is imposed.
    assert!(run.calls().ends_with("stop c 2"), "{}", run.calls());
}

#[tokio::test]
async fn a_static_pod_s_status_is_written_to_each_of_its_mirrors() {
    let run = Run::start(Fake::new(), &pod(json!({"containers": [{"name": "c", "image": "i"}]})));
    run.desired.send_modify(|d| d.shown_as = ShownAs::Nothing);
    run.until("runs", |_| run.fake.runtime.running() == ["c/0"]).await;
    for mirror in ["m1", "m2"] {
        *run.fake.api.status.lock().unwrap() = None;
        run.desired.send_modify(|d| d.shown_as = ShownAs::Mirror(mirror.into()));
        run.until("ready", ready).await;
        assert_eq!(*run.fake.api.uid.lock().unwrap(), mirror);
    }
    run.desired.send_modify(|d| d.gone = true);
    tokio::time::timeout(Duration::from_secs(20), run.task).await.unwrap().unwrap();
    assert!(run.fake.runtime.running().is_empty());
    assert!(!*run.fake.api.deleted.lock().unwrap());
}

/// The cgroup of the pod `u`, which the kernel does not remove this many times.
struct BusyCgroup(AtomicU32);

impl PodCgroups for BusyCgroup {
    fn ensure(&self, _: &str, _: &LinuxResources) -> Result<(), String> {
        Ok(())
    }
    fn remove(&self, _: &str) -> Result<(), String> {
        let busy = self.0.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if busy { Err("resource busy".to_owned()) } else { Ok(()) }
    }
    fn pods(&self) -> Vec<(String, String)> {
        vec![("u".to_owned(), "/kubepods/besteffort/podu".to_owned())]
    }
}

#[tokio::test]
async fn a_pod_stays_until_its_cgroup_is_removed() {
    let mut pod = pod(json!({"containers": [{"name": "c", "image": "i"}]}));
    let cgroups = Arc::new(BusyCgroup(AtomicU32::new(2)));
    let mut fake = Fake::new();
    Arc::get_mut(&mut fake.cx).unwrap().cgroups = Some(cgroups.clone());
    let run = Run::start(fake, &pod);
    run.until("ready", ready).await;
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:07Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 3.into();
    run.change(&pod);
    run.until("the first attempt", |_| cgroups.0.load(SeqCst) < 2).await;
    assert!(!*run.fake.api.deleted.lock().unwrap());
    let Run { fake, task, desired, .. } = run;
    tokio::time::timeout(Duration::from_secs(20), task).await.unwrap().unwrap();
    drop(desired);
    assert_eq!(cgroups.0.load(SeqCst), 0);
    assert!(*fake.api.deleted.lock().unwrap());
}

#[tokio::test]
async fn resources_change_in_place_or_by_a_restart() {
    let resources = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}});
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let spec = |a: Value, b: Value| {
        pod(json!({"containers": [
            {"name": "a", "image": "i", "resources": a},
            {"name": "b", "image": "i", "resources": b, "resizePolicy": policy},
        ]}))
    };
    let before = resources("100m", "64Mi");
    let run = Run::start(Fake::new(), &spec(before.clone(), before.clone()));
    run.until("ready", ready).await;
    run.fake.runtime.state.lock().unwrap().calls.clear();
    // More memory and fewer processors: in place for one, by a restart for the other.
    let after = resources("50m", "128Mi");
    run.change(&spec(after.clone(), after.clone()));
    let shows = |s: &Value| {
        let all = s["containerStatuses"].as_array().unwrap();
        all.iter().all(|c| c["resources"] == after && c["allocatedResources"] == after["requests"])
            && s["conditions"].as_array().unwrap().iter().all(|c| c["type"] != "PodResizeInProgress")
    };
    let status = run.until("resized", |s| shows(s) && ready(s)).await;
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(status["containerStatuses"][1]["restartCount"], 1);
    expect_test::expect![[r#"
        update memory 134217728 shares 0 quota 0
        update memory 0 shares 51 quota -1
        stop b 30
        create b/1
        start "#]]
    .assert_eq(&run.calls());
    let events = run.fake.api.events.lock().unwrap().clone();
    assert!(events.iter().any(|e| e == "Killing: Container b resize requires restart"), "{events:?}");

    // A change that the runtime refuses is shown and tried again.
    let refused = RuntimeError::Internal("no".into());
    run.fake.runtime.state.lock().unwrap().failures.push(("update", refused));
    run.change(&spec(resources("60m", "128Mi"), after.clone()));
    let error = |s: &Value| {
        s["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["type"] == "PodResizeInProgress" && c["reason"] == "Error" && c["message"] == "no")
    };
    let status = run.until("an error", error).await;
    assert_eq!(status["containerStatuses"][0]["resources"]["requests"]["cpu"], "50m");
    assert_eq!(status["containerStatuses"][0]["allocatedResources"]["cpu"], "60m");
    run.until("completed", |s| s["containerStatuses"][0]["resources"]["requests"]["cpu"] == "60m").await;
    let events = run.fake.api.events.lock().unwrap().clone();
    assert!(events.iter().any(|e| e.starts_with("ResizeCompleted: Pod resize completed: {")), "{events:?}");
}

#[tokio::test]
async fn volumes_of_unknown_kinds_and_missing_objects_keep_a_pod_waiting() {
    let volumes = json!([{"name": "v", "configMap": {"name": "none"}}]);
    let container = json!([{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    let run = Run::start(Fake::new(), &pod(json!({"volumes": volumes, "containers": container})));
    let status = run.until("waits", |s| waiting(s)["reason"] == "ContainerCreating").await;
    assert_eq!(status["phase"], "Pending");
    let mounted = || {
        run.fake.api.events.lock().unwrap().iter().any(|e| {
            e == "FailedMount: MountVolume.SetUp failed for volume \"v\" : configmap \"none\" not found"
        })
    };
    run.until("the event", |_| mounted()).await;
    assert_eq!(run.calls(), "");
}

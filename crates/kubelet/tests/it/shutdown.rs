//! Pods end by their priorities before the machine shuts down.

use crate::fake::Fake;
use crate::lifecycle::{Run, pod as pod_of, ready};
use crate::logind::{FakeLogind, LOGIND};
use kaji_kubelet::node::shutdown::logind::LogindPaths;
use kaji_kubelet::node::shutdown::plan::GracePeriod;
use kaji_kubelet::node::shutdown::{ShutdownManager, Termination};
use kaji_kubelet::pods::core::Pod;
use kaji_kubelet::pods::worker::Ending;
use kaji_kubelet::server::NodePods;
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};

#[derive(Clone, Default)]
struct Pods(Arc<Mutex<Vec<Arc<Pod>>>>);

impl NodePods for Pods {
    fn all(&self) -> Vec<Arc<Pod>> {
        self.0.lock().unwrap().clone()
    }
}

impl Pods {
    fn set(&self, uid: &str, priority: i32, phase: &str) {
        let pod = json!({
            "metadata": {"name": uid, "namespace": "n", "uid": uid},
            "spec": {"priority": priority, "terminationGracePeriodSeconds": 30, "containers": []},
            "status": {"phase": phase},
        });
        let mut all = self.0.lock().unwrap();
        all.retain(|known| known.metadata.uid.as_deref() != Some(uid));
        all.push(Arc::new(serde_json::from_value(pod).unwrap()));
    }
}

const CRITICAL: i32 = 2_000_000_000;

fn manager(
    fake: &Fake,
    pods: &Pods,
    logind: LogindPaths,
    seconds: [u64; 2],
) -> (ShutdownManager, mpsc::Receiver<Termination>) {
    let (terminations, chosen) = mpsc::channel(8);
    let [regular, critical] = seconds;
    let manager = ShutdownManager {
        cx: fake.cx.clone(),
        periods: vec![
            GracePeriod { priority: 0, seconds: regular },
            GracePeriod { priority: CRITICAL, seconds: critical },
        ],
        logind,
        pods: Arc::new(pods.clone()),
        statics: watch::channel(Arc::new(vec![])).1,
        terminations,
    };
    (manager, chosen)
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.unwrap()
}

async fn until(holds: impl Fn() -> bool) {
    within(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

fn shown(termination: &Termination) -> String {
    let ending = &termination.ending;
    let (uid, grace) = (&termination.uid, ending.grace.unwrap());
    assert_eq!(ending.disruption.as_ref(), Some(&ending.message));
    format!("{uid} {} {grace} {}", ending.reason, ending.message)
}

#[tokio::test]
async fn critical_pods_end_last_and_then_the_lock_is_released() {
    let (fake, pods) = (Fake::new(), Pods::default());
    let logind = FakeLogind::start(fake.dir.path(), 5);
    let (manager, mut chosen) = manager(&fake, &pods, logind.paths.clone(), [20, 15]);
    pods.set("over", 0, "Succeeded");
    pods.set("critical", CRITICAL, "Running");
    pods.set("regular", 0, "Running");
    let running = tokio::spawn(manager.run());
    until(|| logind.calls().last().is_some_and(|call| call.starts_with("AddMatch"))).await;
    assert_eq!((logind.held(), fake.cx.shutdown.check()), (1, Ok(())));
    // Any client of the bus can send a signal.
    logind.prepare(":1.666", true);
    logind.prepare(LOGIND, true);
    let mut ends = vec![shown(&within(chosen.recv()).await.unwrap())];
    assert!(chosen.try_recv().is_err() && logind.held() == 1);
    let refusal = fake.cx.shutdown.check().unwrap_err();
    pods.set("regular", 0, "Failed");
    ends.push(shown(&within(chosen.recv()).await.unwrap()));
    assert_eq!(logind.held(), 1);
    pods.set("critical", CRITICAL, "Failed");
    until(|| logind.held() == 0).await;
    assert!(fake.cx.shutdown.began());
    // It is given up.
    logind.prepare(LOGIND, false);
    until(|| !fake.cx.shutdown.began() && logind.held() == 1).await;
    ends.push(format!("{}: {}", refusal.reason, refusal.message));
    ends.extend(fake.api.events.lock().unwrap().clone());
    ends.extend(logind.calls());
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    ends.push(read(&logind.paths.settings.join("99-kubelet.conf")));
    ends.push(read(&fake.cx.config.root_dir.join("graceful_node_shutdown_state")));
    expect_test::expect![[r#"
        regular Terminated 20 Pod was terminated in response to imminent node shutdown.
        critical Terminated 15 Pod was terminated in response to imminent node shutdown.
        NodeShutdown: Pod was rejected as the node is shutting down.
        Shutdown: Shutdown manager detected shutdown event
        Shutdown: Shutdown manager detected shutdown cancellation
        Hello
        Get org.freedesktop.login1.Manager InhibitDelayMaxUSec
        KillUnit systemd-logind.service all
        Get org.freedesktop.login1.Manager InhibitDelayMaxUSec
        Inhibit shutdown kubelet Kubelet needs time to handle node shutdown delay
        AddMatch type='signal',sender='org.freedesktop.login1',path='/org/freedesktop/login1',interface='org.freedesktop.login1.Manager',member='PrepareForShutdown'
        GetNameOwner org.freedesktop.login1
        GetNameOwner org.freedesktop.login1
        GetNameOwner org.freedesktop.login1
        Inhibit shutdown kubelet Kubelet needs time to handle node shutdown delay
        # Kubelet logind override
        [Login]
        InhibitDelayMaxSec=35

        {"startTime":"2026-01-01T00:00:00Z","endTime":"2026-01-01T00:00:00Z"}"#]].assert_eq(&ends.join("\n"));
    running.abort();
}

#[tokio::test]
async fn pods_that_do_not_end_do_not_hold_up_the_shutdown_for_longer_than_their_period() {
    let (fake, pods) = (Fake::new(), Pods::default());
    let logind = FakeLogind::start(fake.dir.path(), 60);
    let (manager, mut chosen) = manager(&fake, &pods, logind.paths.clone(), [1, 0]);
    pods.set("regular", 0, "Running");
    let running = tokio::spawn(manager.run());
    until(|| logind.calls().last().is_some_and(|call| call.starts_with("AddMatch"))).await;
    // Logind waits long enough already.
    assert!(!logind.paths.settings.exists());
    logind.prepare(LOGIND, true);
    assert_eq!(within(chosen.recv()).await.unwrap().ending.grace, Some(1));
    until(|| logind.held() == 0).await;
    running.abort();
}

#[tokio::test]
async fn a_node_without_logind_goes_on() {
    let (fake, pods) = (Fake::new(), Pods::default());
    let absent = LogindPaths { bus: fake.dir.path().join("absent"), settings: fake.dir.path().join("s") };
    within(manager(&fake, &pods, absent, [1, 1]).0.run()).await;
    // A server that speaks no D-Bus, and one that does until it sends garbage.
    for answers in [
        vec!["HTTP/1.1 400 Bad Request\r\n"],
        vec!["OK 1\r\n", "AGREE_UNIX_FD\r\n", "garbage of some length"],
    ] {
        let socket = fake.dir.path().join(format!("bus-{}", answers.len()));
        let listener = UnixListener::bind(&socket).unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in answers {
                let read = stream.read(&mut [0; 512]).await.unwrap();
                assert!(read > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let paths = LogindPaths { bus: socket, settings: fake.dir.path().join("s") };
        within(manager(&fake, &pods, paths, [1, 1]).0.run()).await;
        within(server).await.unwrap();
    }
    assert_eq!(fake.cx.shutdown.check(), Ok(()));
}

#[tokio::test]
async fn a_pod_that_ends_already_gets_no_more_time_than_the_shutdown_leaves() {
    let mut pod = pod_of(json!({
        "terminationGracePeriodSeconds": 3600,
        "containers": [{"name": "c", "image": "i", "imagePullPolicy": "IfNotPresent"}],
    }));
    let run = Run::start(Fake::new(), &pod);
    run.until("ready", ready).await;
    let never = Arc::new(tokio::sync::Notify::new());
    run.fake.runtime.state.lock().unwrap().stops_wait = Some(never);
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 3600.into();
    run.change(&pod);
    until(|| run.fake.api.events.lock().unwrap().iter().any(|event| event.starts_with("Killing"))).await;
    run.fake.runtime.state.lock().unwrap().stops_wait = None;
    let (reason, message) = ("Terminated".to_owned(), "m".to_owned());
    run.end(Ending { reason, message, grace: Some(10), disruption: Some("m".to_owned()) });
    let status = run.until("failed", |status| status["phase"] == "Failed").await;
    // The stop that was to take an hour is given up.
    let target = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "DisruptionTarget");
    let target = target.map(|c| format!("{} {}", c["reason"], c["message"]));
    expect_test::expect![[r#""Terminated" "m" Some("\"TerminationByKubelet\" \"m\"")"#]]
        .assert_eq(&format!("{} {} {target:?}", status["reason"], status["message"]));
    assert!(run.calls().contains("stop c 10"), "{}", run.calls());
}

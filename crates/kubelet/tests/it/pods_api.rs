//! The pods API: what programs on a node see of its pods.

use crate::fake::Fake;
use kaji_grpc::Client;
use kaji_kubelet::plugins::pods_api::messages::{self as m, EventType};
use kaji_kubelet::plugins::pods_api::{self, LocalPods};
use kaji_kubelet::pods::core::{Pod, PodStatus};
use kaji_schema::{protobuf, types};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

const SOON: Duration = Duration::from_secs(20);

fn pod(name: &str) -> Pod {
    let status = json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "reason": "", "message": ""}],
    });
    let pod = json!({
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]},
        "status": status,
    });
    serde_json::from_value(pod).unwrap()
}

fn status(phase: &str) -> PodStatus {
    PodStatus { phase: Some(phase.into()), ..PodStatus::default() }
}

/// Name, phase and readiness, and the first port.
fn shown(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return String::new();
    }
    let pod = protobuf::decode(&types::for_gvk("", "v1", "Pod").unwrap(), bytes).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let condition = &pod["status"]["conditions"][0];
    format!(
        "{} {} {} {}",
        text(&pod["metadata"]["name"]),
        text(&pod["status"]["phase"]),
        ["status", "reason"].map(|field| text(&condition[field])).join(" "),
        pod["spec"]["containers"][0]["ports"][0]["containerPort"],
    )
}

/// A server of pods `b` and `a`, which knows them once `known` is set.
fn served(fake: &Fake) -> (Client, Arc<AtomicBool>, JoinHandle<()>) {
    let known = Arc::new(AtomicBool::new(false));
    let (pods, complete) = ([pod("b"), pod("a")].map(Arc::new), known.clone());
    let local: LocalPods = Arc::new(move || complete.load(Ordering::Relaxed).then(|| pods.to_vec()));
    let task = tokio::spawn(pods_api::run(fake.cx.clone(), local));
    let client = Client::new(fake.cx.config.root_dir.join(pods_api::SOCKET)).waiting_for_peer();
    (client, known, task)
}

#[tokio::test]
async fn programs_on_the_node_see_its_pods_with_the_statuses_that_the_kubelet_knows() {
    let fake = Fake::new();
    let (client, known, task) = served(&fake);
    let list = || client.unary::<_, m::ListResponse>(m::LIST, m::Empty {}, SOON);
    let get =
        |uid: &str| client.unary::<_, m::GetResponse>(m::GET, m::GetRequest { pod_uid: uid.into() }, SOON);
    let mut lines = vec![list().await.unwrap_err().to_string()];
    known.store(true, Ordering::Relaxed);
    lines.extend(list().await.unwrap().pods.iter().map(|pod| shown(pod)));
    fake.cx.pod_feed.update(&pod("a"), &status("Succeeded"));
    lines.push(shown(&get("uid-a").await.unwrap().pod));
    lines.push(get("uid-c").await.unwrap_err().to_string());
    fake.cx.pod_feed.forget("uid-a");
    lines.push(shown(&get("uid-a").await.unwrap().pod));
    expect_test::expect![[r"
        rpc error: code = FailedPrecondition desc = Kubelet is initializing
        a Running False ContainersNotReady 80
        b Running False ContainersNotReady 80
        a Succeeded - - 80
        rpc error: code = NotFound desc = pod with UID uid-c not found
        a Running False ContainersNotReady 80"]]
    .assert_eq(&lines.join("\n"));
    task.abort();
}

#[tokio::test]
async fn calls_are_limited() {
    let fake = Fake::new();
    let (client, known, task) = served(&fake);
    known.store(true, Ordering::Relaxed);
    let list = || client.unary::<_, m::ListResponse>(m::LIST, m::Empty {}, SOON);
    for _ in 0..10 {
        list().await.unwrap();
    }
    let refused = list().await.unwrap_err();
    assert_eq!(
        (refused.code_name(), refused.message.as_str()),
        ("ResourceExhausted", "rejected by rate limit")
    );
    fake.clock.advance(jiff::SignedDuration::from_millis(10));
    list().await.unwrap();
    task.abort();
}

#[tokio::test]
async fn a_watch_has_every_pod_and_then_the_changes() {
    let fake = Fake::new();
    let (client, known, task) = served(&fake);
    known.store(true, Ordering::Relaxed);
    let mut events = client.server_streaming::<_, m::WatchEvent>(m::WATCH, m::Empty {}, SOON).await.unwrap();
    let mut lines = vec![];
    let mut next = async |count: usize, lines: &mut Vec<String>| {
        for _ in 0..count {
            let event = events.next().await.unwrap().unwrap();
            let kind = EventType::try_from(event.kind).unwrap();
            lines.push(format!("{kind:?} {}", shown(&event.pod)).trim_end().to_owned());
        }
    };
    next(3, &mut lines).await;
    let feed = &fake.cx.pod_feed;
    feed.update(&pod("c"), &status("Pending"));
    feed.update(&pod("c"), &status("Pending"));
    feed.update(&pod("c"), &status("Running"));
    feed.finish(&pod("c"));
    next(3, &mut lines).await;
    expect_test::expect![[r"
        Added a Running False ContainersNotReady 80
        Added b Running False ContainersNotReady 80
        InitialSyncComplete
        Added c Pending - - 80
        Modified c Running - - 80
        Deleted c - - - null"]]
    .assert_eq(&lines.join("\n"));
    task.abort();
}

#[tokio::test]
async fn a_watch_that_is_too_slow_ends() {
    let fake = Fake::new();
    let mut changes = fake.cx.pod_feed.watch();
    for count in 0..1000 {
        fake.cx.pod_feed.update(&pod("a"), &status(&count.to_string()));
    }
    assert!(changes.recv().await.is_err());
}

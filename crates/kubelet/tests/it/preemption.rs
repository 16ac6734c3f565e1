//! A whole node with a runtime in memory: a pod ends for a critical one that lacks what it has.

use crate::fake::Fake;
use futures_util::{StreamExt, future::BoxFuture, stream};
use kaji_kubelet::credential_providers::CredentialProviders;
use kaji_kubelet::node::{self, Housekeeping, Machine, NodeParts};
use kaji_kubelet::resource_managers::ResourceManagers;
use kaji_meta::random::SeededRandom;
use kaji_runtime::feed::{Listed, ObjectEvent, ObjectEvents, ObjectList};
use kaji_runtime::{Client, Collection, Error, Informers, ObjectFeed, Shared};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

const PODS: &str = "/api/v1/pods";
const NODES: &str = "/api/v1/nodes";

/// A cluster of one node, with a pod that others follow.
struct Cluster {
    node: Value,
    pod: Value,
    changes: Mutex<Option<mpsc::UnboundedReceiver<Value>>>,
}

impl ObjectFeed for Cluster {
    fn list<'a>(&'a self, _: &'a str, of: &'a Collection) -> BoxFuture<'a, Result<ObjectList, Error>> {
        let object = match of.path.as_str() {
            NODES => Some(&self.node),
            PODS => Some(&self.pod),
            _ => None,
        };
        let object = object.map(|object| Ok(Listed::Object(object.to_string().into())));
        let metadata = Ok(Listed::Metadata(r#"{"resourceVersion":"5"}"#.into()));
        let parts: ObjectList = stream::iter(object.into_iter().chain([metadata])).boxed();
        Box::pin(async move { Ok(parts) })
    }

    fn watch<'a>(
        &'a self,
        _: &'a str,
        of: &'a Collection,
        _: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
        let changes = if of.path == PODS { self.changes.lock().unwrap().take() } else { None };
        let events: ObjectEvents = match changes {
            None => stream::pending().boxed(),
            Some(changes) => stream::unfold(changes, |mut changes| async move {
                let pod = changes.recv().await?;
                Some((Ok(vec![ObjectEvent::Changed(pod.to_string().into())]), changes))
            })
            .boxed(),
        };
        Box::pin(async move { Ok(events) })
    }
}

type Request = (String, Value);

/// Takes all writes of statuses and events, and has nothing else.
fn client(requests: mpsc::UnboundedSender<Request>) -> Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let requests = requests.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
            let path = head.uri.path().to_owned();
            let taken = path.ends_with("/status") || path.ends_with("/events");
            // At the end of the test nothing receives them.
            let _ = requests.send((path, serde_json::from_slice(&body).unwrap_or_default()));
            let absent = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "absent"});
            let (code, answer) = if taken { (200, json!({})) } else { (404, absent) };
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(kube::Client::new(service, "default"), "kubelet")
}

/// What the node has asked the API server for.
struct Seen {
    requests: mpsc::UnboundedReceiver<Request>,
    all: Vec<Request>,
}

impl Seen {
    /// The first request for which this holds, as soon as there is one.
    async fn first(&mut self, holds: impl Fn(&str, &Value) -> bool) -> Value {
        let found = async {
            loop {
                if let Some((_, body)) = self.all.iter().find(|(path, body)| holds(path, body)) {
                    return body.clone();
                }
                self.all.push(self.requests.recv().await.unwrap());
            }
        };
        tokio::time::timeout(Duration::from_secs(20), found).await.unwrap()
    }
}

async fn until(fake: &Fake, running: &[&str]) {
    let runs = async {
        while fake.runtime.running() != running {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), runs).await.unwrap();
}

/// A pod with a container of the same name.
fn pod(name: &str, priority: i32, cpu: &str, version: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": version},
        "spec": {
            "nodeName": "node-1", "priority": priority,
            "containers": [{"name": name, "image": "i", "resources": {"requests": {"cpu": cpu}}}],
        },
        "status": {"phase": "Pending"},
    })
}

#[tokio::test]
async fn a_pod_ends_for_a_critical_one_that_lacks_what_it_has() {
    let node = json!({
        "metadata": {"name": "node-1", "uid": "node-uid", "resourceVersion": "1"},
        "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "110"}},
    });
    let mut victim = pod("victim", 0, "1500m", "2");
    let fake = Fake::new();
    let mut housekeeping = Housekeeping::default();
    // The machine of the test may be short of anything.
    housekeeping.eviction.thresholds.clear();
    let parts = NodeParts {
        config: fake.cx.config.clone(),
        machine: Machine { processors: 2, memory: 1 << 30, pods: 110, ..Machine::default() },
        runtime: fake.runtime.clone(),
        images: fake.runtime.clone(),
        credentials: CredentialProviders::none(fake.clock.clone()),
        managers: ResourceManagers::none(),
        mounter: fake.mounter.clone(),
        cgroups: None,
        server: None,
        housekeeping,
        manifests: None,
        shutdown: vec![],
    };
    let (change, changes) = mpsc::unbounded_channel();
    let (sent, requests) = mpsc::unbounded_channel();
    let cluster = Cluster { node, pod: victim.clone(), changes: Mutex::new(Some(changes)) };
    let client = client(sent).with_feed(Arc::new(cluster));
    let shared = Shared {
        client: client.clone(),
        clock: fake.clock.clone(),
        random: Arc::new(SeededRandom::new(1)),
        decisions: None,
    };
    let (_running, stop) = watch::channel(false);
    let task = tokio::spawn(node::run(parts, Informers::new(client), shared, stop));
    let mut seen = Seen { requests, all: vec![] };
    until(&fake, &["victim/0"]).await;
    change.send(pod("critical", 2_000_000_000, "1", "6")).unwrap();
    let event = seen.first(|path, body| path.ends_with("/events") && body["reason"] == "Preempting").await;
    let failed =
        seen.first(|path, body| path.ends_with("/pods/victim/status") && body["status"]["phase"] == "Failed");
    let status = failed.await["status"].clone();
    let conditions = status["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
    expect_test::expect![[r#"
        "Warning" "victim" "Preempted in order to admit critical pod"
        "Preempting" "Preempted in order to admit critical pod"
        "TerminationByKubelet" "Pod was preempted by Kubelet to accommodate a critical pod.""#]]
    .assert_eq(&format!(
        "{} {} {}\n{} {}\n{} {}",
        event["type"],
        event["involvedObject"]["name"],
        event["message"],
        status["reason"],
        status["message"],
        target["reason"],
        target["message"]
    ));
    // It waits until the API shows that the other one is over.
    assert!(fake.runtime.running().is_empty());
    victim["metadata"]["resourceVersion"] = "7".into();
    victim["status"] = json!({"phase": "Failed", "startTime": "2026-01-01T00:00:00Z"});
    change.send(victim).unwrap();
    until(&fake, &["critical/0"]).await;
    task.abort();
}

//! A whole node with a runtime in memory, as tests start it.

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
use tokio::task::JoinHandle;

const PODS: &str = "/api/v1/pods";
const NODES: &str = "/api/v1/nodes";

/// A cluster of one node, with a pod that others may follow.
struct Cluster {
    node: Value,
    pod: Value,
    changes: Mutex<Option<mpsc::UnboundedReceiver<Value>>>,
    /// Whether the kubelet knows the node: it watches for changes of it.
    known: watch::Sender<bool>,
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
        Box::pin(async move {
            if of.path == PODS {
                self.known.subscribe().wait_for(|known| *known).await.unwrap();
            }
            Ok(parts)
        })
    }

    fn watch<'a>(
        &'a self,
        _: &'a str,
        of: &'a Collection,
        _: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
        if of.path == NODES {
            self.known.send_replace(true);
        }
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
            let _ = requests.send((path.clone(), serde_json::from_slice(&body).unwrap_or_default()));
            let failure = |code: u16, reason: &str| {
                let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"});
                (code, status)
            };
            let (code, answer) = match path.as_str() {
                _ if taken => (200, json!({})),
                NODES => failure(403, "Forbidden"),
                _ => failure(404, "NotFound"),
            };
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(kube::Client::new(service, "default"), "kubelet")
}

/// What the node has asked the API server for.
pub struct Seen {
    requests: mpsc::UnboundedReceiver<Request>,
    all: Vec<Request>,
}

impl Seen {
    /// The first request for which this holds, as soon as there is one.
    pub async fn first(&mut self, holds: impl Fn(&str, &Value) -> bool) -> Value {
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

/// The running node.
pub struct Node {
    /// What it has asked for.
    pub seen: Seen,
    /// Pods that come, or change.
    pub pods: mpsc::UnboundedSender<Value>,
    pub task: JoinHandle<()>,
    /// The node stops without it.
    pub running: watch::Sender<bool>,
}

/// Starts a node of two processors, `node-1`, in a cluster that has this pod.
pub fn start(fake: &Fake, pod: Value) -> Node {
    let node = json!({
        "metadata": {"name": "node-1", "uid": "node-uid", "resourceVersion": "1"},
        "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "110"}},
    });
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
    let (pods, changes) = mpsc::unbounded_channel();
    let (sent, requests) = mpsc::unbounded_channel();
    let cluster = Cluster { node, pod, changes: Mutex::new(Some(changes)), known: watch::Sender::new(false) };
    let client = client(sent).with_feed(Arc::new(cluster));
    let shared = Shared {
        client: client.clone(),
        clock: fake.clock.clone(),
        random: Arc::new(SeededRandom::new(1)),
        decisions: None,
    };
    let (running, stop) = watch::channel(false);
    let task = tokio::spawn(node::run(parts, Informers::new(client), shared, stop));
    Node { seen: Seen { requests, all: vec![] }, pods, task, running }
}

#[tokio::test]
async fn a_node_is_registered_with_facts_of_its_machine() {
    let fake = Fake::new();
    let of_another = json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"nodeName": "node-2", "containers": [{"name": "c", "image": "i"}]},
    });
    let mut node = start(&fake, of_another);
    let registered = node.seen.first(|path, body| path == NODES && body["kind"] == "Node").await;
    let info = &registered["status"]["nodeInfo"];
    // It has no swap.
    assert_eq!((&info["runningInUserNamespace"], &info["swap"]), (&json!(false), &Value::Null));
    expect_test::expect![[r#"["ExtendWebSocketsToKubelet","InPlacePodLevelResourcesVerticalScaling","InPlacePodVerticalScalingInitContainers","RestartAllContainersOnContainerExits"]"#]]
        .assert_eq(&registered["status"]["declaredFeatures"].to_string());
    // It may not be created. It is brought up to date where it is there already.
    let node_path = format!("{NODES}/node-1");
    let patch =
        node.seen.first(|path, body| path == node_path && body["metadata"]["labels"].is_object()).await;
    expect_test::expect![[r#"{"alpha.kubernetes.io/provided-node-ip":null,"volumes.kubernetes.io/controller-managed-attach-detach":"true"}"#]]
        .assert_eq(&patch["metadata"]["annotations"].to_string());
    node.task.abort();
}

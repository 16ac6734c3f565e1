//! A whole node with a runtime in memory: what it does with pods that it does not take.

use crate::fake::Fake;
use crate::lifecycle::pod;
use futures_util::{StreamExt, future::BoxFuture, stream};
use kaji_kubelet::credential_providers::CredentialProviders;
use kaji_kubelet::node::{self, Housekeeping, Machine, NodeParts};
use kaji_kubelet::resource_managers::ResourceManagers;
use kaji_meta::random::SeededRandom;
use kaji_runtime::feed::{Listed, ObjectEvents, ObjectList};
use kaji_runtime::{Client, Collection, Error, Informers, ObjectFeed, Shared};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

const PODS: &str = "/api/v1/pods";
const NODES: &str = "/api/v1/nodes";
const STATUS: &str = "/api/v1/namespaces/n/pods/p/status";

/// A cluster of one node and one pod.
struct Cluster {
    node: Value,
    pod: Value,
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
                // The node is known before.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Ok(parts)
        })
    }

    fn watch<'a>(
        &'a self,
        _: &'a str,
        _: &'a Collection,
        _: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
        let events: ObjectEvents = stream::pending().boxed();
        Box::pin(async move { Ok(events) })
    }
}

/// Keeps patches of the pod's status, and has nothing else.
fn client(patches: mpsc::UnboundedSender<Value>) -> Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let patches = patches.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
            let (code, answer) = if head.method == http::Method::PATCH && head.uri.path() == STATUS {
                // At the end of the test nothing receives them.
                let _ = patches.send(serde_json::from_slice(&body).unwrap());
                (200, json!({}))
            } else {
                let absent = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "absent"});
                (404, absent)
            };
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(kube::Client::new(service, "default"), "kubelet")
}

#[tokio::test]
async fn a_pod_that_asks_for_apparmor_fails_where_there_is_none() {
    let node = json!({
        "metadata": {"name": "node-1", "uid": "node-uid", "resourceVersion": "1"},
        "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "110"}},
    });
    let confined = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    let containers = json!([{"name": "c", "image": "i"}]);
    let mut pod = pod(json!({"nodeName": "node-1", "securityContext": confined, "containers": containers}));
    pod["metadata"]["resourceVersion"] = "2".into();
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
    let (sent, mut patches) = mpsc::unbounded_channel();
    let client = client(sent).with_feed(Arc::new(Cluster { node, pod }));
    let shared = Shared {
        client: client.clone(),
        clock: fake.clock.clone(),
        random: Arc::new(SeededRandom::new(1)),
        decisions: None,
    };
    let (_running, stop) = watch::channel(false);
    let task = tokio::spawn(node::run(parts, Informers::new(client), shared, stop));
    let patch = tokio::time::timeout(Duration::from_secs(20), patches.recv()).await.unwrap().unwrap();
    let status = &patch["status"];
    expect_test::expect![[
        r#""Failed" "AppArmor" "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host""#
    ]]
    .assert_eq(&format!("{} {} {}", status["phase"], status["reason"], status["message"]));
    assert!(fake.runtime.state.lock().unwrap().sandboxes.is_empty());
    task.abort();
}

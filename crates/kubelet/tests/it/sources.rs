//! Configuration maps and secrets are followed by watches, as long as a pod refers to them.

use futures_util::{StreamExt, future::BoxFuture, stream};
use kaji_kubelet::pods::core::Pod;
use kaji_kubelet::pods::sources::{ApiSources, Keyed, KeyedKind, Sources};
use kaji_meta::time::SystemClock;
use kaji_runtime::feed::{Listed, ObjectEvent, ObjectEvents, ObjectList};
use kaji_runtime::{Client, Collection, Error, ObjectFeed};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, broadcast};

/// A server with one object; it notes what is asked of it.
struct Server {
    object: Mutex<Option<Value>>,
    asked: Mutex<Vec<String>>,
    events: broadcast::Sender<ObjectEvent>,
}

impl Server {
    fn new(object: Value) -> Arc<Server> {
        let events = broadcast::channel(16).0;
        Arc::new(Server { object: Mutex::new(Some(object)), asked: Mutex::default(), events })
    }

    fn sources(self: &Arc<Self>) -> ApiSources {
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let client = Client::new(kube::Client::new(silent, "default"), "kubelet");
        ApiSources::new(client.with_feed(self.clone()), Arc::new(SystemClock))
    }

    fn send(&self, event: fn(bytes::Bytes) -> ObjectEvent, object: &Value) {
        self.events.send(event(object.to_string().into())).unwrap();
    }

    fn asked(&self) -> String {
        self.asked.lock().unwrap().join(", ")
    }

    fn watched(&self) -> usize {
        self.events.receiver_count()
    }
}

impl ObjectFeed for Server {
    fn list<'a>(&'a self, _: &'a str, of: &'a Collection) -> BoxFuture<'a, Result<ObjectList, Error>> {
        self.asked.lock().unwrap().push(format!("list {}", of.list_uri()));
        let object = self.object.lock().unwrap().as_ref().map(|o| Ok(Listed::Object(o.to_string().into())));
        let metadata = Ok(Listed::Metadata(r#"{"resourceVersion":"5"}"#.into()));
        Box::pin(async { Ok(stream::iter(object.into_iter().chain([metadata])).boxed()) })
    }

    fn watch<'a>(
        &'a self,
        _: &'a str,
        _: &'a Collection,
        from: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
        self.asked.lock().unwrap().push(format!("watch {from}"));
        let events = stream::unfold(self.events.subscribe(), async |mut events| {
            let event = events.recv().await.ok()?;
            Some((Ok(vec![event]), events))
        });
        Box::pin(async { Ok(events.boxed()) })
    }
}

fn map(revision: u32, value: &str) -> Value {
    json!({"metadata": {"name": "m", "namespace": "n", "resourceVersion": revision.to_string()}, "data": {"k": value}})
}

fn pod(uid: &str) -> Pod {
    let volumes = json!([{"name": "v", "configMap": {"name": "m"}}]);
    let pod = json!({"metadata": {"namespace": "n", "name": uid, "uid": uid}, "spec": {"containers": [], "volumes": volumes}});
    serde_json::from_value(pod).unwrap()
}

async fn value(sources: &ApiSources) -> Option<Arc<Keyed>> {
    sources.keyed(KeyedKind::ConfigMap, "n", "m").await.unwrap()
}

async fn shows(sources: &ApiSources, expected: Option<&str>) {
    let show = |keyed: &Option<Arc<Keyed>>| {
        keyed.as_ref().map(|k| String::from_utf8_lossy(&k.data["k"]).into_owned())
    };
    let same = async {
        while show(&value(sources).await).as_deref() != expected {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), same).await.unwrap();
}

async fn until(condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), holds).await.unwrap();
}

#[tokio::test]
async fn an_object_has_one_watch_that_ends_with_the_last_pod() {
    let server = Server::new(map(4, "one"));
    let sources = server.sources();
    let (first, second) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    sources.follow(&pod("a"), &first);
    sources.follow(&pod("b"), &second);
    shows(&sources, Some("one")).await;
    until(|| server.watched() == 1).await;
    for wake in [&first, &second] {
        tokio::time::timeout(Duration::from_secs(20), wake.notified()).await.unwrap();
    }
    server.send(ObjectEvent::Changed, &map(6, "two"));
    shows(&sources, Some("two")).await;
    for wake in [&first, &second] {
        tokio::time::timeout(Duration::from_secs(20), wake.notified()).await.unwrap();
    }
    sources.forget("a");
    server.send(ObjectEvent::Deleted, &map(7, "two"));
    shows(&sources, None).await;
    sources.forget("b");
    until(|| server.watched() == 0).await;
    expect_test::expect!["list /api/v1/namespaces/n/configmaps?fieldSelector=metadata.name%3Dm, watch 5"]
        .assert_eq(&server.asked());
}

#[tokio::test]
async fn a_watch_that_fails_is_followed_by_a_list_and_immutable_objects_are_not_watched() {
    let server = Server::new(map(4, "one"));
    let sources = server.sources();
    sources.follow(&pod("a"), &Arc::default());
    until(|| server.watched() == 1).await;
    let mut fixed = map(8, "fixed");
    fixed["immutable"] = true.into();
    *server.object.lock().unwrap() = Some(fixed);
    server.send(
        ObjectEvent::Failed,
        &json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}),
    );
    shows(&sources, Some("fixed")).await;
    until(|| server.watched() == 0).await;
    sources.follow(&pod("b"), &Arc::default());
    shows(&sources, Some("fixed")).await;
    let list = "list /api/v1/namespaces/n/configmaps?fieldSelector=metadata.name%3Dm";
    assert_eq!(server.asked(), format!("{list}, watch 5, {list}"));
}

//! One suite for both feeds of informers: through a client's transport, and from the watch cache in the server's process.
//!
//! Each test runs with both. Invariants that are tested: an informer ends with the last state of every object, however often
//! its watch is lost or expires; its handlers see changes that add up to that state; an account's rights decide, when a feed
//! begins and when it begins again.

use crate::common::{
    TestCluster,
    access::{admin, ok, person},
    until,
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use kaji_controlplane::CacheFeed;
use kaji_meta::GroupResource;
use kaji_runtime::{
    Change, Client, ClientFeed, Collection, Error, Informers, Meta, ObjectFeed, Projection, Selection,
    feed::{Listed, ObjectEvent, ObjectEvents, ObjectList},
};
use kaji_server::LocalService;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Map {
    metadata: Meta,
    data: BTreeMap<String, String>,
}

impl Projection for Map {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "configmaps";
    const KIND: &'static str = "ConfigMap";

    kaji_runtime::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Client,
    Cache,
}

const KINDS: [Kind; 2] = [Kind::Client, Kind::Cache];

/// A feed with the rights of a user.
fn feed(cluster: &TestCluster, kind: Kind, user: &str) -> (Client, Arc<dyn ObjectFeed>) {
    let service = LocalService::new(cluster.cluster.stack.clone(), person(user));
    let client = Client::new(kube::Client::new(service.clone(), "default"), "test");
    let feed: Arc<dyn ObjectFeed> = match kind {
        Kind::Client => Arc::new(ClientFeed::new(client.clone())),
        Kind::Cache => Arc::new(CacheFeed::new(service)),
    };
    (client, feed)
}

/// Lets a user read config maps; a binding of this name.
async fn allow(cluster: &TestCluster, name: &str) {
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]);
    let role = json!({"metadata": {"name": name}, "rules": rules});
    // The role stays when the binding is removed.
    let _ = crate::common::access::ask(cluster, &admin(), &format!("POST {RBAC}/clusterroles"), &role).await;
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    });
    ok(cluster, &admin(), &format!("POST {RBAC}/clusterrolebindings"), binding).await;
}

async fn forbid(cluster: &TestCluster, name: &str) {
    ok(cluster, &admin(), &format!("DELETE {RBAC}/clusterrolebindings/{name}"), Value::Null).await;
}

async fn write(cluster: &TestCluster, name: &str, value: &str) {
    let map = json!({"metadata": {"name": name}, "data": {"value": value}});
    ok(cluster, &admin(), &format!("POST {MAPS}"), map).await;
}

/// Name and value of each object.
type State = BTreeMap<String, String>;

fn value(map: &Map) -> String {
    map.data.get("value").cloned().unwrap_or_default()
}

/// What an informer shows in the namespace `default`.
fn shown(informer: &kaji_runtime::Informer<Map>) -> State {
    let snapshot = informer.snapshot();
    snapshot.in_namespace("default").map(|m| (m.metadata.name.clone(), value(m))).collect()
}

/// What the server has there.
async fn stored(cluster: &TestCluster) -> State {
    let list = ok(cluster, &admin(), &format!("GET {MAPS}"), Value::Null).await;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    items.iter().map(|m| (text(&m["metadata"]["name"]), text(&m["data"]["value"]))).collect()
}

fn expired() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired", "message": "lost by the test", "code": 410})
}

/// A feed that loses its watches after a few batches; now and then one expires: as an event, or when they are opened.
struct Lossy {
    inner: Arc<dyn ObjectFeed>,
    lists: AtomicUsize,
    watches: AtomicUsize,
}

impl ObjectFeed for Lossy {
    fn list<'a>(&'a self, agent: &'a str, of: &'a Collection) -> BoxFuture<'a, Result<ObjectList, Error>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.inner.list(agent, of)
    }

    fn watch<'a>(
        &'a self,
        agent: &'a str,
        of: &'a Collection,
        from: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
        let turn = self.watches.fetch_add(1, Ordering::Relaxed);
        async move {
            if turn % 7 == 3 {
                return Err(Error::of_watch(expired().to_string().as_bytes()));
            }
            let events = self.inner.watch(agent, of, from).await?.take(1 + turn % 3);
            let failed = ObjectEvent::Failed(expired().to_string().into());
            Ok(match turn % 5 {
                2 => events.chain(futures_util::stream::iter([Ok(vec![failed])])).boxed(),
                _ => events.boxed(),
            })
        }
        .boxed()
    }
}

/// Writes in a fixed pseudo-random order: creations, changes and deletions of a few names.
async fn churn(cluster: &TestCluster, kind: Kind) {
    let mut present = BTreeMap::new();
    let mut random = 12_345_u32;
    for n in 0..200_u32 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let name = format!("{kind:?}-{}", random >> 8 & 7).to_lowercase();
        let path = format!("{MAPS}/{name}");
        let value = n.to_string();
        if present.remove(&name).is_none() {
            write(cluster, &name, &value).await;
            present.insert(name, value);
        } else if random >> 16 & 3 == 0 {
            ok(cluster, &admin(), &format!("DELETE {path}"), Value::Null).await;
        } else {
            ok(cluster, &admin(), &format!("PATCH {path}"), json!({"data": {"value": value}})).await;
            present.insert(name, value);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_informer_ends_with_the_last_state_however_often_its_watch_is_lost() {
    let cluster = TestCluster::start(0).await;
    allow(&cluster, "reader").await;
    for kind in KINDS {
        let (client, inner) = feed(&cluster, kind, "reader");
        let lossy = Arc::new(Lossy { inner, lists: AtomicUsize::new(0), watches: AtomicUsize::new(0) });
        let informers = Informers::new(client.with_feed(lossy.clone()));
        let informer = informers.get::<Map>();
        let seen: Arc<Mutex<State>> = Arc::default();
        let handled = seen.clone();
        informer.handle(move |change: &Change<Map>| {
            let mut seen = handled.lock().unwrap();
            let metadata = &change.any().metadata;
            if metadata.namespace == "default" {
                let old = change.old.as_ref().map(|m| value(m));
                assert_eq!(seen.remove(&metadata.name), old, "{kind:?}: changes do not follow each other");
                seen.extend(change.new.as_ref().map(|m| (m.metadata.name.clone(), value(m))));
            }
        });
        informer.synced().await;
        churn(&cluster, kind).await;
        let last = stored(&cluster).await;
        until("the informer shows the last state", async || shown(&informer) == last).await;
        assert_eq!(*seen.lock().unwrap(), last, "{kind:?}");
        let (lists, watches) = (lossy.lists.load(Ordering::Relaxed), lossy.watches.load(Ordering::Relaxed));
        assert!(lists > 1 && watches > 5, "{kind:?}: nothing was lost: {lists} lists, {watches} watches");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_decide_when_a_feed_begins_and_when_it_begins_again() {
    let cluster = TestCluster::start(0).await;
    let engine = cluster.cluster.stack.engine.clone();
    let maps = GroupResource::new("", "configmaps");
    for kind in KINDS {
        let name = format!("user-{kind:?}").to_lowercase();
        let (client, feed) = feed(&cluster, kind, &name);
        let everything = Collection { path: "/api/v1/configmaps".into(), ..Collection::default() };
        let code = |refused: Error| refused.code();
        assert_eq!(feed.list("test", &everything).await.err().and_then(code), Some(403), "{kind:?}");
        assert_eq!(feed.watch("test", &everything, "1").await.err().and_then(code), Some(403), "{kind:?}");
        allow(&cluster, &name).await;
        let informers = Informers::new(client.with_feed(feed.clone()));
        let informer = informers.get::<Map>();
        informer.synced().await;
        let seen = format!("seen-{name}");
        write(&cluster, &seen, "1").await;
        until("the watch is open", async || shown(&informer).contains_key(&seen)).await;
        forbid(&cluster, &name).await;
        // A right that is taken away counts once the caches have its removal.
        until("the feed is refused", async || feed.list("test", &everything).await.is_err()).await;
        // As at a watch's deadline: what follows is another request.
        engine.end_watches(&maps);
        let unseen = format!("unseen-{name}");
        write(&cluster, &unseen, "1").await;
        let refused = feed.watch("test", &everything, "1").await.err().and_then(code);
        assert_eq!((refused, shown(&informer).get(&unseen)), (Some(403), None), "{kind:?}");
        allow(&cluster, &name).await;
        until("the informer has resumed", async || shown(&informer).contains_key(&unseen)).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_feeds_show_the_same() {
    let cluster = TestCluster::start(0).await;
    allow(&cluster, "reader").await;
    write(&cluster, "a", "1").await;
    let whole = Collection { path: MAPS.into(), ..Collection::default() };
    let selected = Collection { selection: Selection::by_fields("metadata.name=a"), ..whole.clone() };
    let metadata = Collection { metadata_only: true, ..whole.clone() };
    for collection in [whole, selected, metadata] {
        let mut shown = vec![];
        for kind in KINDS {
            let (_, feed) = feed(&cluster, kind, "reader");
            let parts: Vec<Listed> =
                feed.list("test", &collection).await.unwrap().map(Result::unwrap).collect().await;
            let mut objects = vec![];
            let mut revision = String::new();
            for part in parts {
                match part {
                    // Elements of lists of built-in kinds do not say their kind.
                    Listed::Object(object) => objects.push(without_kind(&object)),
                    Listed::Metadata(metadata) => {
                        let metadata: Meta = serde_json::from_slice(&metadata).unwrap();
                        revision = metadata.resource_version;
                    }
                }
            }
            let from = (revision.parse::<u64>().unwrap() - 1).to_string();
            let path = format!("PATCH {MAPS}/a");
            ok(&cluster, &admin(), &path, json!({"data": {"value": format!("{kind:?}")}})).await;
            let mut events = feed.watch("test", &collection, &from).await.unwrap();
            let batch = events.next().await.unwrap().unwrap();
            let changed = matches!(&batch[0], ObjectEvent::Changed(_));
            ok(&cluster, &admin(), &path, json!({"data": {"value": "1"}})).await;
            let names: Vec<String> = objects
                .iter()
                .map(|o| o["metadata"]["name"].as_str().unwrap_or_default().to_owned())
                .collect();
            let fields: Vec<Vec<String>> =
                objects.iter().map(|o| o.as_object().unwrap().keys().cloned().collect()).collect();
            shown.push((names, fields, changed));
        }
        assert_eq!(shown[0], shown[1], "{collection:?}");
    }
    cluster.stop().await;
}

fn without_kind(object: &[u8]) -> Value {
    let mut object: Value = serde_json::from_slice(object).unwrap();
    if object["kind"] != "PartialObjectMetadata" {
        let map = object.as_object_mut().unwrap();
        map.remove("kind");
        map.remove("apiVersion");
    }
    object
}

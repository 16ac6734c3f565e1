//! Objects, as a server's watches show them, become answers: zone and resolvers.

use futures_util::{StreamExt, future::BoxFuture, stream};
use kaji_dns::customization::Customization;
use kaji_dns::feed::Feed;
use kaji_dns::forward::Forwarder;
use kaji_dns::metrics::Metrics;
use kaji_dns::resolv_conf::NodeResolvers;
use kaji_dns::server::Service;
use kaji_dns::zone::{Answer, Kind, Zone};
use kaji_runtime::feed::{Listed, ObjectEvent, ObjectEvents, ObjectList};
use kaji_runtime::{Client, Collection, Error, Informers, ObjectFeed, Selected};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A server: all events of each resource, from the first on. Lists are empty.
#[derive(Default)]
struct World {
    resources: Mutex<HashMap<String, watch::Sender<Vec<ObjectEvent>>>>,
}

impl World {
    fn events(&self, collection: &str) -> watch::Sender<Vec<ObjectEvent>> {
        self.resources.lock().unwrap().entry(collection.to_owned()).or_default().clone()
    }

    fn send(&self, resource: &str, mut object: Value, event: fn(bytes::Bytes) -> ObjectEvent) {
        self.events(resource).send_modify(|events| {
            object["metadata"]["resourceVersion"] = (events.len() + 2).to_string().into();
            events.push(event(object.to_string().into()));
        });
    }

    fn informers(self: &Arc<Self>) -> Arc<Informers> {
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let client = Client::new(kube::Client::new(silent, "default"), "dns").with_feed(self.clone());
        let selected =
            Selected::default().of::<kaji_dns::customization::CustomizationMap>(Customization::selector());
        Informers::selecting(client, selected)
    }
}

/// The last word of the path, with the selector of a single object.
fn resource(collection: &Collection) -> String {
    format!("{}{}", collection.path.rsplit('/').next().unwrap(), collection.selection.fields)
}

impl ObjectFeed for World {
    fn list<'a>(&'a self, _: &'a str, _: &'a Collection) -> BoxFuture<'a, Result<ObjectList, Error>> {
        let metadata = Listed::Metadata(r#"{"resourceVersion":"1"}"#.into());
        Box::pin(async { Ok(stream::iter([Ok(metadata)]).boxed()) })
    }

    fn watch<'a>(
        &'a self,
        _: &'a str,
        collection: &'a Collection,
        from: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
        let receiver = self.events(&resource(collection)).subscribe();
        let seen = from.parse::<usize>().unwrap() - 1;
        let next = async |(mut receiver, seen): (watch::Receiver<Vec<ObjectEvent>>, usize)| {
            let batch = receiver.wait_for(|events| events.len() > seen).await.ok()?[seen..].to_vec();
            let seen = seen + batch.len();
            Some((Ok(batch), (receiver, seen)))
        };
        Box::pin(async move { Ok(stream::unfold((receiver, seen), next).boxed()) })
    }
}

fn service() -> Arc<Service> {
    let node = Arc::new(NodeResolvers::default());
    Arc::new(Service::new(Zone::new("cluster.local", vec![]), Forwarder::new(node), Metrics::default()))
}

/// What DNS promises after a change.
const PROMISED: Duration = Duration::from_millis(100);

/// Waits until a condition holds. The clock stands still while anything is left to do: it advances by the timers that answers wait
/// for, and by nothing that the machine does meanwhile.
async fn within_promise(what: &str, mut condition: impl FnMut() -> bool) {
    let changed = Instant::now();
    while !condition() {
        assert!(changed.elapsed() < PROMISED, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn knows(service: &Service, name: &str) -> bool {
    matches!(service.zone().answer(name, Kind::A), Answer::Records { answers, .. } if !answers.is_empty())
}

fn cluster_service(name: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ports": [{"port": 80, "protocol": "TCP"}]},
    })
}

#[tokio::test(start_paused = true)]
async fn names_are_right_within_100_ms_of_a_change() {
    let world = Arc::new(World::default());
    let (informers, service) = (world.informers(), service());
    let (ready, mut is_ready) = watch::channel(false);
    let feed = tokio::spawn(Feed::new(&informers).run(service.clone(), ready));
    is_ready.wait_for(|ready| *ready).await.unwrap();
    // A storm before it delays no change.
    for number in 0..500 {
        let address = format!("10.96.{}.{}", number / 250, number % 250 + 1);
        world.send("services", cluster_service(&format!("s{number}"), &address), ObjectEvent::Changed);
    }
    within_promise("the last of many", || knows(&service, "s499.default.svc.cluster.local")).await;
    world.send("services", cluster_service("web", "10.96.7.7"), ObjectEvent::Changed);
    within_promise("a new service", || knows(&service, "web.default.svc.cluster.local")).await;
    world.send("services", cluster_service("web", "10.96.7.7"), ObjectEvent::Deleted);
    within_promise("a deleted one", || !knows(&service, "web.default.svc.cluster.local")).await;
    feed.abort();
}

#[tokio::test(start_paused = true)]
async fn the_map_says_which_resolvers_are_asked() {
    let world = Arc::new(World::default());
    let (informers, service) = (world.informers(), service());
    let customization = Customization::new(&informers);
    let follower = tokio::spawn(customization.run(service.clone()));
    let map = |namespace: &str, name: &str, upstream: &str| json!({"metadata": {"name": name, "namespace": namespace}, "data": {"upstreamNameservers": upstream}});
    let put = |object: Value| world.send("configmapsmetadata.name=kube-dns", object, ObjectEvent::Changed);
    let asked = || service.resolvers().upstream.iter().map(ToString::to_string).collect::<Vec<_>>();
    put(map("kube-system", "kube-dns", r#"["192.0.2.1"]"#));
    within_promise("a map", || asked() == ["192.0.2.1:53"]).await;
    put(map("default", "kube-dns", r#"["192.0.2.66"]"#));
    put(map("kube-system", "kube-dns", "garbage"));
    put(map("kube-system", "kube-dns", r#"["192.0.2.2:5353"]"#));
    within_promise("the next one that can be used", || asked() == ["192.0.2.2:5353"]).await;
    put(map("kube-system", "kube-dns", r#"["dns.example"]"#));
    tokio::time::sleep(PROMISED).await;
    assert_eq!(asked(), ["192.0.2.2:5353"], "one that cannot be used changes nothing");
    world.send(
        "configmapsmetadata.name=kube-dns",
        map("kube-system", "kube-dns", "[]"),
        ObjectEvent::Deleted,
    );
    within_promise("no map", || asked().is_empty()).await;
    follower.abort();
}

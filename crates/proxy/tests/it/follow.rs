//! Objects, as a server's watches show them, become rules and routes.

use crate::support::{Cluster, ip, slice};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use kaji_netfilter::{Family, Nftables};
use kaji_proxy::{
    ServiceProxy, follow_nodes,
    policy::{self, LocalPod, LocalPods, PolicyConfig},
    run,
};
use kaji_runtime::{
    Client, Collection, Error, Informers, ObjectFeed,
    feed::{Listed, ObjectEvent, ObjectEvents, ObjectList},
};
use kaji_testing::netns::Netns;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::watch;

type Events = watch::Sender<Vec<ObjectEvent>>;

/// A server: all events of each resource, from the first on. Lists are empty.
#[derive(Default)]
struct World {
    resources: Mutex<HashMap<String, Events>>,
}

impl World {
    fn events(&self, resource: &str) -> Events {
        let mut resources = self.resources.lock().unwrap_or_else(PoisonError::into_inner);
        resources.entry(resource.to_owned()).or_default().clone()
    }

    fn send(&self, resource: &str, mut object: Value, event: fn(bytes::Bytes) -> ObjectEvent) {
        self.events(resource).send_modify(|events| {
            object["metadata"]["resourceVersion"] = (events.len() + 2).to_string().into();
            events.push(event(object.to_string().into()));
        });
    }

    fn put(&self, resource: &str, object: Value) {
        self.send(resource, object, ObjectEvent::Changed);
    }

    fn delete(&self, resource: &str, object: Value) {
        self.send(resource, object, ObjectEvent::Deleted);
    }

    fn informers(self: &Arc<Self>) -> Arc<Informers> {
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let client = Client::new(kube::Client::new(silent, "default"), "proxy");
        Informers::new(client.with_feed(self.clone()))
    }
}

fn resource(collection: &Collection) -> &str {
    collection.path.rsplit('/').next().unwrap()
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
        let receiver = self.events(resource(collection)).subscribe();
        let seen = from.parse::<usize>().unwrap() - 1;
        let next = async |(mut receiver, seen): (watch::Receiver<Vec<ObjectEvent>>, usize)| {
            let batch = receiver.wait_for(|events| events.len() > seen).await.ok()?[seen..].to_vec();
            let seen = seen + batch.len();
            Some((Ok(batch), (receiver, seen)))
        };
        Box::pin(async move { Ok(stream::unfold((receiver, seen), next).boxed()) })
    }
}

/// Until `condition` holds, which must be soon.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// The answer to an HTTP request in a namespace; `None` if there is no listener.
fn get(namespace: &Netns, address: &str, path: &str) -> Option<String> {
    namespace.run(|| {
        let mut stream = TcpStream::connect(address).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    })
}

fn node(name: &str, cidr: &str, address: &str, taints: &Value) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr], "taints": taints},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    })
}

fn slice_object(endpoint: &str) -> Value {
    let slice = slice("s", "TCP", 8080, &[endpoint]);
    let (address, node) = (&slice.endpoints[0].addresses[0], &slice.endpoints[0].node_name);
    json!({
        "metadata": {
            "name": slice.metadata.name,
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "s"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "nodeName": node, "conditions": {"ready": true}}],
        "ports": [{"port": 8080, "protocol": "TCP"}],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_follow_their_objects() {
    let Some(cluster) = Cluster::new("services_follow_their_objects", 2).await else { return };
    for (pod, name) in cluster.pods.iter().zip(["pod0", "pod1"]) {
        pod.serve(8080, name);
    }
    let world = Arc::new(World::default());
    let informers = world.informers();
    let (stop, stopped) = watch::channel(false);
    let proxy =
        ServiceProxy::start(cluster.config(), &informers, Arc::new(drop::<kaji_runtime::EventRecord>))
            .await
            .unwrap();
    let dataplane = proxy.dataplane();
    let running = tokio::spawn(run(proxy, Some("127.0.0.1:10256".parse().unwrap()), stopped));
    let service = json!({
        "metadata": {"name": "s", "namespace": "default"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.1",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31000,
            "ports": [{"port": 80, "protocol": "TCP"}],
        },
    });
    world.put("nodes", node("node", "10.244.1.0/24", "192.0.2.1", &json!([])));
    world.put("services", service.clone());
    let ask = || cluster.outside.ask(ip("10.96.0.1"), 80);
    until("no endpoints", || ask() == Err(ErrorKind::ConnectionRefused));
    world.put("endpointslices", slice_object("10.244.1.2 node"));
    until("the first endpoint", || ask() == Ok("pod0 10.244.1.1".into()));
    // Health is that of services and of the node.
    let starts = |address, path, status: &str| {
        get(&cluster.node, address, path).is_some_and(|text| text.starts_with(&format!("HTTP/1.1 {status} ")))
    };
    until("one local endpoint", || starts("127.0.0.1:31000", "/", "200"));
    assert!(starts("[::1]:31000", "/", "503"), "no endpoint of IPv6");
    until("the node is eligible", || starts("127.0.0.1:10256", "/healthz", "200"));
    let taints = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    world.put("nodes", node("node", "10.244.1.0/24", "192.0.2.1", &taints));
    until("the node is about to go", || starts("127.0.0.1:10256", "/healthz", "503"));
    assert!(starts("127.0.0.1:10256", "/livez", "200"));
    world.put("endpointslices", slice_object("10.244.1.3 other"));
    until("the second endpoint", || ask() == Ok("pod1 10.244.1.1".into()));
    until("no local endpoint", || starts("127.0.0.1:31000", "/", "503"));
    let mut headless = slice_object("10.244.1.3 other");
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = "".into();
    world.put("endpointslices", headless);
    until("a headless service's endpoint", || ask() == Err(ErrorKind::ConnectionRefused));
    world.put("endpointslices", slice_object("10.244.1.3 other"));
    until("the second endpoint again", || ask() == Ok("pod1 10.244.1.1".into()));
    world.delete("services", service);
    until("no service", || ask().is_err());
    until("no health check port", || get(&cluster.node, "127.0.0.1:31000", "/").is_none());
    stop.send(true).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(get(&cluster.node, "127.0.0.1:10256", "/livez"), None);
    dataplane.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_and_routes_follow_their_objects() {
    let Some(cluster) = Cluster::new("policies_follow_their_objects", 2).await else { return };
    cluster.pods[0].serve(8080, "pod0");
    let world = Arc::new(World::default());
    let informers = world.informers();
    let (stop, stopped) = watch::channel(false);
    let mut config = PolicyConfig::new("node");
    config.namespace = Some(cluster.node.path());
    let table = config.table.clone();
    let local = LocalPods::default();
    let running = tokio::spawn(policy::run(config, informers.clone(), local.clone(), stopped.clone()));
    let routes = tokio::spawn(follow_nodes(cluster.network.clone(), informers, stopped));
    world.put("nodes", node("node", "10.244.1.0/24", "192.0.2.1", &json!([])));
    let other = node("other", "10.244.2.0/24", "192.0.2.2", &json!([]));
    world.put("nodes", other.clone());
    let routed = || cluster.node.ip("route show").contains("10.244.2.0/24 via 192.0.2.2");
    until("a route to the other node's pods", routed);
    world.delete("nodes", other);
    until("no route", || !routed());
    world.put("namespaces", json!({"metadata": {"name": "a"}}));
    for (name, address) in [("pod0", "10.244.1.2"), ("pod1", "10.244.1.3")] {
        world.put(
            "pods",
            json!({
                "metadata": {"name": name, "namespace": "a"},
                "spec": {"nodeName": "node", "containers": []},
                "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
            }),
        );
    }
    let ask = || cluster.pods[1].ask(ip("10.244.1.2"), 8080);
    assert_eq!(ask(), Ok("pod0 10.244.1.3".into()));
    let deny = json!({"metadata": {"name": "deny", "namespace": "a"}, "spec": {"podSelector": {}}});
    world.put("networkpolicies", deny.clone());
    until("nothing is allowed", || ask() == Err(ErrorKind::TimedOut));
    world.delete("networkpolicies", deny.clone());
    until("all is allowed", || ask().is_ok());
    // A pod with an address that the API does not show yet.
    world.delete("pods", json!({"metadata": {"name": "pod0", "namespace": "a"}}));
    world.put("networkpolicies", deny);
    let addresses = vec![ip("10.244.1.2")];
    local.insert("s", LocalPod { namespace: "a".into(), name: "new".into(), uid: "u".into(), addresses });
    let waiting = local.enforced("s");
    let mut waiting = std::pin::pin!(waiting);
    assert!(waiting.as_mut().now_or_never().is_none(), "nothing is known of the pod's labels");
    let new = json!({"metadata": {"name": "new", "namespace": "a", "uid": "u"}, "spec": {"nodeName": "node", "containers": []}});
    world.put("pods", new);
    waiting.await;
    assert_eq!(ask(), Err(ErrorKind::TimedOut), "its policies are in force before its address is in the API");
    local.remove("s");
    until("it has no address any more", || ask().is_ok());
    stop.send(true).unwrap();
    running.await.unwrap().unwrap();
    routes.await.unwrap();
    // Rules stay when the feed ends.
    let tables = cluster.node.run(|| Nftables::open().unwrap().tables(Family::V4).unwrap());
    assert!(tables.contains(&table), "{tables:?}");
}

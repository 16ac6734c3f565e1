//! The `kube-dns` service, and its endpoints: the nodes that serve cluster DNS, by the annotation of their Nodes.
//!
//! Invariants:
//! - Every endpoint is hinted for its own node, so that pods ask their own node as long as it is ready, and any other after that.
//! - A `kube-dns` service with a selector is that of a CoreDNS that was installed: it stays as it is, and has no endpoints of ours.
//! - Without a node that serves DNS nothing is created.

use kaji_dns::{PORT, SERVED_ANNOTATION};
use kaji_engine::Engine;
use kaji_meta::{GroupResource, Status};
use kaji_resource::{Api, DeleteOptions, FieldManagement, UpdateOptions, unless_exists};
use kaji_runtime::{Informers, objects::Node};
use serde_json::{Value, json};
use std::{
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::sync::{Notify, watch};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
/// A slice has no more endpoints than this; nodes beyond ask those of other nodes.
const MOST_ENDPOINTS: usize = 1000;
/// How often the objects are looked at without changes of nodes: other clients may change them.
const RESYNC: Duration = Duration::from_secs(30);
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// A node that serves cluster DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    node: String,
    /// One of each family at most.
    addresses: Vec<IpAddr>,
    ready: bool,
}

impl Server {
    fn address(&self, v4: bool) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == v4)
    }
}

/// What a Node says of the DNS that it serves.
fn server(node: &Node) -> Option<Server> {
    let announced = node.metadata.annotations.get(SERVED_ANNOTATION).is_some_and(|value| value == "true");
    let internal = node.status.addresses.iter().filter(|address| &*address.kind == "InternalIP");
    let addresses: Vec<IpAddr> = internal.filter_map(|internal| internal.address.parse().ok()).collect();
    (announced && !addresses.is_empty()).then(|| Server {
        node: node.metadata.name.clone(),
        addresses,
        ready: node.ready(),
    })
}

/// The endpoints of a family. If no node is ready, all of them are tried.
fn endpoints(servers: &[Server], v4: bool) -> Vec<Value> {
    let any_ready = servers.iter().any(|server| server.ready);
    let of_family = servers.iter().filter_map(|server| Some((server, server.address(v4)?)));
    let endpoint = |(server, address): (&Server, IpAddr)| {
        json!({
            "addresses": [address.to_string()],
            "conditions": {"ready": server.ready || !any_ready},
            "nodeName": server.node,
            "hints": {"forNodes": [{"name": server.node}]},
        })
    };
    of_family.take(MOST_ENDPOINTS).map(endpoint).collect()
}

/// The slice of a family.
fn slice(servers: &[Server], v4: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice_name(v4),
            "labels": {
                "kubernetes.io/service-name": NAME,
                "endpointslice.kubernetes.io/managed-by": "cluster-dns.kaji.dev",
            },
        },
        "addressType": if v4 { "IPv4" } else { "IPv6" },
        "endpoints": endpoints(servers, v4),
        "ports": [
            {"name": "dns", "port": PORT, "protocol": "UDP"},
            {"name": "dns-tcp", "port": PORT, "protocol": "TCP"},
        ],
    })
}

fn slice_name(v4: bool) -> &'static str {
    if v4 { NAME } else { "kube-dns-ipv6" }
}

/// The service as kubeadm has it for CoreDNS, but without a selector.
fn service(address: IpAddr) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "labels": {
            "k8s-app": "kube-dns",
            "kubernetes.io/cluster-service": "true",
            "kubernetes.io/name": "CoreDNS",
        }},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address.to_string(),
            "clusterIPs": [address.to_string()],
            "sessionAffinity": "None",
            "ports": [
                {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": PORT},
                {"name": "dns-tcp", "protocol": "TCP", "port": 53, "targetPort": PORT},
            ],
        },
    })
}

/// Keeps service and endpoints as the nodes say, until `stop` turns true. `address` is the service's.
pub async fn follow(
    engine: Weak<Engine>,
    informers: Arc<Informers>,
    address: IpAddr,
    mut stop: watch::Receiver<bool>,
) {
    let nodes = informers.get::<Node>();
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    nodes.handle(move |change| {
        let of = |node: &Option<Arc<Node>>| node.as_deref().and_then(server);
        if of(&change.old) != of(&change.new) {
            notify.notify_one();
        }
    });
    nodes.synced().await;
    loop {
        let mut servers: Vec<Server> = nodes.snapshot().iter().filter_map(|node| server(node)).collect();
        servers.sort_by(|a, b| a.node.cmp(&b.node));
        let Some(api) = engine.upgrade() else { return };
        let outcome = write(&*api, &servers, address).await;
        drop(api);
        let pause = match outcome {
            Ok(()) => RESYNC,
            Err(error) => {
                tracing::warn!(%error, "the endpoints of cluster DNS could not be written");
                RETRY
            }
        };
        tokio::select! {
            biased;
            () = changed.notified() => {}
            () = tokio::time::sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

fn resource(group: &str, name: &str) -> GroupResource {
    GroupResource::new(group, name)
}

async fn write(api: &dyn Api, servers: &[Server], address: IpAddr) -> Result<(), Status> {
    let services = resource("", "services");
    let found = api.get(&services, NAMESPACE, NAME);
    if found.as_ref().is_some_and(|s| s["spec"]["selector"].as_object().is_some_and(|s| !s.is_empty())) {
        for v4 in [true, false] {
            remove_slice(api, v4).await?;
        }
        return Ok(());
    }
    if found.is_none() {
        if servers.is_empty() {
            return Ok(());
        }
        unless_exists(api.create(&services, NAMESPACE, service(address), false).await)?;
    }
    for v4 in [true, false] {
        let family = servers.iter().any(|server| server.address(v4).is_some());
        if family || v4 == address.is_ipv4() {
            put_slice(api, &slice(servers, v4), v4).await?;
        } else {
            remove_slice(api, v4).await?;
        }
    }
    Ok(())
}

async fn put_slice(api: &dyn Api, wanted: &Value, v4: bool) -> Result<(), Status> {
    let slices = resource("discovery.k8s.io", "endpointslices");
    let fields = ["endpoints", "ports"];
    match api.get(&slices, NAMESPACE, slice_name(v4)) {
        None => unless_exists(api.create(&slices, NAMESPACE, wanted.clone(), false).await),
        Some(found) if fields.iter().all(|f| same(&found[*f], &wanted[*f])) => Ok(()),
        Some(_) => {
            let change = |object: &mut Value| {
                fields.iter().for_each(|f| object[*f] = wanted[*f].clone());
                Ok(())
            };
            let options = UpdateOptions::new("", FieldManagement::Record);
            api.update(&slices, NAMESPACE, slice_name(v4), options, &change).await.map(drop)
        }
    }
}

/// Whether two lists are the same; an empty one may be left out.
fn same(found: &Value, wanted: &Value) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    list(found) == list(wanted)
}

async fn remove_slice(api: &dyn Api, v4: bool) -> Result<(), Status> {
    let slices = resource("discovery.k8s.io", "endpointslices");
    if api.get(&slices, NAMESPACE, slice_name(v4)).is_none() {
        return Ok(());
    }
    match api.delete(&slices, NAMESPACE, slice_name(v4), DeleteOptions::default()).await {
        Err(status) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, address: &str, announced: bool, ready: &str) -> Node {
        let annotations = if announced { json!({SERVED_ANNOTATION: "true"}) } else { json!({}) };
        let mut internal = vec![json!({"type": "Hostname", "address": name})];
        internal.extend(address.split(',').map(|ip| json!({"type": "InternalIP", "address": ip})));
        let node = json!({
            "metadata": {"name": name, "annotations": annotations},
            "status": {
                "addresses": internal,
                "conditions": [{"type": "Ready", "status": ready}],
            },
        });
        serde_json::from_value(node).unwrap()
    }

    fn shown(nodes: &[Node], v4: bool) -> String {
        let servers: Vec<Server> = nodes.iter().filter_map(server).collect();
        let line = |e: &Value| {
            let hint = &e["hints"]["forNodes"][0]["name"];
            format!("{} {} ready={} for {hint}", e["addresses"][0], e["nodeName"], e["conditions"]["ready"])
        };
        endpoints(&servers, v4).iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn endpoints_are_the_nodes_that_announce_dns() {
        let nodes = [
            node("a", "10.0.0.1", true, "True"),
            node("b", "10.0.0.2", true, "Unknown"),
            node("c", "10.0.0.3", false, "True"),
            node("d", "fd00::1", true, "True"),
            node("e", "10.0.0.5,fd00::5", true, "True"),
        ];
        expect_test::expect![[r#"
            "10.0.0.1" "a" ready=true for "a"
            "10.0.0.2" "b" ready=false for "b"
            "10.0.0.5" "e" ready=true for "e""#]]
        .assert_eq(&shown(&nodes, true));
        expect_test::expect![[r#"
            "fd00::1" "d" ready=true for "d"
            "fd00::5" "e" ready=true for "e""#]]
        .assert_eq(&shown(&nodes, false));
        // A lone node that is not ready yet still answers.
        expect_test::expect![[r#""10.0.0.2" "b" ready=true for "b""#]].assert_eq(&shown(&nodes[1..2], true));
    }
}

//! Objects, and a node with pods in namespaces.

use kaji_containers::{NetworkSetup, PodNetwork};
use kaji_network::{BridgeNetwork, NetworkConfig};
use kaji_proxy::NodeConfig;
use kaji_runtime::objects::{EndpointSlice, Service};
use kaji_testing::netns::Netns;
use serde_json::{Value, json};
use std::{net::IpAddr, sync::Arc};

/// A service `default/name` with a TCP port 80, and what `spec` has besides.
pub fn service(name: &str, spec: &Value) -> Service {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": "ClusterIP", "ports": [{"port": 80, "protocol": "TCP"}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    if let Some(status) = object["spec"].as_object_mut().unwrap().remove("status") {
        object["status"] = status;
    }
    serde_json::from_value(object).unwrap()
}

/// A slice of a service. Endpoints are `address`, or `address node`, with `!` for one that terminates but serves, and `?` for one
/// that is not ready.
pub fn slice(service: &str, protocol: &str, port: u16, endpoints: &[&str]) -> Arc<EndpointSlice> {
    let read = |text: &&str| {
        let mut words = text.trim_end_matches(['!', '?']).split(' ');
        let (address, node) = (words.next().unwrap(), words.next());
        json!({
            "addresses": [address],
            "nodeName": node,
            "conditions": {
                "ready": !text.ends_with(['!', '?']),
                "serving": !text.ends_with('?'),
                "terminating": text.ends_with('!'),
            },
        })
    };
    let v6 = endpoints.first().is_some_and(|text| text.contains(':'));
    let object = json!({
        "metadata": {
            "name": format!("{service}-1"),
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": if v6 { "IPv6" } else { "IPv4" },
        "endpoints": endpoints.iter().map(read).collect::<Vec<_>>(),
        "ports": [{"port": port, "protocol": protocol}],
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

pub fn config() -> NodeConfig {
    let mut config = NodeConfig::new("node");
    config.local_cidrs = vec!["10.244.1.0/24".parse().unwrap(), "fd00:10:244:1::/64".parse().unwrap()];
    config
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A node with pods on its bridge, and the world outside.
pub struct Cluster {
    pub node: Netns,
    pub outside: Netns,
    pub pods: Vec<Netns>,
    pub network: BridgeNetwork,
    _state: tempfile::TempDir,
}

impl Cluster {
    /// Pods have 10.244.1.2, 10.244.1.3, … and fd00:10:244:1::2, …; the node has 192.0.2.1, the outside 192.0.2.2 with a route to
    /// the cluster IPs, which are 10.96.0.0/16.
    pub async fn new(test: &str, pods: usize) -> Option<Cluster> {
        let (node, outside) = (Netns::new(test)?, Netns::new(test)?);
        node.ip(&format!("link add uplink type veth peer name uplink netns {}", outside.name()));
        for (side, number) in [(&node, 1), (&outside, 2)] {
            side.ip(&format!("addr add 192.0.2.{number}/24 dev uplink"));
            side.ip("link set uplink up");
        }
        let up = |side: &Netns| side.ip("-o link show dev uplink").contains("state UP");
        while !(up(&node) && up(&outside)) {
            std::thread::yield_now();
        }
        node.ip("route add default via 192.0.2.2");
        // The node forwards to IPv6 cluster IPs without endpoints, or it would answer that there is no route.
        node.ip("-6 route add default dev uplink");
        outside.ip("route add 10.96.0.0/16 via 192.0.2.1");
        outside.ip("route add 203.0.113.0/24 via 192.0.2.1");
        let state = tempfile::tempdir().unwrap();
        let mut config = NetworkConfig::new("node", state.path().into());
        config.namespace = Some(node.path());
        let network = BridgeNetwork::start(config).await.unwrap();
        network.update_pod_cidrs(vec!["10.244.1.0/24".into(), "fd00:10:244:1::/64".into()]).await.unwrap();
        let mut cluster = Cluster { node, outside, pods: vec![], network, _state: state };
        for number in 0..pods {
            let pod = Netns::new(test)?;
            let setup = NetworkSetup {
                sandbox_id: format!("pod{number}"),
                namespace: pod.path(),
                ..NetworkSetup::default()
            };
            cluster.network.set_up(setup).await.unwrap();
            cluster.pods.push(pod);
        }
        Some(cluster)
    }

    pub fn config(&self) -> NodeConfig {
        let mut config = config();
        config.namespace = Some(self.node.path());
        config.node_ips = vec![ip("192.0.2.1")];
        config
    }
}

//! Connections through the rules.

use crate::support::{Cluster, ip, service, slice};
use kaji_netfilter::{Batch, Element, ElementData, Family, Nftables, set::Key};
use kaji_proxy::{Dataplane, service::compile, tables::TrafficPolicy};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

/// A cluster with the rules of services.
struct Proxied {
    cluster: Cluster,
    dataplane: Dataplane,
}

impl Proxied {
    async fn new(test: &str, pods: usize) -> Option<Proxied> {
        let cluster = Cluster::new(test, pods).await?;
        let names = ["pod0", "pod1", "pod2"];
        for (pod, name) in cluster.pods.iter().zip(names) {
            pod.serve(8080, name);
        }
        let dataplane = Dataplane::start(cluster.config()).await.unwrap();
        dataplane.update(vec![]).await.unwrap();
        Some(Proxied { cluster, dataplane })
    }

    async fn put(&self, name: &str, spec: &Value, endpoints: &[&str]) {
        let protocol = spec["ports"][0]["protocol"].as_str().unwrap_or("TCP");
        let slices = [slice(name, protocol, 8080, endpoints)];
        let compiled = compile(&service(name, spec), &slices, &self.cluster.config());
        self.dataplane.update(vec![(format!("default/{name}"), compiled)]).await.unwrap();
    }

    /// How often each pod answers a client at an address, and from which address.
    fn answers(
        &self,
        client: &kaji_testing::netns::Netns,
        address: &str,
        port: u16,
        count: usize,
    ) -> BTreeMap<String, usize> {
        let mut answers = BTreeMap::new();
        for _ in 0..count {
            let answer = client.ask(ip(address), port).unwrap_or_else(|error| error.to_string());
            *answers.entry(answer).or_default() += 1;
        }
        answers
    }
}

#[tokio::test]
async fn cluster_ips_lead_to_every_endpoint() {
    let Some(proxied) = Proxied::new("cluster_ips", 3).await else { return };
    let spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:10:96::1"]});
    proxied.put("s", &spec, &["10.244.1.3 node", "10.244.1.4 node"]).await;
    let pods = &proxied.cluster.pods;
    let answers = proxied.answers(&pods[0], "10.96.0.1", 80, 40);
    assert_eq!(answers.keys().collect::<Vec<_>>(), ["pod1 10.244.1.2", "pod2 10.244.1.2"], "{answers:?}");
    // From the node, and from outside, where the source is translated.
    let answers = proxied.answers(&proxied.cluster.node, "10.96.0.1", 80, 10);
    assert!(answers.keys().all(|answer| answer.ends_with("10.244.1.1")), "{answers:?}");
    let answers = proxied.answers(&proxied.cluster.outside, "10.96.0.1", 80, 10);
    assert!(answers.keys().all(|answer| answer.ends_with("10.244.1.1")), "{answers:?}");
    // A pod reaches itself.
    proxied.put("s", &spec, &["10.244.1.2 node"]).await;
    let answers = proxied.answers(&pods[0], "10.96.0.1", 80, 3);
    assert_eq!(answers.keys().collect::<Vec<_>>(), ["pod0 10.244.1.1"]);
    // Other ports, and services without endpoints, are refused at once.
    assert_eq!(pods[1].ask(ip("10.96.0.1"), 81), Err(ErrorKind::ConnectionRefused));
    assert_eq!(pods[1].ask(ip("fd00:10:96::1"), 80), Err(ErrorKind::ConnectionRefused));
    proxied.put("s", &spec, &[]).await;
    assert_eq!(pods[1].ask(ip("10.96.0.1"), 80), Err(ErrorKind::ConnectionRefused));
    assert_eq!(proxied.cluster.node.ask(ip("10.96.0.1"), 80), Err(ErrorKind::ConnectionRefused));
    proxied.put("s", &spec, &["fd00:10:244:1::3 node"]).await;
    assert_eq!(pods[0].ask(ip("fd00:10:96::1"), 80), Ok("pod1 fd00:10:244:1::2".into()));
    proxied.dataplane.remove().await.unwrap();
    proxied.cluster.network.remove_all().await.unwrap();
    proxied.cluster.node.run(|| {
        for family in [Family::V4, Family::V6] {
            assert_eq!(Nftables::open().unwrap().tables(family).unwrap(), [""; 0]);
        }
    });
}

#[tokio::test]
async fn node_ports_and_external_traffic_policies() {
    let Some(proxied) = Proxied::new("node_ports", 2).await else { return };
    let mut spec = json!({
        "clusterIP": "10.96.0.2",
        "type": "LoadBalancer",
        "externalIPs": ["203.0.113.5"],
        "ports": [{"port": 80, "nodePort": 30080}],
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}},
    });
    proxied.put("s", &spec, &["10.244.1.2 node", "10.244.1.3 other"]).await;
    let Cluster { outside, node, pods, .. } = &proxied.cluster;
    for (address, port) in [("192.0.2.1", 30080), ("203.0.113.5", 80), ("203.0.113.9", 80)] {
        let answers = proxied.answers(outside, address, port, 30);
        let expected = ["pod0 10.244.1.1", "pod1 10.244.1.1"];
        assert_eq!(answers.keys().collect::<Vec<_>>(), expected, "{address} {answers:?}");
    }
    // Local: only this node's endpoint from outside, with the client's address; all of them from here.
    spec["externalTrafficPolicy"] = "Local".into();
    proxied.put("s", &spec, &["10.244.1.2 node", "10.244.1.3 other"]).await;
    for (address, port) in [("192.0.2.1", 30080), ("203.0.113.5", 80), ("203.0.113.9", 80)] {
        let answers = proxied.answers(outside, address, port, 10);
        assert_eq!(answers.keys().collect::<Vec<_>>(), ["pod0 192.0.2.2"], "{address}");
        assert_eq!(proxied.answers(node, address, port, 30).len(), 2, "{address}");
    }
    // Without a local endpoint, packets from outside are dropped; pods still get there.
    proxied.put("s", &spec, &["10.244.1.3 other"]).await;
    assert_eq!(outside.ask(ip("192.0.2.1"), 30080), Err(ErrorKind::TimedOut));
    assert_eq!(pods[0].ask(ip("203.0.113.9"), 80), Ok("pod1 10.244.1.2".into()));
    // Source ranges restrict the load balancer's address only.
    spec["externalTrafficPolicy"] = "Cluster".into();
    spec["loadBalancerSourceRanges"] = json!(["198.51.100.0/24"]);
    proxied.put("s", &spec, &["10.244.1.2 node"]).await;
    assert_eq!(outside.ask(ip("203.0.113.9"), 80), Err(ErrorKind::TimedOut));
    assert_eq!(outside.ask(ip("203.0.113.5"), 80), Ok("pod0 10.244.1.1".into()));
    spec["loadBalancerSourceRanges"] = json!(["198.51.100.0/24", "192.0.2.0/28"]);
    proxied.put("s", &spec, &["10.244.1.2 node"]).await;
    assert_eq!(outside.ask(ip("203.0.113.9"), 80), Ok("pod0 10.244.1.1".into()));
}

#[tokio::test]
async fn clients_keep_their_endpoint_and_lose_it_with_the_endpoint() {
    let Some(proxied) = Proxied::new("affinity", 3).await else { return };
    let spec = json!({
        "clusterIP": "10.96.0.3",
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
    });
    let endpoints = ["10.244.1.2 node", "10.244.1.3 node", "10.244.1.4 node"];
    proxied.put("s", &spec, &endpoints).await;
    let Cluster { outside, .. } = &proxied.cluster;
    let first = proxied.answers(outside, "10.96.0.3", 80, 20);
    assert_eq!(first.len(), 1, "{first:?}");
    let chosen = first.keys().next().unwrap()[3..4].parse::<usize>().unwrap();
    // A rewrite of the whole tables keeps it too.
    proxied.dataplane.reconfigure(proxied.cluster.config()).await.unwrap();
    proxied.put("s", &spec, &endpoints).await;
    assert_eq!(proxied.answers(outside, "10.96.0.3", 80, 20), first);
    let others: Vec<&str> =
        endpoints.iter().enumerate().filter(|(i, _)| *i != chosen).map(|(_, e)| *e).collect();
    proxied.put("s", &spec, &others).await;
    let next = proxied.answers(outside, "10.96.0.3", 80, 20);
    assert_eq!(next.len(), 1, "{next:?}");
    assert_ne!(next, first);
}

#[tokio::test]
async fn a_local_policy_takes_clients_from_remote_endpoints() {
    let Some(proxied) = Proxied::new("local_affinity", 2).await else { return };
    let mut spec = json!({
        "clusterIP": "10.96.0.5",
        "type": "LoadBalancer",
        "sessionAffinity": "ClientIP",
        "ports": [{"port": 80, "nodePort": 30081}],
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}},
    });
    let Cluster { outside, .. } = &proxied.cluster;
    let asked = [("192.0.2.1", 30081), ("203.0.113.9", 80)];
    proxied.put("s", &spec, &["10.244.1.3 other"]).await;
    for (address, port) in asked {
        assert_eq!(outside.ask(ip(address), port), Ok("pod1 10.244.1.1".into()), "{address}");
    }
    spec["externalTrafficPolicy"] = "Local".into();
    proxied.put("s", &spec, &["10.244.1.2 node", "10.244.1.3 other"]).await;
    for (address, port) in asked {
        assert_eq!(outside.ask(ip(address), port), Ok("pod0 192.0.2.2".into()), "{address}");
    }
}

/// The pods that answered.
fn pod_names(answers: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let name = |answer: String| {
        assert!(answer.starts_with("pod"), "{answer}");
        answer.split(' ').next().unwrap().to_owned()
    };
    answers.into_iter().map(name).collect()
}

#[tokio::test]
async fn clients_keep_their_endpoint_by_every_destination_of_a_service() {
    let Some(proxied) = Proxied::new("affinity_of_ports", 3).await else { return };
    let spec = json!({
        "clusterIP": "10.96.0.8",
        "clusterIPs": ["10.96.0.8", "fd00:10:96::8"],
        "type": "NodePort",
        "externalIPs": ["203.0.113.5", "2001:db8::5"],
        "sessionAffinity": "ClientIP",
        "ports": [{"port": 80, "nodePort": 30082}],
    });
    let asked = |client, destinations: &[(&str, u16)]| {
        let ask = |(address, port): &(&str, u16)| proxied.answers(client, address, *port, 8).into_keys();
        pod_names(destinations.iter().flat_map(ask))
    };
    let Cluster { outside, pods, .. } = &proxied.cluster;
    proxied.put("s", &spec, &["10.244.1.2 node", "10.244.1.3 node", "10.244.1.4 node"]).await;
    let answers = asked(outside, &[("10.96.0.8", 80), ("203.0.113.5", 80), ("192.0.2.1", 30082)]);
    assert_eq!(answers.len(), 1, "{answers:?}");
    proxied.put("s", &spec, &["fd00:10:244:1::3 node", "fd00:10:244:1::4 node"]).await;
    // The first packets wait until the neighbours are known, and may be lost.
    let answers = || pods[0].ask(ip("fd00:10:96::8"), 80).is_ok();
    assert!((0..10).any(|_| answers()));
    let answers = asked(&pods[0], &[("fd00:10:96::8", 80), ("2001:db8::5", 80)]);
    assert_eq!(answers.len(), 1, "{answers:?}");
}

#[tokio::test]
async fn a_local_policy_restricts_which_endpoint_clients_keep() {
    let Some(proxied) = Proxied::new("affinity_by_policy", 3).await else { return };
    let spec = json!({
        "clusterIP": "10.96.0.9",
        "type": "NodePort",
        "externalTrafficPolicy": "Local",
        "sessionAffinity": "ClientIP",
        "ports": [{"port": 80, "nodePort": 30083}],
    });
    let local = ["10.244.1.2 node", "10.244.1.3 node"];
    let Cluster { outside, .. } = &proxied.cluster;
    let cluster_ip = || pod_names(proxied.answers(outside, "10.96.0.9", 80, 10).into_keys());
    let node_port = || pod_names(proxied.answers(outside, "192.0.2.1", 30083, 10).into_keys());
    let remote = BTreeSet::from(["pod2".to_owned()]);
    proxied.put("s", &spec, &["10.244.1.4 other"]).await;
    assert_eq!(cluster_ip(), remote);
    // The node port leads to an endpoint of this node, always the same; the cluster IP to the one that it led to.
    proxied.put("s", &spec, &[local[0], local[1], "10.244.1.4 other"]).await;
    let chosen = node_port();
    assert_eq!(chosen.len(), 1, "{chosen:?}");
    assert_ne!(chosen, remote);
    assert_eq!(cluster_ip(), remote);
    assert_eq!(node_port(), chosen);
    // When that is gone, the node port's is one for the cluster IP too.
    proxied.put("s", &spec, &local).await;
    assert_eq!(cluster_ip(), chosen);
}

#[tokio::test]
async fn a_full_map_of_clients_refuses_no_connection() {
    let Some(proxied) = Proxied::new("full_affinity", 1).await else { return };
    let spec = json!({"clusterIP": "10.96.0.7", "sessionAffinity": "ClientIP"});
    proxied.put("s", &spec, &["10.244.1.2 node"]).await;
    let map = TrafficPolicy::Cluster.affinity_spec(Family::V4);
    let table = proxied.cluster.config().table;
    let endpoint = ElementData::Value(Key::new().address(ip("10.244.1.2")).port(8080).bytes());
    let client = |number: u32| {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number);
        let key = Key::new().address(address.into()).address(ip("10.96.0.7")).protocol(6).port(80);
        let hour = Duration::from_secs(3600);
        Element { timeout: Some((hour, hour)), ..Element::new(key.bytes(), endpoint.clone()) }
    };
    let clients: Vec<Element> = (0..map.dynamic.unwrap()).map(client).collect();
    let Cluster { node, outside, .. } = &proxied.cluster;
    node.run(|| {
        for some in clients.chunks(8192) {
            let mut batch = Batch::new(Family::V4, &table);
            batch.add_elements(&map, some);
            Nftables::open().unwrap().apply(&batch).unwrap();
        }
    });
    assert_eq!(outside.ask(ip("10.96.0.7"), 80), Ok("pod0 10.244.1.1".into()));
    let known = node.run(|| Nftables::open().unwrap().elements(Family::V4, &table, &map).unwrap());
    let keys: BTreeSet<&[u8]> = known.iter().map(|client| client.key.as_slice()).collect();
    assert_eq!(keys.len(), clients.len());
    assert!(keys.iter().all(|key| key[0] == 198), "there is no room for the client");
}

#[tokio::test]
async fn endpoints_get_an_even_share() {
    let Some(proxied) = Proxied::new("even_share", 3).await else { return };
    let spec = json!({"clusterIP": "10.96.0.6"});
    proxied.put("s", &spec, &["10.244.1.2 node", "10.244.1.3 node", "10.244.1.4 node"]).await;
    let answers = proxied.answers(&proxied.cluster.outside, "10.96.0.6", 80, 600);
    // 200 each, with a standard deviation of 11.5: six of them.
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert!(answers.values().all(|count| (131..=269).contains(count)), "{answers:?}");
}

#[tokio::test]
async fn udp_flows_leave_endpoints_that_are_gone() {
    let Some(proxied) = Proxied::new("udp_flows", 2).await else { return };
    let spec = json!({"clusterIP": "10.96.0.4", "ports": [{"port": 53, "protocol": "UDP"}]});
    let Cluster { outside, pods, .. } = &proxied.cluster;
    let servers: Vec<UdpSocket> =
        pods.iter().map(|pod| pod.run(|| UdpSocket::bind("0.0.0.0:8080").unwrap())).collect();
    let timeout = Some(std::time::Duration::from_millis(1500));
    servers.iter().for_each(|server| server.set_read_timeout(timeout).unwrap());
    let client = outside.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    for (server, endpoint) in servers.iter().zip(["10.244.1.2 node", "10.244.1.3 node"]) {
        proxied.put("dns", &spec, &[endpoint]).await;
        // The same socket: the connection that is tracked would lead to the first endpoint.
        client.send_to(b"question", "10.96.0.4:53").unwrap();
        let mut buffer = [0; 16];
        let (length, _) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"question");
    }
}

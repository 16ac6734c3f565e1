//! Pods on a bridge: they reach each other, the outside and host ports; nothing is left behind.

use crate::support::{World, setup};
use kaji_containers::PodNetwork;
use kaji_netfilter::{Family, Nftables};
use kaji_network::PeerNode;
use kaji_testing::netns::Netns;
use std::{net::IpAddr, time::Instant};

const RANGES: [&str; 2] = ["10.244.1.0/24", "fd00:10:244:1::/64"];

fn ranges() -> Vec<String> {
    RANGES.map(str::to_owned).to_vec()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Links of the node but for those that the test made.
fn links(world: &World) -> Vec<String> {
    let text = world.node.ip("-o link show");
    let names = text.lines().filter_map(|line| line.split([':', '@']).nth(1));
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with('k')).collect()
}

#[tokio::test]
async fn pods_reach_each_other_and_the_outside() {
    let Some(world) = World::new("pods_reach_each_other") else { return };
    let (Some(a), Some(b)) = (Netns::new("pods"), Netns::new("pods")) else { return };
    let network = world.network().await;
    assert_eq!(network.unavailable_reason().await.as_deref(), Some("the node has no pod CIDR"));
    network.update_pod_cidrs(ranges()).await.unwrap();
    assert_eq!(network.unavailable_reason().await, None);
    let first = network.set_up(setup(&a, "sandbox-a", &[])).await.unwrap().addresses;
    let second = network.set_up(setup(&b, "sandbox-b", &[(8080, 80)])).await.unwrap().addresses;
    assert_eq!(first, [ip("10.244.1.2"), ip("fd00:10:244:1::2")]);
    assert_eq!(second, [ip("10.244.1.3"), ip("fd00:10:244:1::3")]);
    // Again: the same answer.
    assert_eq!(network.set_up(setup(&a, "sandbox-a", &[])).await.unwrap().addresses, first);
    b.serve(80, "b");
    world.outside.serve(90, "outside");
    for (own, other) in first.iter().zip(&second) {
        assert_eq!(a.ask(*other, 80), Ok(format!("b {own}")));
        assert_eq!(world.node.ask(*other, 80).map(|text| text.len() > 2), Ok(true));
    }
    // Masquerade: the outside knows no way to pods.
    assert_eq!(a.ask(ip("192.0.2.2"), 90), Ok("outside 192.0.2.1".into()));
    assert_eq!(a.ask(ip("fd99::2"), 90), Ok("outside fd99::1".into()));
    // Host ports, from outside with the client's address, from the node, from the pod itself.
    assert_eq!(world.outside.ask(ip("192.0.2.1"), 8080), Ok("b 192.0.2.2".into()));
    assert_eq!(world.outside.ask(ip("fd99::1"), 8080), Ok("b fd99::2".into()));
    assert_eq!(world.node.ask(ip("192.0.2.1"), 8080).map(|text| text.len() > 2), Ok(true));
    assert_eq!(world.node.ask(ip("127.0.0.1"), 8080), Ok("b 10.244.1.1".into()));
    assert_eq!(b.ask(ip("192.0.2.1"), 8080), Ok("b 10.244.1.1".into()));
    for (namespace, sandbox) in [(&a, "sandbox-a"), (&b, "sandbox-b"), (&b, "sandbox-b")] {
        network.tear_down(setup(namespace, sandbox, &[])).await.unwrap();
    }
    assert_eq!(links(&world), ["kaji0"]);
    assert!(world.outside.ask(ip("192.0.2.1"), 8080).is_err());
    network.remove_all().await.unwrap();
    assert_eq!(links(&world), [""; 0]);
    world.node.run(|| {
        for family in [Family::V4, Family::V6] {
            assert_eq!(Nftables::open().unwrap().tables(family).unwrap(), [""; 0]);
        }
    });
}

#[tokio::test]
async fn a_new_process_adopts_pods_and_sweeps_what_nothing_owns() {
    let Some(world) = World::new("adopts_pods") else { return };
    let pods: Vec<Netns> = (0..3).filter_map(|_| Netns::new("adopts_pods")).collect();
    let network = world.network().await;
    network.update_pod_cidrs(ranges()).await.unwrap();
    let mut addresses = vec![];
    for (pod, sandbox) in pods.iter().zip(["one", "two", "three"]) {
        addresses.push(
            network
                .set_up(setup(pod, sandbox, &[(9000, 80)][..usize::from(sandbox == "one")]))
                .await
                .unwrap(),
        );
    }
    drop(network);
    pods[0].serve(80, "one");
    let network = world.network().await;
    // Before the node is read, and after.
    assert_eq!(network.adopt(setup(&pods[0], "one", &[])).await.unwrap(), addresses[0]);
    network.update_pod_cidrs(ranges()).await.unwrap();
    assert_eq!(network.adopt(setup(&pods[1], "two", &[])).await.unwrap(), addresses[1]);
    assert_eq!(world.outside.ask(ip("192.0.2.1"), 9000), Ok("one 192.0.2.2".into()));
    assert!(network.adopt(setup(&pods[1], "unknown", &[])).await.is_err());
    // A host port is taken once.
    let spare = Netns::new("adopts_pods").unwrap();
    let error = network.set_up(setup(&spare, "four", &[(9000, 80)])).await.unwrap_err();
    assert_eq!(error.to_string(), "pod network: host port 9000 of default/one is taken by another pod");
    // The interface of a pod is lost: it is made anew with the same addresses.
    pods[1].ip("link delete eth0");
    assert!(network.adopt(setup(&pods[1], "two", &[])).await.is_err());
    assert_eq!(network.set_up(setup(&pods[1], "two", &[])).await.unwrap(), addresses[1]);
    network.sweep(vec!["one".into()]).await.unwrap();
    assert_eq!(links(&world).len(), 2);
    let records = std::fs::read_dir(world.state.path().join("addresses")).unwrap().count();
    assert_eq!(records, 1);
    let next = network.set_up(setup(&spare, "four", &[])).await.unwrap();
    assert!(!addresses.contains(&next), "released addresses come last");
}

#[tokio::test]
async fn limits_bandwidth_by_annotations() {
    let Some(world) = World::new("limits_bandwidth") else { return };
    let Some(pod) = Netns::new("limits_bandwidth") else { return };
    let network = world.network().await;
    network.update_pod_cidrs(ranges()).await.unwrap();
    let mut limited = setup(&pod, "limited", &[]);
    limited.annotations.insert("kubernetes.io/ingress-bandwidth".into(), "10M".into());
    limited.annotations.insert("kubernetes.io/egress-bandwidth".into(), "1".into());
    let error = network.set_up(limited.clone()).await.unwrap_err();
    assert!(error.to_string().contains("unreasonably small"), "{error}");
    limited.annotations.insert("kubernetes.io/egress-bandwidth".into(), "20M".into());
    network.set_up(limited.clone()).await.unwrap();
    let all = links(&world);
    assert_eq!(all.iter().filter(|name| name.starts_with("ki")).count(), 1, "{all:?}");
    let queues: Vec<bool> = all
        .iter()
        .filter(|name| *name != "kaji0")
        .map(|name| world.node.ip(&format!("link show dev {name}")).contains("qdisc tbf"))
        .collect();
    assert_eq!(queues, [true, true]);
    network.tear_down(limited).await.unwrap();
    assert_eq!(links(&world), ["kaji0"]);
}

#[tokio::test]
async fn nodes_have_routes_to_each_others_pods() {
    let Some(world) = World::new("nodes_have_routes") else { return };
    let network = world.network().await;
    network.update_pod_cidrs(ranges()).await.unwrap();
    let node = |name: &str, number: u8, ip: &str| PeerNode {
        name: name.into(),
        pod_cidrs: vec![format!("10.244.{number}.0/24").parse().unwrap()],
        internal_ips: vec![ip.parse().unwrap()],
    };
    let nodes =
        vec![node("node", 1, "192.0.2.1"), node("near", 2, "192.0.2.2"), node("far", 3, "198.51.100.7")];
    network.update_peers(nodes.clone()).await.unwrap();
    let routes = || world.node.ip("-4 route show proto 75");
    let routed = routes();
    assert!(routed.contains("10.244.2.0/24 via 192.0.2.2 dev uplink"), "{routed}");
    assert!(routed.contains("10.244.3.0/24 via 10.244.3.0 dev kaji0.vx onlink"), "{routed}");
    let forwarding = world.node.ip("neigh show dev kaji0.vx");
    assert!(forwarding.contains("10.244.3.0 lladdr 0a:6b:"), "{forwarding}");
    network.update_peers(nodes.clone()).await.unwrap();
    assert_eq!(routes(), routed);
    network.update_peers(nodes[..2].to_vec()).await.unwrap();
    assert!(!routes().contains("10.244.3.0"));
    assert!(!links(&world).contains(&"kaji0.vx".to_owned()));
    network.update_peers(nodes[..1].to_vec()).await.unwrap();
    assert_eq!(routes(), "");
}

/// Not a test of speed: prints what it measures.
#[tokio::test]
async fn prints_the_time_of_a_pod() {
    let Some(world) = World::new("prints_the_time") else { return };
    let pods: Vec<Netns> = (0..20).filter_map(|_| Netns::new("prints_the_time")).collect();
    let network = world.network().await;
    network.update_pod_cidrs(ranges()).await.unwrap();
    let (mut up, mut down) = (vec![], vec![]);
    for (number, pod) in pods.iter().enumerate() {
        let start = Instant::now();
        network.set_up(setup(pod, &format!("pod{number}"), &[])).await.unwrap();
        up.push(start.elapsed());
    }
    for (number, pod) in pods.iter().enumerate() {
        let start = Instant::now();
        network.tear_down(setup(pod, &format!("pod{number}"), &[])).await.unwrap();
        down.push(start.elapsed());
    }
    up.sort();
    down.sort();
    println!("MEASURED set up p50 {:?} p99 {:?}, tear down p50 {:?}", up[10], up[19], down[10]);
    assert_eq!(links(&world), ["kaji0"]);
}

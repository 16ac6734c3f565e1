//! Network policies, compiled and in force.

use crate::support::{Cluster, ip};
use kaji_netfilter::{Family, Nftables};
use kaji_proxy::policy::{
    NetworkPolicy, PolicyConfig, compile,
    compile::{Direction, PolicyObjects, Ports},
    enforce, remove,
};
use kaji_runtime::{
    ObjectSnapshot,
    objects::{Namespace, Pod},
};
use serde_json::{Value, json};
use std::{io::ErrorKind, time::Duration};

fn pod(number: u8, namespace: &str, labels: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod{number}"), "namespace": namespace, "labels": labels},
        "spec": {
            "nodeName": "node",
            "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": format!("10.244.1.{}", number + 2),
            "podIPs": [{"ip": format!("10.244.1.{}", number + 2)}, {"ip": format!("fd00:10:244:1::{}", number + 2)}],
        },
    }))
    .unwrap()
}

fn policy(name: &str, spec: &Value) -> NetworkPolicy {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "a"}, "spec": spec})).unwrap()
}

/// Pods 0 and 1 in namespace `a`, 2 in `b`.
fn world(policies: Vec<NetworkPolicy>) -> PolicyObjects {
    let namespace = |name: &str| -> Namespace {
        let labels = json!({"kubernetes.io/metadata.name": name});
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    };
    PolicyObjects {
        policies: ObjectSnapshot::of(policies),
        pods: ObjectSnapshot::of([
            pod(0, "a", &json!({"app": "server"})),
            pod(1, "a", &json!({"app": "client"})),
            pod(2, "b", &json!({"app": "client"})),
        ]),
        namespaces: ObjectSnapshot::of([namespace("a"), namespace("b")]),
        local: Default::default(),
    }
}

#[test]
fn policy_types_default_to_what_has_rules() {
    let directions = |spec: Value| policy("p", &spec).directions();
    assert_eq!(directions(json!({})), (true, false));
    assert_eq!(directions(json!({"egress": [{}]})), (true, true));
    assert_eq!(directions(json!({"policyTypes": ["Egress"]})), (false, true));
}

#[test]
fn named_ports_are_those_of_the_destination() {
    let named = json!([{"ports": [{"port": "web"}, {"port": "none"}]}]);
    let spec = json!({"podSelector": {"matchLabels": {"app": "server"}}, "ingress": named, "egress": named});
    let rules = compile(&world(vec![policy("p", &spec)]), "node").v4;
    let ports = |direction| {
        let chain = rules.chains.iter().find(|(own, _)| *own == direction).unwrap();
        let [accept] = &chain.1[..] else { panic!("{chain:?}") };
        let Ports::Of(ports) = &accept.ports else { panic!("{accept:?}") };
        ports.iter().map(|(ip, _, port)| format!("{ip}:{port}")).collect::<Vec<_>>()
    };
    assert_eq!(ports(Direction::Ingress), ["10.244.1.2:8080"]);
    assert_eq!(ports(Direction::Egress), ["10.244.1.2:8080", "10.244.1.3:8080", "10.244.1.4:8080"]);
    // Pods of other nodes are not restricted here.
    assert_eq!(compile(&world(vec![policy("p", &spec)]), "other").v4, Default::default());
}

/// Which clients reach pod 0's port over both families: pods 1 and 2, by the port.
fn reached(cluster: &Cluster, port: u16) -> [bool; 2] {
    [1, 2].map(|client: usize| {
        let answers = ["10.244.1.2", "fd00:10:244:1::2"].map(|address| {
            match cluster.pods[client].ask(ip(address), port) {
                Ok(_) => true,
                Err(ErrorKind::TimedOut) => false,
                Err(error) => panic!("{address}:{port}: {error}"),
            }
        });
        assert_eq!(answers[0], answers[1], "both families are alike");
        answers[0]
    })
}

#[tokio::test]
async fn policies_allow_and_deny() {
    let Some(cluster) = Cluster::new("policies_allow_and_deny", 3).await else { return };
    for port in [8080, 8081, 8090] {
        cluster.pods[0].serve(port, "pod0");
    }
    let mut config = PolicyConfig::new("node");
    config.namespace = Some(cluster.node.path());
    let put = |policies: Vec<NetworkPolicy>| {
        enforce(&config, None, &compile(&world(policies), "node")).unwrap();
    };
    put(vec![]);
    assert_eq!(reached(&cluster, 8080), [true, true]);
    let server = json!({"matchLabels": {"app": "server"}});
    // Nothing is allowed; but the node reaches its pod, and the pod itself.
    put(vec![policy("deny", &json!({"podSelector": server}))]);
    assert_eq!(reached(&cluster, 8080), [false, false]);
    assert!(cluster.node.ask(ip("10.244.1.2"), 8080).is_ok());
    assert!(cluster.pods[0].ask(ip("10.244.1.2"), 8080).is_ok());
    let from = |peer: Value, ports: Value| {
        policy("allow", &json!({"podSelector": server, "ingress": [{"from": [peer], "ports": ports}]}))
    };
    put(vec![from(json!({"podSelector": {}}), json!([{"port": 8080, "endPort": 8085}]))]);
    assert_eq!(reached(&cluster, 8081), [true, false]);
    assert_eq!(reached(&cluster, 8090), [false, false]);
    let other = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}});
    put(vec![from(other, json!([{"port": "web"}]))]);
    assert_eq!(reached(&cluster, 8080), [false, true]);
    assert_eq!(reached(&cluster, 8081), [false, false]);
    // Two policies add up: blocks with an exception, both families.
    let v4 = json!({"ipBlock": {"cidr": "10.244.1.0/24", "except": ["10.244.1.4/32"]}});
    let v6 = json!({"ipBlock": {"cidr": "fd00:10:244:1::/64", "except": ["fd00:10:244:1::4/128"]}});
    let blocks = policy("blocks", &json!({"podSelector": server, "ingress": [{"from": [v4, v6]}]}));
    put(vec![blocks]);
    assert_eq!(reached(&cluster, 8080), [true, false]);
    // Egress of the clients of namespace `a`.
    let client = json!({"matchLabels": {"app": "client"}});
    let egress = |rules: Value| {
        policy("egress", &json!({"podSelector": client, "policyTypes": ["Egress"], "egress": rules}))
    };
    put(vec![egress(json!([]))]);
    assert_eq!(reached(&cluster, 8080), [false, true]);
    cluster.node.serve(9999, "node");
    assert_eq!(cluster.pods[1].ask(ip("10.244.1.1"), 9999), Err(ErrorKind::TimedOut));
    put(vec![egress(json!([{"to": [{"podSelector": server}]}]))]);
    assert_eq!(reached(&cluster, 8080), [true, true]);
    remove(&config).unwrap();
    cluster.node.run(|| {
        for family in [Family::V4, Family::V6] {
            let tables = Nftables::open().unwrap().tables(family).unwrap();
            assert!(!tables.contains(&config.table), "{tables:?}");
        }
    });
}

#[tokio::test]
async fn connections_that_are_open_end_only_by_new_rules_for_new_ones() {
    let Some(cluster) = Cluster::new("open_connections", 2).await else { return };
    let mut config = PolicyConfig::new("node");
    config.namespace = Some(cluster.node.path());
    enforce(&config, None, &compile(&world(vec![]), "node")).unwrap();
    let listener = cluster.pods[0].run(|| std::net::TcpListener::bind("0.0.0.0:8080").unwrap());
    let client = cluster.pods[1].run(|| std::net::TcpStream::connect("10.244.1.2:8080").unwrap());
    let (mut server, _) = listener.accept().unwrap();
    enforce(&config, None, &compile(&world(vec![policy("deny", &json!({}))]), "node")).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    std::io::Write::write_all(&mut server, b"x").unwrap();
    let mut buffer = [0; 1];
    std::io::Read::read_exact(&mut &client, &mut buffer).unwrap();
    assert_eq!(cluster.pods[1].ask(ip("10.244.1.2"), 8080), Err(ErrorKind::TimedOut));
}

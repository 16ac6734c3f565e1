//! Many services. Not tests of speed: they print what they measure.

use crate::support::{config, service, slice};
use kaji_netfilter::{Family, Nftables};
use kaji_proxy::{
    Dataplane,
    changes::Ruleset,
    service::{Compiled, compile},
    tables::SetId,
};
use kaji_testing::netns::Netns;
use serde_json::json;
use std::time::Instant;

const SERVICES: u32 = 10_000;

fn compiled(number: u32, last: u8) -> (String, Compiled) {
    let name = format!("s{number}");
    let cluster_ip = std::net::Ipv4Addr::from(0x0a60_0000 + number + 1).to_string();
    let first = format!("10.244.1.{}", number % 200 + 2);
    let second = format!("10.245.1.{last}");
    let slices = [slice(&name, "TCP", 8080, &[&first, &second])];
    let spec = json!({"clusterIP": cluster_ip, "ports": [{"port": 80, "nodePort": 1000 + number}]});
    (name.clone(), compile(&service(&name, &spec), &slices, &config()))
}

#[test]
fn a_change_of_one_service_is_a_few_elements() {
    let mut ruleset = Ruleset::default();
    for number in 0..1000 {
        let (name, compiled) = compiled(number, 9);
        ruleset.update(&name, compiled.v4);
    }
    let (name, compiled) = compiled(500, 10);
    let changes = ruleset.update(&name, compiled.v4);
    // One endpoint by two destinations: removed and added.
    assert_eq!(changes.len(), 4);
    assert!(changes.batch(Family::V4, &config()).encode().len() < 2048);
}

#[tokio::test]
async fn prints_the_time_of_a_change_among_many_services() {
    let Some(namespace) = Netns::new("a_change_among_many_services") else { return };
    let mut node = config();
    node.namespace = Some(namespace.path());
    let dataplane = Dataplane::start(node).await.unwrap();
    let start = Instant::now();
    let all: Vec<_> = (0..SERVICES).map(|number| compiled(number, 9)).collect();
    let computed = start.elapsed();
    let start = Instant::now();
    let elements = dataplane.update(all).await.unwrap();
    let loaded = start.elapsed();
    let mut changes = vec![];
    for round in 0..50_u8 {
        let one = compiled(u32::from(round) * 7, 10 + round);
        let start = Instant::now();
        assert_eq!(dataplane.update(vec![one]).await.unwrap(), 4);
        changes.push(start.elapsed());
    }
    changes.sort();
    println!(
        "MEASURED {SERVICES} services: {elements} elements, computed in {computed:?}, loaded in {loaded:?}; one change p50 {:?} at most {:?}",
        changes[25], changes[49]
    );
    // What the kernel has: two endpoints by two destinations, of each service.
    let spec = SetId::Endpoints.spec(Family::V4);
    let table = config().table;
    let endpoints = namespace.run(|| Nftables::open().unwrap().elements(Family::V4, &table, &spec).unwrap());
    assert_eq!(endpoints.len(), SERVICES as usize * 4);
    dataplane.remove().await.unwrap();
}

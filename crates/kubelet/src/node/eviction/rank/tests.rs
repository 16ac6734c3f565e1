//! Ranking and messages by fixtures, and the order by properties.

use super::super::assess::Observation;
use super::super::thresholds::Amount;
use super::super::usage::ContainerUsage;
use super::*;
use kaji_files::DirectoryUsage;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn pod(name: &str, priority: i32, request: &str) -> Arc<Pod> {
    let requests = match request {
        "" => json!({}),
        amount => json!({"requests": {"memory": amount, "ephemeral-storage": amount}}),
    };
    let pod = json!({
        "metadata": {"name": name, "namespace": "n", "uid": name},
        "spec": {"priority": priority, "containers": [{"name": "c", "resources": requests}]},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn usage(memory: u64, layer: u64, logs: u64, volume: u64) -> PodUsage {
    let disk = |bytes| DirectoryUsage { bytes, inodes: bytes / MIB };
    let container = ContainerUsage { name: "c".into(), memory, layer: disk(layer), logs: disk(logs) };
    PodUsage {
        memory,
        processes: memory / MIB,
        containers: vec![container],
        volumes: BTreeMap::from([("v".to_owned(), disk(volume))]),
    }
}

fn threshold(signal: Signal, grace: u64) -> Threshold {
    Threshold { signal, least: Amount::Part(0.1), grace: Duration::from_secs(grace), reclaim: None }
}

#[test]
fn what_exceeds_its_request_goes_first_then_the_lower_priority_then_the_larger() {
    let pods = [
        pod("within", 0, "500Mi"),
        pod("high", 1000, "1Mi"),
        pod("large", 0, "10Mi"),
        pod("small", 0, "10Mi"),
        pod("system", 2_000_000_000, ""),
        pod("unknown", 5, "1Mi"),
    ];
    let used = |memory, layer, logs, volume| usage(memory * MIB, layer * MIB, logs * MIB, volume * MIB);
    let usage = HashMap::from([
        ("within".to_owned(), used(400, 1, 1, 1)),
        ("high".to_owned(), used(900, 90, 0, 0)),
        ("large".to_owned(), used(200, 0, 0, 80)),
        ("small".to_owned(), used(100, 50, 0, 20)),
        ("system".to_owned(), used(2000, 999, 0, 0)),
    ]);
    let names = |layout, signal| {
        let candidates = Candidates { pods: &pods, usage: &usage, layout };
        let names: Vec<_> = candidates.ranked(signal).iter().map(|p| model::name(p)).collect::<Vec<_>>();
        names.join(" ")
    };
    let shown = [
        names(DiskLayout::Shared, Signal::MemoryAvailable),
        names(DiskLayout::Shared, Signal::PidAvailable),
        names(DiskLayout::Shared, Signal::NodeFsAvailable),
        names(DiskLayout::ImagesAndLayers, Signal::NodeFsAvailable),
        names(DiskLayout::ImagesAndLayers, Signal::ImageFsAvailable),
        names(DiskLayout::ImagesAndLayers, Signal::NodeFsInodesFree),
        names(DiskLayout::ImagesAndLayers, Signal::ContainerFsAvailable),
        names(DiskLayout::Images, Signal::ContainerFsAvailable),
        names(DiskLayout::Images, Signal::ImageFsAvailable),
    ];
    expect_test::expect![[r#"
        unknown large small high within
        within large small unknown high
        unknown large small high within
        unknown large small within high
        unknown small high large within
        unknown large small within high
        unknown small high large within
        unknown large small high within
        unknown large small within high"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn messages_are_upstream_s() {
    let pods = [pod("p", 0, "10Mi")];
    let usage = HashMap::from([("p".to_owned(), usage(200 * MIB, 3 * MIB, 9 * MIB, 0))]);
    let candidates = Candidates { pods: &pods, usage: &usage, layout: DiskLayout::Shared };
    let observations = BTreeMap::from([
        (Signal::MemoryAvailable, Observation { available: 50 << 20, capacity: 1000 << 20 }),
        (Signal::NodeFsAvailable, Observation { available: 5 << 30, capacity: 100 << 30 }),
        (Signal::NodeFsInodesFree, Observation { available: 7, capacity: 1000 }),
        (Signal::PidAvailable, Observation { available: 10, capacity: 32768 }),
    ]);
    let shown: Vec<String> = [
        (Signal::MemoryAvailable, 0),
        (Signal::NodeFsAvailable, 0),
        (Signal::NodeFsInodesFree, 60),
        (Signal::PidAvailable, 0),
    ]
    .into_iter()
    .map(|(signal, grace)| {
        let chosen = candidates.choose(&[threshold(signal, grace)], &observations, 20).unwrap();
        format!("{} {}|", chosen.grace, chosen.message)
    })
    .collect();
    expect_test::expect![[r#"
        1 The node was low on resource: memory. Threshold quantity: 104857601, available: 50Mi. Container c was using 200Mi, request is 10Mi, has larger consumption of memory. |
        1 The node was low on resource: ephemeral-storage. Threshold quantity: 10737418400, available: 5Gi. Container c was using 12Mi, request is 10Mi, has larger consumption of ephemeral-storage. |
        20 The node was low on resource: inodes. Threshold quantity: 100, available: 7. |
        1 The node was low on resource: pids. Threshold quantity: 3276, available: 10. |"#]]
    .assert_eq(&shown.join("\n"));
}

proptest! {
    #[test]
    fn no_pod_goes_before_one_that_has_to_go_first(
        facts in proptest::collection::vec((0..3_i32, 0..40_u64, 0..40_u64), 0..12),
    ) {
        let pods: Vec<_> =
            facts.iter().enumerate().map(|(i, (priority, request, _))| pod(&i.to_string(), *priority, &format!("{request}Mi"))).collect();
        let usage: HashMap<_, _> =
            facts.iter().enumerate().map(|(i, (_, _, used))| (i.to_string(), usage(used * MIB, 0, used * MIB, 0))).collect();
        let candidates = Candidates { pods: &pods, usage: &usage, layout: DiskLayout::Shared };
        for signal in [Signal::MemoryAvailable, Signal::NodeFsAvailable] {
            let order: Vec<_> = candidates.ranked(signal).iter().map(|p| facts[model::name(p).parse::<usize>().unwrap()]).collect();
            prop_assert_eq!(order.len(), facts.len());
            for pair in order.windows(2) {
                let ((p1, r1, u1), (p2, r2, u2)) = (pair[0], pair[1]);
                let (first, second) = (u1 > r1, u2 > r2);
                prop_assert!(first || !second);
                prop_assert!(first != second || p1 <= p2);
                prop_assert!(first != second || p1 != p2 || i128::from(u1) - i128::from(r1) >= i128::from(u2) - i128::from(r2));
            }
        }
    }
}

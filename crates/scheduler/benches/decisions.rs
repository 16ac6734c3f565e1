//! Decisions a second on 1,000 and on 5,000 nodes: `cargo bench -p kaji-scheduler`. Prints microseconds of processor
//! time a decision, the pod's own count in the table of nodes included; nothing is asserted.

#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use kaji_meta::random::SeededRandom;
use kaji_runtime::objects::{Namespace, Node, Pod, ReplicaSet, Service};
use kaji_scheduler::{
    Cache, Configuration, Decision, Memory, PodInfo,
    framework::{Cycle, Listers, Nominator, Profile, Reads},
    schedule_pod,
};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const PODS: usize = 5000;

fn node(number: usize) -> Arc<Node> {
    let (name, zone) = (format!("node-{number}"), format!("zone-{}", number % 10));
    let labels = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone});
    let node = json!({"metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"}}});
    Arc::new(serde_json::from_value(node).expect("a node"))
}

fn pod(number: usize, spec: &Value, owned: bool) -> Arc<PodInfo> {
    let name = format!("pod-{number}");
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "set", "controller": true}]);
    let mut spec = spec.clone();
    spec["containers"] = json!([{"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]);
    let owners = if owned { owner } else { json!([]) };
    let pod = json!({"metadata": {"name": name, "uid": name, "namespace": "d", "labels": {"app": "web"},
        "ownerReferences": owners}, "spec": spec});
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    Arc::new(PodInfo::new(Arc::new(pod)))
}

fn listers(profiles: &[Profile]) -> Listers {
    let mut reads = Reads::nothing();
    profiles.iter().flat_map(Profile::points).for_each(|points| points.plugin.reads(&mut reads));
    let set = json!({"metadata": {"name": "set", "namespace": "d"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}});
    let set: ReplicaSet = serde_json::from_value(set).expect("a set");
    reads.finish().0.with([set]).with::<Service>([]).with::<Namespace>([])
}

/// What this thread has used, where the kernel says it: other programs make no decision slower.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
}

fn measure(nodes: usize, title: &str, spec: &Value, owned: bool) {
    let configuration = Configuration::new(kaji_meta::Features::default()).expect("the default");
    let listers = listers(&configuration.profiles);
    let mut cache = Cache::default();
    (0..nodes).map(node).for_each(|node| cache.set_node(&node.metadata.name.clone(), Some(node)));
    let (random, nominator, mut memory) = (SeededRandom::new(1), Nominator::default(), Memory::default());
    let pods: Vec<_> = (0..PODS).map(|number| pod(number, spec, owned)).collect();
    let (began, time) = (Instant::now(), processor_time());
    let mut bound = 0;
    for pod in &pods {
        let cycle = Cycle {
            pod,
            snapshot: cache.snapshot(),
            listers: &listers,
            nominator: &nominator,
            random: &random,
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        if let Decision::Bind(chosen) = schedule_pod(&configuration.profiles[0], &cycle, &mut memory) {
            cache.assume(pod, &chosen.node);
            bound += 1;
        }
    }
    let took = match (time, processor_time()) {
        (Some(before), Some(after)) => after - before,
        _ => began.elapsed(),
    };
    let each = took.as_secs_f64() * 1e6 / f64::from(u32::try_from(PODS).unwrap_or(1));
    println!("{nodes} nodes, {title}: {each:.1} us a decision, {bound} of {PODS} bound");
}

fn main() {
    let labels = json!({"matchLabels": {"app": "web"}});
    let spread = |key: &str, when: &str| json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": labels});
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": labels});
    let anti = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term.clone()]}});
    let preferred = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 10, "podAffinityTerm": term}]}});
    let zone = "topology.kubernetes.io/zone";
    let both = json!([spread(zone, "DoNotSchedule"), spread("kubernetes.io/hostname", "ScheduleAnyway")]);
    for nodes in [1000, 5000] {
        measure(nodes, "plain pods", &json!({}), false);
        measure(nodes, "pods of a replica set", &json!({}), true);
        let zones = json!({"topologySpreadConstraints": [spread(zone, "DoNotSchedule")]});
        measure(nodes, "spread over zones", &zones, false);
        measure(nodes, "one a node", &json!({"affinity": anti}), false);
        let all = json!({"affinity": preferred, "topologySpreadConstraints": both});
        measure(nodes, "affinity and spreading", &all, true);
    }
}

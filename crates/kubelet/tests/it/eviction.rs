//! Pods are evicted when their node runs short of something.

use crate::fake::Fake;
use kaji_containers::{ContainerStats, MemoryUsage, PodSandboxStats};
use kaji_kubelet::node::eviction::EvictionManager;
use kaji_kubelet::node::eviction::assess::{Memory, Observation, Observations};
use kaji_kubelet::node::eviction::observe::Sensors;
use kaji_kubelet::node::eviction::rank::Eviction;
use kaji_kubelet::node::eviction::thresholds::{EvictionSettings, Pressure, Signal};
use kaji_kubelet::node::eviction::usage::DiskLayout;
use kaji_kubelet::node::image_gc::{ImageCollector, plan::Thresholds};
use kaji_kubelet::pods::admission;
use kaji_kubelet::pods::core::Pod;
use kaji_kubelet::server::NodePods;
use serde_json::json;
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, watch};

#[derive(Default)]
struct World {
    observed: Mutex<Observations>,
    pods: Mutex<Vec<Arc<Pod>>>,
}

impl World {
    fn observe(&self, signal: Signal, available: i64) {
        self.observed.lock().unwrap().insert(signal, Observation { available, capacity: 1 << 30 });
    }
}

struct Shared(Arc<World>);

impl Sensors for Shared {
    fn observe(&self) -> Observations {
        self.0.observed.lock().unwrap().clone()
    }
}

impl NodePods for Shared {
    fn all(&self) -> Vec<Arc<Pod>> {
        self.0.pods.lock().unwrap().clone()
    }
}

struct Run {
    fake: Fake,
    world: Arc<World>,
    manager: EvictionManager,
    chosen: mpsc::Receiver<Eviction>,
    pressures: watch::Receiver<BTreeSet<Pressure>>,
}

fn start() -> Run {
    let (fake, world) = (Fake::new(), Arc::new(World::default()));
    let images = ImageCollector::new(fake.cx.clone(), Thresholds::default(), fake.dir.path().to_owned());
    let (evictions, chosen) = mpsc::channel(8);
    let (sender, pressures) = watch::channel(BTreeSet::new());
    let manager = EvictionManager {
        cx: fake.cx.clone(),
        settings: EvictionSettings::default(),
        sensors: Arc::new(Shared(world.clone())),
        layout: DiskLayout::Shared,
        images: Arc::new(images),
        pods: Arc::new(Shared(world.clone())),
        evictions,
        pressures: sender,
        memory: Memory::default(),
        evicted: HashSet::new(),
    };
    Run { fake, world, manager, chosen, pressures }
}

fn pod(uid: &str, spec: serde_json::Value) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": uid, "namespace": "n", "uid": uid}, "spec": spec, "status": {"phase": "Running"}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn uses(uid: &str, memory: u64, layer: u64) -> PodSandboxStats {
    let memory = MemoryUsage { working_set: memory, ..MemoryUsage::default() };
    let container =
        ContainerStats { name: "c".into(), memory, writable_layer_bytes: layer, ..ContainerStats::default() };
    PodSandboxStats { pod_uid: uid.into(), memory, containers: vec![container], ..PodSandboxStats::default() }
}

#[tokio::test]
async fn the_largest_pod_is_evicted_once_when_memory_is_short() {
    let mut run = start();
    let plain = json!({"containers": [{"name": "c"}]});
    *run.world.pods.lock().unwrap() = vec![pod("small", plain.clone()), pod("large", plain)];
    run.fake.runtime.state.lock().unwrap().stats = vec![uses("small", 1 << 20, 0), uses("large", 9 << 20, 0)];
    run.world.observe(Signal::MemoryAvailable, 200 << 20);
    assert!(run.manager.round().await.unwrap().is_empty());
    run.world.observe(Signal::MemoryAvailable, 50 << 20);
    assert_eq!(run.manager.round().await.unwrap(), ["large"]);
    assert_eq!(*run.pressures.borrow(), BTreeSet::from([Pressure::Memory]));
    let eviction = run.chosen.recv().await.unwrap();
    expect_test::expect![[r#"1 true The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container c was using 9Mi, request is 0, has larger consumption of memory. "#]]
        .assert_eq(&format!("{} {} {}", eviction.grace, eviction.disruption, eviction.message));
    assert_eq!(run.manager.round().await.unwrap(), ["small"]);
    assert!(run.manager.round().await.unwrap().is_empty());
    let events = run.fake.api.events.lock().unwrap().clone();
    assert_eq!(events, ["EvictionThresholdMet: Attempting to reclaim memory"; 3]);
    // The condition lasts for the transition period.
    run.world.observe(Signal::MemoryAvailable, 200 << 20);
    run.fake.clock.advance(jiff::SignedDuration::from_secs(299));
    run.manager.round().await.unwrap();
    assert!(!run.pressures.borrow().is_empty());
    run.fake.clock.advance(jiff::SignedDuration::from_secs(1));
    run.manager.round().await.unwrap();
    assert!(run.pressures.borrow().is_empty());
}

#[tokio::test]
async fn images_go_before_pods_when_the_disk_is_full() {
    let mut run = start();
    run.fake.runtime.state.lock().unwrap().images = vec!["unused".into()];
    *run.world.pods.lock().unwrap() = vec![pod("p", json!({"containers": [{"name": "c"}]}))];
    run.fake.runtime.state.lock().unwrap().stats = vec![uses("p", 0, 5 << 20)];
    run.manager.images.collect().await.unwrap();
    run.fake.clock.advance(jiff::SignedDuration::from_secs(121));
    run.world.observe(Signal::NodeFsAvailable, 1 << 20);
    // Removing the image has not helped.
    assert_eq!(run.manager.round().await.unwrap(), ["p"]);
    assert_eq!(run.fake.runtime.state.lock().unwrap().calls, ["remove-image unused"]);
    let message = run.chosen.recv().await.unwrap().message;
    assert!(message.starts_with("The node was low on resource: ephemeral-storage. "), "{message}");
}

#[tokio::test]
async fn a_pod_that_exceeds_its_disk_is_evicted_without_pressure() {
    let mut run = start();
    let limits = json!({"limits": {"ephemeral-storage": "1Mi"}});
    *run.world.pods.lock().unwrap() = vec![
        pod("p", json!({"containers": [{"name": "c", "resources": limits}]})),
        pod("other", json!({"containers": [{"name": "c"}]})),
    ];
    run.fake.runtime.state.lock().unwrap().stats = vec![uses("p", 0, 2 << 20), uses("other", 0, 9 << 20)];
    assert_eq!(run.manager.round().await.unwrap(), ["p"]);
    let eviction = run.chosen.recv().await.unwrap();
    assert_eq!(
        (eviction.message.as_str(), eviction.disruption),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ", false)
    );
}

#[test]
fn pods_are_admitted_by_the_conditions_of_their_node() {
    let requests = json!({"requests": {"memory": "1Mi"}});
    let tolerations = json!([{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]);
    let pods = [
        pod("best-effort", json!({"containers": [{"name": "c"}]})),
        pod("burstable", json!({"containers": [{"name": "c", "resources": requests}]})),
        pod("tolerant", json!({"containers": [{"name": "c"}], "tolerations": tolerations})),
        pod("critical", json!({"containers": [{"name": "c"}], "priority": 2_000_001_000})),
    ];
    let shown: Vec<String> = [&[][..], &["MemoryPressure"], &["DiskPressure", "MemoryPressure"]]
        .iter()
        .flat_map(|conditions| pods.iter().map(|p| admission::under_pressure(p, conditions)))
        .map(|taken| taken.map_or_else(|r| format!("{}: {}|", r.reason, r.message), |()| "taken".to_owned()))
        .collect();
    expect_test::expect![[r#"
        taken
        taken
        taken
        taken
        Evicted: The node had condition: [MemoryPressure]. |
        taken
        taken
        taken
        Evicted: The node had condition: [DiskPressure MemoryPressure]. |
        Evicted: The node had condition: [DiskPressure MemoryPressure]. |
        Evicted: The node had condition: [DiskPressure MemoryPressure]. |
        taken"#]]
    .assert_eq(&shown.join("\n"));
}

//! The cycle of a group on fixtures, in a loop of which the writes reach no server.

use super::super::Scheduler;
use crate::{
    changes::Changes,
    configuration::Configuration,
    framework::{Profile, Reads},
    metrics::Metrics,
    testing::{node, pod},
};
use kaji_meta::{Features, ManualClock, SeededRandom};
use kaji_runtime::{
    Client, Informers, Key, Shared,
    objects::{Pod, PodGroup},
};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

/// A loop with nodes and groups, and what has happened since it looked last.
pub(in crate::scheduler) struct World {
    pub(in crate::scheduler) scheduler: Scheduler,
    pub(in crate::scheduler) changes: Changes,
    // The pods that are asked about.
    names: Vec<String>,
}

/// A client that receives no response.
fn silent_client() -> Client {
    type Answer = Result<http::Response<kube::client::Body>, std::convert::Infallible>;
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| std::future::pending::<Answer>());
    Client::new(kube::Client::new(silent, "default"), "test")
}

impl World {
    pub(in crate::scheduler) fn new(nodes: &[Value], groups: &[Value]) -> Self {
        let clock = Arc::new(ManualClock::new(jiff::Timestamp::UNIX_EPOCH));
        let shared = Shared {
            client: silent_client(),
            clock,
            random: Arc::new(SeededRandom::new(1)),
            decisions: None,
        };
        let informers = Informers::new(shared.client.clone());
        let configuration = Configuration::new(Features::ALL).unwrap();
        let mut reads = Reads::nothing();
        configuration.profiles.iter().flat_map(Profile::points).for_each(|p| p.plugin.reads(&mut reads));
        let groups = groups.iter().map(|group| serde_json::from_value::<PodGroup>(group.clone()).unwrap());
        let listers = reads.finish().0.with::<PodGroup>(groups);
        let (sender, _) = mpsc::channel(1024);
        let metrics = Metrics::default();
        let scheduler = Scheduler::new(informers.get(), shared, configuration, metrics, listers, sender);
        let changes = Changes::default();
        for value in nodes {
            let node = node(value);
            changes.node(node.metadata.key(), (None, Some(node)));
        }
        World { scheduler, changes, names: vec![] }
    }

    /// A pod that needs so many CPUs, of a group unless that is `""`, perhaps bound already.
    pub(in crate::scheduler) fn add(
        &mut self,
        name: &str,
        group: &str,
        cpu: usize,
        priority: i64,
        node: &str,
    ) -> Arc<Pod> {
        let mut spec =
            json!({"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]});
        if !group.is_empty() {
            spec["schedulingGroup"] = json!({"podGroupName": group});
        }
        let pod = pod(&json!({"name": name, "spec": spec, "priority": priority})).pod.clone();
        self.names.push(name.to_owned());
        self.changes.pod(pod.metadata.key(), (None, Some(pod.clone())));
        pod
    }

    /// Schedules what can be; where all pods are, and which ones have room made for them.
    pub(in crate::scheduler) async fn run(&mut self) -> String {
        self.scheduler.update(&self.changes);
        self.scheduler.schedule_all(&self.changes).await;
        let mut all = vec![];
        for name in &self.names {
            let key = Key::new("d", name.as_str());
            let place = match (self.scheduler.cache.node_of(&key), self.scheduler.nominator.node_of(name)) {
                (Some(node), _) => node.to_owned(),
                (None, Some(node)) => format!("({node})"),
                (None, None) => "-".to_owned(),
            };
            let room = if self.scheduler.preempting.contains(name) { "!" } else { "" };
            all.push(format!("{name}={place}{room}"));
        }
        all.join(" ")
    }
}

pub(in crate::scheduler) fn nodes(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| json!({"name": name})).collect()
}

fn gang(count: usize, priority: i64) -> Value {
    json!({"metadata": {"name": "g", "namespace": "d", "uid": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}, "priority": priority}})
}

#[tokio::test]
async fn a_gang_is_scheduled_as_a_whole_or_not_at_all() {
    for (count, fits) in [(2, true), (3, false)] {
        let mut world = World::new(&nodes(&["a", "b"]), &[gang(count, 0)]);
        for name in ["p", "q", "r"] {
            world.add(name, "g", 3, 0, "");
        }
        let placed = world.run().await;
        assert_eq!(
            placed.matches("=a").count() + placed.matches("=b").count(),
            if fits { 2 } else { 0 },
            "{placed}"
        );
        let (_, assumed) = world.scheduler.cache.pods();
        assert_eq!(assumed, if fits { 2 } else { 0 });
    }
}

#[tokio::test]
async fn pods_wait_until_there_are_enough_of_them() {
    let mut world = World::new(&nodes(&["a", "b", "c"]), &[gang(3, 0)]);
    world.add("p", "g", 3, 0, "");
    world.add("q", "g", 3, 0, "");
    world.add("stray", "unknown", 1, 0, "");
    assert_eq!(world.run().await, "p=- q=- stray=-");
    assert_eq!(world.scheduler.queue.pending().gated, 3);
    world.add("r", "g", 3, 0, "");
    let placed = world.run().await;
    assert_eq!(placed.matches("=-").count(), 1, "{placed}");
}

#[tokio::test]
async fn pods_that_are_scheduled_count() {
    let mut world = World::new(&nodes(&["a", "b"]), &[gang(3, 0)]);
    world.add("p", "g", 1, 0, "a");
    world.add("q", "g", 1, 0, "b");
    world.add("r", "g", 1, 0, "");
    assert!(!world.run().await.contains("=-"));
}

#[tokio::test]
async fn room_is_made_for_all_that_are_missing_or_for_none() {
    for (other, expected) in [(0, "x=a y=b p=(a)! q=(b)!"), (9, "x=a y=b p=- q=-")] {
        let mut world = World::new(&nodes(&["a", "b"]), &[gang(2, 5)]);
        world.add("x", "", 4, 0, "a");
        world.add("y", "", 4, other, "b");
        world.add("p", "g", 3, 5, "");
        world.add("q", "g", 3, 5, "");
        assert_eq!(world.run().await, expected);
    }
}

#[tokio::test]
async fn pods_of_a_group_are_alike() {
    let mut world = World::new(&nodes(&["a"]), &[gang(1, 5)]);
    world.add("p", "g", 1, 4, "");
    assert_eq!(world.run().await, "p=-");
}

mod law {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Of a gang as many pods are on nodes as it needs at least, or none; no node holds more than it can.
        #[test]
        fn binds_enough_pods_of_a_group_or_none(count in 1_usize..6, sizes in prop::collection::vec(1_usize..5, 1..7), machines in 1_usize..5) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let names: Vec<String> = (0..machines).map(|n| format!("n{n}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let mut world = World::new(&nodes(&names), &[gang(count, 0)]);
                for (i, cpu) in sizes.iter().enumerate() {
                    world.add(&format!("p{i}"), "g", *cpu, 0, "");
                }
                world.run().await;
                let (_, assumed) = world.scheduler.cache.pods();
                prop_assert!(assumed == 0 || assumed >= count, "{assumed} of {count}");
                for node in world.scheduler.cache.snapshot().nodes() {
                    prop_assert!(node.requested.cpu <= 4000);
                }
                Ok(())
            })?;
        }
    }
}

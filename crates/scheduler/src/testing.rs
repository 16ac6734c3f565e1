//! Fixtures of the plugins' tests: nodes, bound pods and other objects as JSON; decisions as text.

pub mod answering;
pub mod extender;

use crate::{
    cache::Cache,
    configuration::Configuration,
    framework::{Cycle, CycleState, Listers, Nomination, Nominator, Profile, Reads},
    memory::Memory,
    pod_info::PodInfo,
    schedule_one::{Decision, schedule_pod},
};
use kaji_meta::random::SeededRandom;
use kaji_runtime::objects::{Node, Pod};
use serde_json::{Value, json};
use std::sync::Arc;

/// A cluster of fixtures.
pub struct Cluster {
    pub cache: Cache,
    pub listers: Listers,
    pub nominator: Nominator,
    pub profiles: Vec<Profile>,
    pub random: SeededRandom,
    pub memory: Memory,
}

/// A node of `{"name": ..., "labels": ..., "spec": ..., "allocatable": ..., "images": ..., "features": ...}`, with enough of everything.
pub fn node(node: &Value) -> Arc<Node> {
    let mut allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    if let Some(given) = node["allocatable"].as_object() {
        for (name, amount) in given {
            allocatable[name] = amount.clone();
        }
    }
    let node = json!({
        "metadata": {"name": node["name"], "labels": node.get("labels").unwrap_or(&json!({}))},
        "spec": node.get("spec").unwrap_or(&json!({})),
        "status": {"allocatable": allocatable, "images": node.get("images").unwrap_or(&json!([])),
            "declaredFeatures": node.get("features").unwrap_or(&json!([]))},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

/// A pod of `{"name": ..., "labels": ..., "spec": ..., "cpu": ..., "node": ..., "priority": ...}` in the namespace `d`.
pub fn pod(pod: &Value) -> Arc<PodInfo> {
    let mut spec = pod.get("spec").cloned().unwrap_or_else(|| json!({}));
    if spec["containers"].is_null() {
        let requests = pod.get("cpu").map_or_else(|| json!({}), |cpu| json!({"cpu": cpu}));
        spec["containers"] = json!([{"name": "c", "resources": {"requests": requests}}]);
    }
    if let Some(priority) = pod.get("priority") {
        spec["priority"] = priority.clone();
    }
    let namespace = pod.get("namespace").cloned().unwrap_or_else(|| json!("d"));
    let mut metadata = json!({
        "name": pod["name"], "namespace": namespace, "uid": pod["name"],
        "labels": pod.get("labels").unwrap_or(&json!({})),
        "ownerReferences": pod.get("owners").unwrap_or(&json!([])),
    });
    if pod["deleting"] == true {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let status = pod.get("status").cloned().unwrap_or_else(|| json!({}));
    let pod: Pod =
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap();
    Arc::new(PodInfo::new(Arc::new(pod)))
}

impl Cluster {
    /// Of nodes, with the default profile.
    pub fn new(nodes: &[Value]) -> Self {
        let configuration = Configuration::new(kaji_meta::Features::default()).unwrap();
        let mut reads = Reads::nothing();
        configuration.profiles.iter().flat_map(Profile::points).for_each(|p| p.plugin.reads(&mut reads));
        let mut cache = Cache::default();
        for value in nodes {
            let node = node(value);
            cache.set_node(&node.metadata.name.clone(), Some(node));
        }
        Cluster {
            cache,
            listers: reads.finish().0,
            nominator: Nominator::default(),
            profiles: configuration.profiles,
            random: SeededRandom::new(1),
            memory: Memory::default(),
        }
    }

    /// With pods that are bound to their `node`.
    pub fn with_pods(mut self, pods: &[Value]) -> Self {
        for value in pods {
            self.cache.assume(&pod(value), value["node"].as_str().unwrap());
        }
        self
    }

    /// With other objects that plugins read.
    #[allow(dead_code, reason = "plugins that read other objects follow")]
    pub fn with<T: kaji_runtime::Projection>(mut self, objects: Vec<Value>) -> Self {
        let objects = objects.into_iter().map(|object| serde_json::from_value::<T>(object).unwrap());
        self.listers = self.listers.with(objects);
        self
    }

    /// Decides on a pod.
    pub fn decide(&mut self, pod: &Arc<PodInfo>) -> Decision {
        let cycle = Cycle {
            pod,
            snapshot: self.cache.snapshot(),
            listers: &self.listers,
            nominator: &self.nominator,
            random: &self.random,
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        schedule_pod(&self.profiles[0], &cycle, &mut self.memory)
    }

    /// Decides on a pod: the node, or why none and what is done about it.
    pub fn show(&mut self, value: &Value) -> String {
        match self.decide(&pod(value)) {
            Decision::Bind(chosen) => format!("-> {}", chosen.node),
            Decision::Failed(status) => format!("failed: {status}"),
            Decision::Unschedulable(why) => {
                let mut text = why.message;
                if let Nomination::Node(node) = why.nomination {
                    let mut victims: Vec<&str> =
                        why.victims.iter().map(|v| v.pod.metadata.name.as_str()).collect();
                    victims.sort_unstable();
                    text += &format!(" PREEMPT {} on {node}", victims.join(","));
                }
                text
            }
        }
    }

    /// Decides on a pod and puts it on its node.
    pub fn place(&mut self, value: &Value) -> Option<String> {
        let pod = pod(value);
        let Decision::Bind(chosen) = self.decide(&pod) else { return None };
        self.cache.assume(&pod, &chosen.node);
        Some(chosen.node)
    }

    /// Decides on a pod and reserves for it: its node, and what plugins keep.
    pub fn reserve(&mut self, value: &Value) -> Option<(String, CycleState)> {
        let pod = pod(value);
        let Decision::Bind(chosen) = self.decide(&pod) else { return None };
        let mut state = chosen.state;
        let cycle = Cycle {
            pod: &pod,
            snapshot: self.cache.snapshot(),
            listers: &self.listers,
            nominator: &self.nominator,
            random: &self.random,
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        self.profiles[0].reserve(&cycle, &mut state, &chosen.node).unwrap();
        Some((chosen.node, state))
    }

    /// The scores that one plugin gives to all nodes for a pod, by the nodes' names.
    pub fn scores(&mut self, plugin: &str, value: &Value) -> String {
        let pod = pod(value);
        let cycle = Cycle {
            pod: &pod,
            snapshot: self.cache.snapshot(),
            listers: &self.listers,
            nominator: &self.nominator,
            random: &self.random,
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        let mut nodes: Vec<_> = cycle.snapshot.nodes().cloned().collect();
        nodes.sort_by(|a, b| a.name().cmp(b.name()));
        let points = self.profiles[0].points().find(|p| p.plugin.name() == plugin).unwrap();
        let mut state = CycleState::default();
        if let Some(pre) = &points.pre_filter {
            pre.pre_filter(&cycle, &mut state).unwrap();
        }
        if let Some(pre) = &points.pre_score
            && pre.pre_score(&cycle, &mut state, &nodes).unwrap() == crate::framework::PreScored::Skip
        {
            return "skipped".to_owned();
        }
        let score = points.score.as_ref().unwrap();
        let mut scores: Vec<i64> = nodes.iter().map(|node| score.score(&cycle, &state, node)).collect();
        score.normalize(&cycle, &state, &nodes, &mut scores);
        let text = nodes.iter().zip(scores).map(|(node, score)| format!("{}={score}", node.name()));
        text.collect::<Vec<_>>().join(" ")
    }
}

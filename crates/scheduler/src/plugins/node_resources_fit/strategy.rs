//! How nodes are scored by what would be requested of them: the least, the most, or by a shape.
//!
//! Containers without requests of CPU or memory count with small ones. Extended resources that the pod does not request are
//! left out, and so is what a node does not have.

use crate::{
    plugins::{
        arguments::{items, number, text},
        shape::{Shape, percent},
    },
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio(Shape),
}

/// A scoring strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    kind: Kind,
    /// Resources and their weights.
    resources: Vec<(String, i64)>,
}

/// `resources` of a configuration: names and weights; CPU and memory without any. No weight, and 0, stand for 1.
pub fn weighted_resources(raw: &Value) -> Vec<(String, i64)> {
    let weighted = |raw: &Value| {
        let weight = number(raw, "weight", 0);
        (text(raw, "name").to_owned(), if weight == 0 { 1 } else { weight })
    };
    let given: Vec<(String, i64)> = items(raw).map(weighted).collect();
    if given.is_empty() { vec![("cpu".to_owned(), 1), ("memory".to_owned(), 1)] } else { given }
}

impl Strategy {
    /// Of `scoringStrategy`, which is valid.
    pub fn parse(raw: &Value) -> Self {
        let kind = match text(raw, "type") {
            "MostAllocated" => Kind::MostAllocated,
            "RequestedToCapacityRatio" => {
                Kind::RequestedToCapacityRatio(Shape::parse(&raw["requestedToCapacityRatio"]["shape"]))
            }
            _ => Kind::LeastAllocated,
        };
        Strategy { kind, resources: weighted_resources(&raw["resources"]) }
    }

    /// The score of a node, between 0 and 100.
    pub fn score(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let (mut sum, mut weights) = (0_i64, 0_i64);
        for (name, weight) in &self.resources {
            let (capacity, requested) = requested_with(pod, node, name);
            if capacity <= 0 {
                continue;
            }
            let score = match &self.kind {
                Kind::LeastAllocated if requested > capacity => 0,
                Kind::LeastAllocated => percent(capacity - requested, capacity),
                Kind::MostAllocated => percent(requested.min(capacity), capacity),
                Kind::RequestedToCapacityRatio(shape) => match shape.score(requested, capacity) {
                    0 => continue,
                    score => score,
                },
            };
            sum += score * weight;
            weights += weight;
        }
        match (&self.kind, weights) {
            (_, 0) => 0,
            (Kind::RequestedToCapacityRatio(_), weights) => (2 * sum + weights) / (2 * weights),
            (_, weights) => sum / weights,
        }
    }
}

/// What a node has of a resource, and what would be requested of it with the pod. (0, 0) leaves the resource out.
fn requested_with(pod: &PodInfo, node: &NodeInfo, name: &str) -> (i64, i64) {
    match name {
        "cpu" => (node.allocatable.cpu, node.requested_with_defaults.0 + pod.request_with_defaults.0),
        "memory" => (node.allocatable.memory, node.requested_with_defaults.1 + pod.request_with_defaults.1),
        "ephemeral-storage" => (node.allocatable.storage, node.requested.storage + pod.request.storage),
        other if pod.request.get(other) == 0 => (0, 0),
        other => (node.allocatable.get(other), node.requested.get(other) + pod.request.get(other)),
    }
}

//! What the scheduler promises of a node when it binds a pod: room for what the pod requests, and none of the pods beside it from
//! which it must keep apart.
//!
//! Invariants:
//! - The scheduler sees its own bindings, and so the law is exact, but around a restart: a successor does not know of a binding that is
//!   on its way.
//! - Of affinity only required anti-affinity by hostname and labels is looked at.

use super::availability::Step;
use crate::objects::{NODES, Objects, at, is_finished, text};
use kaji_meta::quantity::Quantity;
use serde_json::Value;
use std::collections::BTreeMap;

/// The pods of nodes that have not finished.
#[derive(Debug, Default)]
pub struct Placement(BTreeMap<String, BTreeMap<String, Pod>>);

#[derive(Debug)]
struct Pod {
    namespace: String,
    labels: Value,
    /// Thousandths of processors.
    cpu: i64,
}

impl Placement {
    /// Follows a change of a pod; what its binding breaks, unless the scheduler may be `unsure` of bindings.
    pub fn follow(&mut self, objects: &Objects, step: &Step<'_>, unsure: bool) -> Vec<String> {
        let node = |pod: &Value| text(pod, &["spec", "nodeName"]).to_owned();
        let former = step.before.map(node).unwrap_or_default();
        let present = step.after.filter(|pod| !is_finished(pod)).map(node).unwrap_or_default();
        if former != present
            && let Some(pods) = self.0.get_mut(&former)
        {
            pods.remove(step.key);
        }
        let Some(pod) = step.after.filter(|_| !present.is_empty()) else { return vec![] };
        let others = self.0.entry(present.clone()).or_default();
        let is_new = others.insert(step.key.to_owned(), kept(pod)).is_none();
        if !is_new || unsure || present == former {
            return vec![];
        }
        let broken = [overfull(objects, &present, others), too_close(step.key, pod, others)];
        broken.into_iter().flatten().map(|text| format!("{}: bound to {present}, {text}", step.key)).collect()
    }
}

fn kept(pod: &Value) -> Pod {
    let containers = at(pod, &["spec", "containers"]).as_array().map_or(&[][..], Vec::as_slice);
    Pod {
        namespace: text(pod, &["metadata", "namespace"]).to_owned(),
        labels: pod["metadata"]["labels"].clone(),
        cpu: containers.iter().map(|container| cpu(at(container, &["resources", "requests", "cpu"]))).sum(),
    }
}

fn cpu(amount: &Value) -> i64 {
    amount.as_str().and_then(|text| Quantity::parse(text).ok()).map_or(0, |amount| amount.milli_value())
}

fn overfull(objects: &Objects, node: &str, pods: &BTreeMap<String, Pod>) -> Option<String> {
    let node = objects.of(NODES).find(|found| text(found, &["metadata", "name"]) == node)?;
    let room = cpu(at(node, &["status", "allocatable", "cpu"]));
    let asked: i64 = pods.values().map(|pod| pod.cpu).sum();
    (asked > room).then(|| format!("of which the pods request {asked}m of {room}m processors"))
}

fn too_close(key: &str, pod: &Value, pods: &BTreeMap<String, Pod>) -> Option<String> {
    let terms =
        at(pod, &["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"]);
    let namespace = text(pod, &["metadata", "namespace"]);
    let by_host = |term: &&Value| text(term, &["topologyKey"]) == "kubernetes.io/hostname";
    terms.as_array().into_iter().flatten().filter(by_host).find_map(|term| {
        let wanted = term["labelSelector"]["matchLabels"].as_object()?;
        let matches = |other: &Pod| {
            other.namespace == namespace && wanted.iter().all(|(key, value)| other.labels[key] == *value)
        };
        let (other, _) = pods.iter().find(|(other, kept)| *other != key && matches(kept))?;
        Some(format!("beside {other}, from which it keeps apart"))
    })
}

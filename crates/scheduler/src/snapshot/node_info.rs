//! A node with what its pods take of it.
//!
//! Invariants:
//! - What is requested is the sum over the node's pods, each counted once; adding a pod and removing it again changes nothing.
//! - A copy shares the pods, so that preemption can try on a copy.

use crate::{
    pod_info::{HostPort, PodInfo},
    resources::Resources,
};
use kaji_runtime::objects::Node;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// A node and the pods on it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeInfo {
    /// Its place in the table of nodes; stays the same while the node is there.
    pub slot: usize,
    /// The node.
    pub node: Arc<Node>,
    /// What pods can request of it.
    pub allocatable: Resources,
    /// The sum of its pods' requests.
    pub requested: Resources,
    /// CPU and memory, where containers without requests count with small ones.
    pub requested_with_defaults: (i64, i64),
    /// Its pods, by uid.
    pub pods: Vec<Counted>,
    /// Host ports in use, and by how many pods: pods of the node's own network may share one.
    pub ports: BTreeMap<HostPort, u32>,
    /// Claims in use, `NAMESPACE/NAME`, and by how many pods.
    pub claims: HashMap<Box<str>, u32>,
}

/// A pod on a node.
#[derive(Clone, Debug)]
pub struct Counted(pub Arc<PodInfo>);

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid() == other.0.uid()
    }
}

impl NodeInfo {
    /// Without pods.
    pub fn new(slot: usize, node: Arc<Node>) -> Self {
        let allocatable = allocatable(&node);
        NodeInfo {
            slot,
            node,
            allocatable,
            requested: Resources::default(),
            requested_with_defaults: (0, 0),
            pods: vec![],
            ports: BTreeMap::new(),
            claims: HashMap::new(),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.node.metadata.name
    }

    /// A label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.node.metadata.labels.get(key).map(String::as_str)
    }

    /// The pods.
    pub fn pods(&self) -> impl ExactSizeIterator<Item = &Arc<PodInfo>> {
        self.pods.iter().map(|counted| &counted.0)
    }

    /// Whether a port is in use.
    pub fn port_conflict(&self, wanted: &[HostPort]) -> bool {
        !self.ports.is_empty() && wanted.iter().any(|w| self.ports.keys().any(|used| used.conflicts(w)))
    }

    /// Replaces the node; its pods stay.
    pub fn set_node(&mut self, node: Arc<Node>) {
        if self.node.status.allocatable != node.status.allocatable {
            self.allocatable = allocatable(&node);
        }
        self.node = node;
    }

    /// Counts a pod.
    pub fn add_pod(&mut self, pod: &Arc<PodInfo>) {
        self.requested.add(&pod.request);
        self.requested_with_defaults.0 += pod.request_with_defaults.0;
        self.requested_with_defaults.1 += pod.request_with_defaults.1;
        for port in &pod.ports {
            *self.ports.entry(port.clone()).or_default() += 1;
        }
        for claim in &pod.claims {
            *self.claims.entry(claim_key(pod, claim)).or_default() += 1;
        }
        self.pods.push(Counted(pod.clone()));
    }

    /// Stops counting a pod; returns whether it was counted.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        let Some(at) = self.pods.iter().position(|p| p.0.uid() == uid) else { return false };
        let pod = self.pods.swap_remove(at).0;
        self.requested.subtract(&pod.request);
        self.requested_with_defaults.0 -= pod.request_with_defaults.0;
        self.requested_with_defaults.1 -= pod.request_with_defaults.1;
        for port in &pod.ports {
            if let Some(users) = self.ports.get_mut(port) {
                *users -= 1;
                if *users == 0 {
                    self.ports.remove(port);
                }
            }
        }
        for claim in &pod.claims {
            let key = claim_key(&pod, claim);
            if let Some(users) = self.claims.get_mut(&key) {
                *users -= 1;
                if *users == 0 {
                    self.claims.remove(&key);
                }
            }
        }
        true
    }
}

fn claim_key(pod: &PodInfo, claim: &str) -> Box<str> {
    format!("{}/{claim}", pod.namespace()).into()
}

fn allocatable(node: &Node) -> Resources {
    Resources::parse(node.status.allocatable.iter().map(|(k, v)| (k.as_str(), v.as_str())))
}

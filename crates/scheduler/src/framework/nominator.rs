//! Pods that wait for room on the node where preemption makes it.
//!
//! Invariant: a pod is nominated for one node at most.

use crate::pod_info::PodInfo;
use std::{collections::HashMap, sync::Arc};

/// The nominated pods.
#[derive(Default)]
pub struct Nominator {
    by_node: HashMap<String, Vec<Arc<PodInfo>>>,
    nodes: HashMap<String, String>,
}

impl Nominator {
    /// Nominates a pod for a node, and for no other.
    pub fn nominate(&mut self, pod: &Arc<PodInfo>, node: &str) {
        self.remove(pod.uid());
        self.nodes.insert(pod.uid().to_owned(), node.to_owned());
        self.by_node.entry(node.to_owned()).or_default().push(pod.clone());
    }

    /// Ends a pod's nomination.
    pub fn remove(&mut self, uid: &str) {
        let Some(node) = self.nodes.remove(uid) else { return };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|p| p.uid() != uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }

    /// The node that a pod is nominated for.
    pub fn node_of(&self, uid: &str) -> Option<&str> {
        self.nodes.get(uid).map(String::as_str)
    }

    /// Whether no pod is nominated.
    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    /// The pods that are nominated for a node.
    pub fn on(&self, node: &str) -> &[Arc<PodInfo>] {
        // Most of the time no pod is nominated at all.
        if self.by_node.is_empty() {
            return &[];
        }
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }
}

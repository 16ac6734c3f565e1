//! The scheduler's cache: which pods are counted on which node, bound ones and assumed ones.
//!
//! Invariants:
//! - A pod is counted on one node at most, once.
//! - An assumed pod stays counted until it is forgotten, or the informer shows where it is.

use crate::{pod_info::PodInfo, snapshot::Snapshot};
use kaji_runtime::{
    Key,
    objects::{Node, Pod},
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

struct CountedPod {
    node: Arc<str>,
    info: Arc<PodInfo>,
    assumed: bool,
}

/// A pod that is not counted for a while.
pub struct RemovedPod {
    node: Arc<str>,
    info: Arc<PodInfo>,
    assumed: bool,
}

/// The nodes, and the pods that are counted on them.
#[derive(Default)]
pub struct Cache {
    snapshot: Snapshot,
    pods: HashMap<Key, CountedPod>,
    /// Pods of each node, those of nodes too that are not there.
    on_node: HashMap<Arc<str>, BTreeSet<Key>>,
    generation: u64,
    assumed: usize,
    /// The bound pod that was counted last.
    latest: Option<Arc<PodInfo>>,
}

impl Cache {
    /// The table of nodes for the next decision.
    pub fn snapshot(&mut self) -> &Snapshot {
        self.snapshot.settle();
        &self.snapshot
    }

    /// Changes whenever the table of nodes does.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Adds, replaces or (`None`) removes a node. Its pods stay counted for a node that is created again.
    pub fn set_node(&mut self, name: &str, node: Option<Arc<Node>>) {
        self.generation += 1;
        let Some(node) = node else {
            self.snapshot.remove_node(name);
            return;
        };
        let new = self.snapshot.node(name).is_none();
        self.snapshot.set_node(node);
        if new {
            let keys = self.on_node.get(name).into_iter().flatten();
            for counted in keys.filter_map(|key| self.pods.get(key)) {
                self.snapshot.add_pod(name, &counted.info);
            }
        }
    }

    /// Counts a pod where a decision has put it.
    pub fn assume(&mut self, info: &Arc<PodInfo>, node: &str) {
        self.count(info.key(), node, info.clone(), true);
    }

    /// Counts a bound pod in its present state.
    pub fn set_pod(&mut self, pod: &Arc<Pod>) {
        let (key, node) = (pod.metadata.key(), pod.spec.node_name.as_str());
        let Some(counted) = self.pods.get_mut(&key) else {
            return self.count_bound(key, pod);
        };
        let same_pod = counted.info.uid() == pod.metadata.uid && &*counted.node == node;
        if !same_pod {
            return self.count_bound(key, pod);
        }
        if std::mem::take(&mut counted.assumed) {
            self.assumed -= 1;
        }
        let updated = Arc::new(counted.info.updated(pod.clone()));
        let former = &counted.info;
        let counts_the_same = former.same_needs(&updated)
            && former.pod.metadata.labels == pod.metadata.labels
            && former.pod.metadata.deleting() == pod.metadata.deleting();
        if counts_the_same {
            counted.info = updated.clone();
            self.snapshot.replace_pod(node, &updated);
            return;
        }
        self.count(key, node, updated, false);
    }

    /// Pods of one template follow each other in a first list: what they need is kept once.
    fn count_bound(&mut self, key: Key, pod: &Arc<Pod>) {
        let info = PodInfo::new(pod.clone());
        let info = Arc::new(match &self.latest {
            Some(latest) => info.sharing_needs(latest),
            None => info,
        });
        self.latest = Some(info.clone());
        self.count(key, &pod.spec.node_name, info, false);
    }

    fn count(&mut self, key: Key, node: &str, info: Arc<PodInfo>, assumed: bool) {
        self.remove_pod(&key);
        self.generation += 1;
        self.snapshot.add_pod(node, &info);
        let node: Arc<str> = match self.on_node.get_key_value(node) {
            Some((known, _)) => known.clone(),
            None => node.into(),
        };
        self.on_node.entry(node.clone()).or_default().insert(key.clone());
        self.assumed += usize::from(assumed);
        self.pods.insert(key, CountedPod { node, info, assumed });
    }

    /// Stops counting a pod; returns it as it was counted.
    pub fn remove_pod(&mut self, key: &Key) -> Option<Arc<PodInfo>> {
        let counted = self.pods.remove(key)?;
        self.generation += 1;
        self.assumed -= usize::from(counted.assumed);
        self.snapshot.remove_pod(&counted.node, &counted.info);
        if let Some(keys) = self.on_node.get_mut(&counted.node) {
            keys.remove(key);
            if keys.is_empty() {
                self.on_node.remove(&counted.node);
            }
        }
        Some(counted.info)
    }

    /// Stops counting a pod for a while: what there would be without it is to be tried.
    pub fn take(&mut self, key: &Key) -> Option<RemovedPod> {
        let counted = self.pods.get(key)?;
        let (node, assumed) = (counted.node.clone(), counted.assumed);
        let info = self.remove_pod(key)?;
        Some(RemovedPod { node, info, assumed })
    }

    /// Counts a pod again.
    pub fn put_back(&mut self, pod: RemovedPod) {
        self.count(pod.info.key(), &pod.node, pod.info, pod.assumed);
    }

    /// Stops counting an assumed pod; one that is known to be bound stays.
    pub fn forget(&mut self, key: &Key, uid: &str) {
        if self.pods.get(key).is_some_and(|p| p.assumed && p.info.uid() == uid) {
            self.remove_pod(key);
        }
    }

    /// Whether a pod was put on a node by a decision that the informer does not show yet.
    pub fn is_assumed(&self, key: &Key, uid: &str) -> bool {
        self.pods.get(key).is_some_and(|p| p.assumed && p.info.uid() == uid)
    }

    /// The node on which a pod is counted.
    pub fn node_of(&self, key: &Key) -> Option<&str> {
        self.pods.get(key).map(|pod| &*pod.node)
    }

    /// How many pods are counted, and how many of them are assumed.
    pub fn pods(&self) -> (usize, usize) {
        (self.pods.len(), self.assumed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;
    use serde_json::json;

    #[test]
    fn bound_pods_of_a_template_share_what_they_need() {
        let mut cache = Cache::default();
        let bound = |name: &str, cpu: &str| {
            let spec = json!({"nodeName": "a", "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]});
            pod(&json!({"name": name, "spec": spec})).pod.clone()
        };
        for (name, cpu) in [("p", "1"), ("q", "1"), ("r", "2")] {
            cache.set_pod(&bound(name, cpu));
        }
        let needs = |name: &str| std::ptr::from_ref(&**cache.pods[&Key::new("d", name)].info);
        assert!(std::ptr::eq(needs("p"), needs("q")));
        assert!(!std::ptr::eq(needs("p"), needs("r")));
    }
}

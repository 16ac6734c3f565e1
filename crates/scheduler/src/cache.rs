//! The scheduler's cache: nodes with the resources that bound and assumed pods request of them.
//!
//! Invariants:
//! - A pod is counted on one node at most, once.
//! - Of a counted pod only its uid, requests and host ports are kept, not its projection.

use crate::resources::Resources;
use kaji_runtime::{
    Key,
    objects::{ContainerPort, Node, Pod},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

/// A host port in use: address, protocol, port.
pub type HostPort = (String, String, i64);

/// A pod that waits for a node, with what scheduling computes of it once.
#[derive(Clone, Debug)]
pub struct PodInfo {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The resources that it requests.
    pub request: Resources,
    /// The host ports that it uses.
    pub ports: Vec<HostPort>,
}

impl PodInfo {
    /// Computes requests and ports.
    pub fn new(pod: Arc<Pod>) -> Self {
        let ports = pod.spec.containers.iter().flat_map(|c| &c.ports);
        let ports = ports.filter_map(host_port).collect();
        PodInfo { request: Resources::of_pod(&pod), ports, pod }
    }
}

fn host_port(port: &ContainerPort) -> Option<HostPort> {
    let text = |text: &str, default: &str| if text.is_empty() { default } else { text }.to_owned();
    (port.host_port > 0)
        .then(|| (text(&port.host_ip, "0.0.0.0"), text(&port.protocol, "TCP"), port.host_port))
}

/// A node with what its pods request.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// The node.
    pub node: Arc<Node>,
    /// What pods can request of it.
    pub allocatable: Resources,
    /// The sum of its pods' requests.
    pub used: Resources,
    /// Host ports in use.
    pub ports: HashSet<HostPort>,
}

impl NodeInfo {
    /// Whether a port is in use; the wildcard address conflicts with every other.
    pub fn port_conflict(&self, wanted: &[HostPort]) -> bool {
        wanted.iter().any(|(ip, protocol, port)| {
            self.ports.iter().any(|(i, pr, po)| {
                po == port && pr == protocol && (i == ip || i == "0.0.0.0" || ip == "0.0.0.0")
            })
        })
    }
}

/// What is counted of a bound or assumed pod.
#[derive(Debug)]
struct CountedPod {
    node: Box<str>,
    uid: Box<str>,
    request: Resources,
    ports: Box<[HostPort]>,
}

/// The nodes, and the pods that are counted on them.
#[derive(Default)]
pub struct Cache {
    nodes: BTreeMap<String, NodeInfo>,
    pods: HashMap<Key, CountedPod>,
}

impl Cache {
    /// The nodes by name.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeInfo> {
        self.nodes.values()
    }

    /// A node.
    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name)
    }

    /// Adds, replaces or (`None`) removes a node. Its pods stay counted for a node that is created again.
    pub fn set_node(&mut self, name: &str, node: Option<Arc<Node>>) {
        let Some(node) = node else {
            self.nodes.remove(name);
            return;
        };
        let pairs = node.status.allocatable.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let allocatable = Resources::parse(pairs);
        if let Some(info) = self.nodes.get_mut(name) {
            info.allocatable = allocatable;
            info.node = node;
            return;
        }
        let mut info = NodeInfo { node, allocatable, used: Resources::default(), ports: HashSet::new() };
        for pod in self.pods.values().filter(|pod| &*pod.node == name) {
            info.used.add(&pod.request);
            info.ports.extend(pod.ports.iter().cloned());
        }
        self.nodes.insert(name.to_owned(), info);
    }

    /// Counts a pod on a node. A pod that is counted there already stays as it is; one that is counted on another node moves.
    pub fn add_pod(&mut self, key: &Key, node: &str, info: &PodInfo) {
        let uid = info.pod.metadata.uid.as_str();
        if self.pods.get(key).is_some_and(|pod| &*pod.node == node && &*pod.uid == uid) {
            return;
        }
        self.remove_pod(key);
        if let Some(n) = self.nodes.get_mut(node) {
            n.used.add(&info.request);
            n.ports.extend(info.ports.iter().cloned());
        }
        let counted = CountedPod {
            node: node.into(),
            uid: uid.into(),
            request: info.request.clone(),
            ports: info.ports.as_slice().into(),
        };
        self.pods.insert(key.clone(), counted);
    }

    /// Stops counting a pod; returns whether it was counted.
    pub fn remove_pod(&mut self, key: &Key) -> bool {
        let Some(pod) = self.pods.remove(key) else { return false };
        if let Some(n) = self.nodes.get_mut(&*pod.node) {
            n.used.subtract(&pod.request);
            for port in &pod.ports {
                n.ports.remove(port);
            }
        }
        true
    }

    /// The node on which a pod is counted.
    pub fn node_of(&self, key: &Key) -> Option<&str> {
        self.pods.get(key).map(|pod| &*pod.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, uid: &str) -> PodInfo {
        let pod = json!({"metadata": {"name": name, "uid": uid}, "spec": {"containers": [
            {"resources": {"requests": {"cpu": "100m"}}, "ports": [{"hostPort": 80}]}]}});
        PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn counts_a_pod_once() {
        let mut cache = Cache::default();
        let node: Arc<Node> = Arc::new(serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap());
        let key = Key::new("d", "p");
        cache.add_pod(&key, "n", &pod("p", "1"));
        cache.set_node("n", Some(node.clone()));
        cache.add_pod(&key, "n", &pod("p", "1"));
        assert_eq!(cache.node("n").unwrap().used.cpu, 100);
        // Another pod of the same name.
        cache.add_pod(&key, "n", &pod("p", "2"));
        assert_eq!(cache.node("n").unwrap().used.cpu, 100);
        assert!(cache.node("n").unwrap().port_conflict(&pod("q", "3").ports));
        assert!(cache.remove_pod(&key) && !cache.remove_pod(&key));
        assert_eq!(cache.node("n").unwrap().used, Resources::default());
        assert!(!cache.node("n").unwrap().port_conflict(&pod("q", "3").ports));
    }
}

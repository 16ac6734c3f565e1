//! The scheduler's picture of the cluster: nodes with what is taken on them.

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

/// What scheduling reads of a pod, computed once.
#[derive(Clone, Debug)]
pub struct PodInfo {
    /// The pod.
    pub pod: Arc<Pod>,
    /// What it asks for.
    pub request: Resources,
    /// Host ports it needs.
    pub ports: Vec<HostPort>,
}

impl PodInfo {
    /// Computes.
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

/// A node with what is taken on it.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// The node.
    pub node: Arc<Node>,
    /// What it can give.
    pub allocatable: Resources,
    /// What is taken.
    pub used: Resources,
    /// Host ports taken.
    pub ports: HashSet<HostPort>,
}

impl NodeInfo {
    /// Whether a needed port is taken; the wildcard address clashes with every other.
    pub fn port_conflict(&self, wanted: &[HostPort]) -> bool {
        wanted.iter().any(|(ip, protocol, port)| {
            self.ports.iter().any(|(i, pr, po)| {
                po == port && pr == protocol && (i == ip || i == "0.0.0.0" || ip == "0.0.0.0")
            })
        })
    }
}

/// The picture.
#[derive(Default)]
pub struct Cluster {
    nodes: BTreeMap<String, NodeInfo>,
    /// Where each bound or assumed pod is counted, with what it takes.
    placed: HashMap<Key, (String, String, PodInfo)>,
}

impl Cluster {
    /// The nodes by name.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeInfo> {
        self.nodes.values()
    }

    /// A node.
    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name)
    }

    /// Adds, replaces or (`None`) removes a node. Pods on it stay counted for when it comes back.
    pub fn set_node(&mut self, name: &str, node: Option<Arc<Node>>) {
        let Some(node) = node else {
            self.nodes.remove(name);
            return;
        };
        let pairs = node.status.allocatable.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let allocatable = Resources::parse(pairs);
        if let Some(known) = self.nodes.get_mut(name) {
            known.allocatable = allocatable;
            known.node = node;
            return;
        }
        let mut info = NodeInfo { node, allocatable, used: Resources::default(), ports: HashSet::new() };
        for (_, _, pod) in self.placed.values().filter(|(on, _, _)| on == name) {
            info.used.add(&pod.request);
            info.ports.extend(pod.ports.iter().cloned());
        }
        self.nodes.insert(name.to_owned(), info);
    }

    /// Counts a pod on a node. Counting it again there changes nothing; elsewhere, it moves.
    pub fn place(&mut self, key: &Key, node: &str, info: PodInfo) {
        let uid = info.pod.metadata.uid.clone();
        if self.placed.get(key).is_some_and(|(on, known, _)| on == node && *known == uid) {
            return;
        }
        self.remove(key);
        if let Some(n) = self.nodes.get_mut(node) {
            n.used.add(&info.request);
            n.ports.extend(info.ports.iter().cloned());
        }
        self.placed.insert(key.clone(), (node.to_owned(), uid, info));
    }

    /// Stops counting a pod; tells whether it was counted.
    pub fn remove(&mut self, key: &Key) -> bool {
        let Some((node, _, info)) = self.placed.remove(key) else { return false };
        if let Some(n) = self.nodes.get_mut(&node) {
            n.used.subtract(&info.request);
            info.ports.iter().for_each(|p| {
                n.ports.remove(p);
            });
        }
        true
    }

    /// Where a pod is counted.
    pub fn placement(&self, key: &Key) -> Option<&str> {
        self.placed.get(key).map(|(node, _, _)| node.as_str())
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
    fn a_pod_counts_once_wherever_it_is() {
        let mut cluster = Cluster::default();
        let node: Arc<Node> = Arc::new(serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap());
        let key = Key::new("d", "p");
        cluster.place(&key, "n", pod("p", "1"));
        cluster.set_node("n", Some(node.clone()));
        cluster.place(&key, "n", pod("p", "1"));
        assert_eq!(cluster.node("n").unwrap().used.cpu, 100);
        // The same name, another pod.
        cluster.place(&key, "n", pod("p", "2"));
        assert_eq!(cluster.node("n").unwrap().used.cpu, 100);
        assert!(cluster.node("n").unwrap().port_conflict(&pod("q", "3").ports));
        assert!(cluster.remove(&key) && !cluster.remove(&key));
        assert_eq!(cluster.node("n").unwrap().used, Resources::default());
        assert!(!cluster.node("n").unwrap().port_conflict(&pod("q", "3").ports));
    }
}

//! The table of nodes that decisions read: nodes with their pods, domains of topology keys, numbers of pods by sets, groups of
//! pods with affinity, images.
//!
//! Invariants:
//! - A decision reads one state of it: it is changed between decisions only. Preemption tries on copies of single nodes.
//! - Nodes are visited zone by zone in turn, so that the first ones that are looked at are not all of one zone.

mod counters;
mod domains;
mod node_info;

pub use counters::Counts;
pub use domains::Domains;
pub use node_info::NodeInfo;

use crate::{affinity::PodAffinity, matcher::PodMatcher, pod_info::PodInfo};
use counters::Counters;
use kaji_runtime::objects::Node;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

/// Topology keys of which the domains are kept.
const DOMAINS: usize = 64;
/// The label of a node's region.
const REGION: &str = "topology.kubernetes.io/region";
/// The label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Pods with equal affinity to other pods, and how many of them each node has.
pub struct AffinityGroup {
    /// Their affinity.
    pub affinity: Arc<PodAffinity>,
    /// Numbers of pods by the slots of nodes.
    pub counts: Vec<u32>,
    total: usize,
}

/// An image that nodes have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ImageState {
    /// Bytes, as the node said that reported it last.
    pub size: i64,
    /// On how many nodes it is.
    pub nodes: usize,
}

/// The table of nodes.
#[derive(Default)]
pub struct Snapshot {
    slots: Vec<Option<Arc<NodeInfo>>>,
    free: Vec<usize>,
    by_name: HashMap<Box<str>, usize>,
    order: Vec<usize>,
    /// By slot: changes whenever the node or its pods do, and is never used again.
    generations: Vec<u64>,
    last_generation: u64,
    /// The order is to be made again.
    stale: bool,
    groups: HashMap<Arc<PodAffinity>, AffinityGroup>,
    images: HashMap<Box<str>, ImageState>,
    counters: Mutex<Counters>,
    domains: Mutex<HashMap<Box<str>, Arc<Domains>>>,
}

impl Snapshot {
    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The nodes, zone by zone in turn.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<NodeInfo>> {
        self.order.iter().filter_map(|slot| self.slots.get(*slot)?.as_ref())
    }

    /// The node at a place of that order.
    pub fn nth(&self, place: usize) -> Option<&Arc<NodeInfo>> {
        self.slots.get(*self.order.get(place)?)?.as_ref()
    }

    /// A node by name.
    pub fn node(&self, name: &str) -> Option<&Arc<NodeInfo>> {
        self.slots.get(*self.by_name.get(name)?)?.as_ref()
    }

    /// The generation of the node in a slot: while it is the same, so is the node with its pods.
    pub fn generation(&self, slot: usize) -> u64 {
        self.generations.get(slot).copied().unwrap_or_default()
    }

    fn changed(&mut self, slot: usize) {
        if self.generations.len() <= slot {
            self.generations.resize(slot + 1, 0);
        }
        self.last_generation += 1;
        self.generations[slot] = self.last_generation;
    }

    /// A node by its slot.
    pub fn by_slot(&self, slot: usize) -> Option<&Arc<NodeInfo>> {
        self.slots.get(slot)?.as_ref()
    }

    /// The groups of pods with affinity to other pods.
    pub fn affinity_groups(&self) -> impl Iterator<Item = &AffinityGroup> {
        self.groups.values()
    }

    /// An image by a reference.
    pub fn image(&self, name: &str) -> Option<ImageState> {
        self.images.get(name).copied()
    }

    /// The domains of a topology key.
    pub fn domains(&self, key: &str) -> Arc<Domains> {
        let mut kept = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(domains) = kept.get(key) {
            return domains.clone();
        }
        if kept.len() >= DOMAINS {
            kept.clear();
        }
        let domains = Arc::new(Domains::new(key, self.slots.iter().flatten()));
        kept.insert(key.into(), domains.clone());
        domains
    }

    /// How many pods of a set each node has, by the slots of nodes.
    pub fn count(&self, matcher: &PodMatcher) -> Counts {
        let all = || {
            let count = |node: &Option<Arc<NodeInfo>>| {
                let matching = node.iter().flat_map(|n| n.pods()).filter(|p| matcher.matches(&p.pod));
                u32::try_from(matching.count()).unwrap_or(u32::MAX)
            };
            self.slots.iter().map(count).collect()
        };
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).get(matcher, all)
    }

    /// Adds or replaces a node; its pods stay.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.as_str();
        if let Some(slot) = self.by_name.get(name).copied()
            && let Some(info) = self.slots.get_mut(slot).and_then(Option::as_mut)
        {
            let (labels, images) = (
                info.node.metadata.labels != node.metadata.labels,
                info.node.status.images != node.status.images,
            );
            let former = info.node.clone();
            Arc::make_mut(info).set_node(node.clone());
            self.changed(slot);
            if images {
                self.count_images(&former, false);
                self.count_images(&node, true);
            }
            if labels {
                self.relabelled();
            }
            return;
        }
        let slot = self.free.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.by_name.insert(name.into(), slot);
        self.count_images(&node, true);
        self.slots[slot] = Some(Arc::new(NodeInfo::new(slot, node)));
        self.changed(slot);
        self.relabelled();
    }

    /// Removes a node; its pods are no longer counted.
    pub fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.by_name.remove(name) else { return };
        let Some(info) = self.slots.get_mut(slot).and_then(Option::take) else { return };
        for pod in info.pods() {
            self.uncount(pod, slot);
        }
        self.count_images(&info.node, false);
        self.free.push(slot);
        self.relabelled();
    }

    /// Counts a pod on a node, if the node is there.
    pub fn add_pod(&mut self, node: &str, pod: &Arc<PodInfo>) {
        let Some(slot) = self.by_name.get(node).copied() else { return };
        let Some(info) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        Arc::make_mut(info).add_pod(pod);
        self.changed(slot);
        self.counters.get_mut().unwrap_or_else(PoisonError::into_inner).add(pod, slot);
        if let Some(affinity) = &pod.affinity {
            let group = self.groups.entry(affinity.clone()).or_insert_with(|| AffinityGroup {
                affinity: affinity.clone(),
                counts: vec![],
                total: 0,
            });
            if group.counts.len() <= slot {
                group.counts.resize(slot + 1, 0);
            }
            group.counts[slot] += 1;
            group.total += 1;
        }
    }

    /// Stops counting a pod on a node.
    pub fn remove_pod(&mut self, node: &str, pod: &PodInfo) {
        let Some(slot) = self.by_name.get(node).copied() else { return };
        let Some(info) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        if Arc::make_mut(info).remove_pod(pod.uid()) {
            self.changed(slot);
            self.uncount(pod, slot);
        }
    }

    fn uncount(&mut self, pod: &PodInfo, slot: usize) {
        self.counters.get_mut().unwrap_or_else(PoisonError::into_inner).remove(pod, slot);
        let Some(affinity) = &pod.affinity else { return };
        let Some(group) = self.groups.get_mut(affinity) else { return };
        if let Some(count) = group.counts.get_mut(slot) {
            *count = count.saturating_sub(1);
        }
        group.total = group.total.saturating_sub(1);
        if group.total == 0 {
            self.groups.remove(affinity);
        }
    }

    fn count_images(&mut self, node: &Node, present: bool) {
        for image in &node.status.images {
            for name in &image.names {
                let state = self.images.entry(name.as_str().into()).or_default();
                if present {
                    *state = ImageState { size: image.size_bytes, nodes: state.nodes + 1 };
                    continue;
                }
                state.nodes = state.nodes.saturating_sub(1);
                if state.nodes == 0 {
                    self.images.remove(name.as_str());
                }
            }
        }
    }

    /// Labels of nodes have changed: domains and the order of nodes are made again.
    fn relabelled(&mut self) {
        self.domains.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.stale = true;
    }

    /// Replaces a pod on a node by a newer state of it that counts the same.
    pub fn replace_pod(&mut self, node: &str, pod: &Arc<PodInfo>) {
        let Some(slot) = self.by_name.get(node).copied() else { return };
        let Some(info) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        if let Some(counted) = Arc::make_mut(info).pods.iter_mut().find(|p| p.0.uid() == pod.uid()) {
            counted.0 = pod.clone();
        }
    }

    /// Makes the order of nodes after nodes came, left or changed their zone: before the first decision that follows.
    pub fn settle(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let mut zones: BTreeMap<(&str, &str), Vec<(&str, usize)>> = BTreeMap::new();
        for node in self.slots.iter().flatten() {
            let label = |key: &str| node.label(key).unwrap_or_default();
            zones.entry((label(REGION), label(ZONE))).or_default().push((node.name(), node.slot));
        }
        let mut order = Vec::with_capacity(self.by_name.len());
        let mut zones: Vec<_> = zones.into_values().collect();
        zones.iter_mut().for_each(|nodes| nodes.sort_unstable());
        let longest = zones.iter().map(Vec::len).max().unwrap_or_default();
        for place in 0..longest {
            order.extend(zones.iter().filter_map(|nodes| Some(nodes.get(place)?.1)));
        }
        self.order = order;
    }
}

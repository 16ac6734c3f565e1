//! A pool of devices: the slices of its newest generation, checked once.
//!
//! Invariants:
//! - Devices are in the order of their slices' names, and in a slice as the driver has them: drivers choose by it which devices
//!   are taken first.
//! - Nothing is allocated of a pool that is incomplete or contradicts itself.

use super::{DeviceId, selectors::Verdicts, usage::Usage};
use crate::node_selector::NodeSelector;
use kaji_meta::Quantity;
use kaji_runtime::objects::{Device, DeviceTaint, DeviceTaintRule, Node, ResourceSlice};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    sync::Arc,
};

/// Driver and pool.
pub type PoolKey = (Box<str>, Box<str>);
/// What is left of counters, by set and name.
pub type Counters = BTreeMap<(Box<str>, Box<str>), Quantity>;

/// The nodes that reach a slice or a device.
#[derive(Debug)]
enum Reach {
    Node(Box<str>),
    All,
    Selected(NodeSelector),
    /// The devices say it.
    Devices,
    None,
}

impl Reach {
    fn matches(&self, node: &Node) -> bool {
        match self {
            Reach::Node(name) => **name == *node.metadata.name,
            Reach::All => true,
            Reach::Selected(selector) => selector.matches(node),
            Reach::Devices | Reach::None => false,
        }
    }

    fn of(node: Option<&str>, all: bool, selector: Option<&serde_json::Value>, devices: bool) -> Self {
        match (node.filter(|name| !name.is_empty()), selector) {
            (Some(name), _) => Reach::Node(name.into()),
            (None, _) if all => Reach::All,
            (None, Some(selector)) => Reach::Selected(NodeSelector::parse(selector)),
            (None, None) if devices => Reach::Devices,
            (None, None) => Reach::None,
        }
    }
}

#[derive(Debug)]
struct PoolSlice {
    reach: Reach,
    devices: Range<usize>,
    has_binding_conditions: bool,
}

/// A device of a pool.
#[derive(Debug)]
pub struct Entry {
    /// Which.
    pub id: DeviceId,
    /// Its slice, and its place there.
    slice: Arc<ResourceSlice>,
    index: usize,
    /// The nodes that reach it, if the slice leaves that to its devices.
    reach: Option<Reach>,
    /// Taints of the driver and of rules that keep claims away.
    pub taints: Vec<DeviceTaint>,
    /// What selectors have said of it.
    pub verdicts: Verdicts,
}

impl Entry {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.slice.spec.devices[self.index]
    }

    /// Whether a node reaches it that reaches its slice.
    pub fn reached_by(&self, node: &Node) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.matches(node))
    }

    /// The only node that reaches it, and the selector of those that do, raw.
    pub fn nodes(&self) -> (Option<&str>, Option<&serde_json::Value>) {
        let (spec, device) = (&self.slice.spec, self.device());
        match spec.per_device_node_selection {
            true => (device.node_name.as_deref(), device.node_selector.as_ref()),
            false => (spec.node_name.as_deref(), spec.node_selector.as_ref()),
        }
    }
}

/// Whether devices may be allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// All slices are there.
    Complete,
    /// The driver is publishing it.
    Incomplete,
    /// It contradicts itself.
    Invalid,
}

/// A pool.
#[derive(Debug)]
pub struct Pool {
    /// Driver and name.
    pub key: PoolKey,
    /// Whether devices may be allocated.
    pub health: Health,
    /// The devices.
    pub entries: Vec<Entry>,
    slices: Vec<PoolSlice>,
    /// Slices by the only node that reaches them.
    by_node: HashMap<Box<str>, Vec<usize>>,
    /// The other slices.
    shared: Vec<usize>,
    /// Two of all devices have one name: nodes that reach both cannot use the pool.
    has_duplicates: bool,
    /// Counters, before anything is taken.
    counters: Counters,
}

impl Pool {
    /// Of all its slices, with the rules that may concern it.
    pub fn new(
        key: PoolKey,
        slices: &BTreeMap<Box<str>, Arc<ResourceSlice>>,
        rules: &[Arc<DeviceTaintRule>],
    ) -> Self {
        let generation = slices.values().map(|s| s.spec.pool.generation).max().unwrap_or_default();
        let newest: Vec<_> = slices.values().filter(|s| s.spec.pool.generation == generation).collect();
        let count = newest.first().map_or(0, |s| s.spec.pool.resource_slice_count);
        let mut pool = Pool {
            key,
            health: Health::Complete,
            entries: vec![],
            slices: vec![],
            by_node: HashMap::new(),
            shared: vec![],
            has_duplicates: false,
            counters: Counters::new(),
        };
        let mut contradiction = false;
        for slice in &newest {
            contradiction |= !pool.add_counters(slice);
            pool.add_slice(slice, rules);
        }
        let names: BTreeSet<&str> = pool.entries.iter().map(|e| &*e.id.device).collect();
        pool.has_duplicates = names.len() != pool.entries.len();
        if i64::try_from(newest.len()).unwrap_or(i64::MAX) != count {
            pool.health = Health::Incomplete;
        } else if contradiction || !pool.counters_are_known() {
            pool.health = Health::Invalid;
        }
        pool
    }

    /// False if a set has a name that another one has.
    fn add_counters(&mut self, slice: &ResourceSlice) -> bool {
        let mut unique = true;
        for set in &slice.spec.shared_counters {
            for (name, counter) in &set.counters {
                let key = (set.name.clone(), name.clone());
                unique &= self.counters.insert(key, counter.value.clone()).is_none();
            }
        }
        unique
    }

    fn add_slice(&mut self, slice: &Arc<ResourceSlice>, rules: &[Arc<DeviceTaintRule>]) {
        let spec = &slice.spec;
        if !spec.shared_counters.is_empty() {
            return;
        }
        let per_device = spec.per_device_node_selection;
        let reach =
            Reach::of(spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref(), per_device);
        let place = self.slices.len();
        match &reach {
            Reach::Node(name) => self.by_node.entry(name.clone()).or_default().push(place),
            _ => self.shared.push(place),
        }
        let from = self.entries.len();
        for (index, device) in spec.devices.iter().enumerate() {
            let id = DeviceId {
                driver: self.key.0.clone(),
                pool: self.key.1.clone(),
                device: device.name.clone(),
            };
            let selector = device.node_selector.as_ref();
            let reach =
                per_device.then(|| Reach::of(device.node_name.as_deref(), device.all_nodes, selector, false));
            let taints = taints(&id, device, rules);
            let verdicts = Verdicts::default();
            self.entries.push(Entry { id, slice: slice.clone(), index, reach, taints, verdicts });
        }
        let has_binding_conditions = spec.devices.iter().any(|d| !d.binding_conditions.is_empty());
        self.slices.push(PoolSlice { reach, devices: from..self.entries.len(), has_binding_conditions });
    }

    /// Whether devices take counters only that the pool has.
    fn counters_are_known(&self) -> bool {
        self.entries.iter().flat_map(|e| &e.device().consumes_counters).all(|taken| {
            taken
                .counters
                .keys()
                .all(|name| self.counters.contains_key(&(taken.counter_set.clone(), name.clone())))
        })
    }

    /// The names of nodes that alone reach some slice.
    pub fn nodes(&self) -> impl Iterator<Item = &Box<str>> {
        self.by_node.keys()
    }

    /// Whether other nodes may reach it as well.
    pub fn is_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// What a node reaches of it, if anything.
    pub fn on(&self, node: &Node) -> Option<NodePool> {
        let of_node = self.by_node.get(node.metadata.name.as_str()).into_iter().flatten();
        let mut slices: Vec<usize> = of_node.copied().collect();
        slices.extend(self.shared.iter().copied().filter(|place| self.slice_is_reached(*place, node)));
        slices.sort_unstable();
        if slices.is_empty() {
            return None;
        }
        let reached = || slices.iter().map(|place| &self.slices[*place]);
        let late = reached().any(|slice| slice.has_binding_conditions);
        let devices: Vec<usize> = reached().flat_map(|slice| slice.devices.clone()).collect();
        let duplicate = self.has_duplicates && {
            let names: BTreeSet<&str> = devices.iter().map(|at| &*self.entries[*at].id.device).collect();
            names.len() != devices.len()
        };
        let health =
            if duplicate && self.health == Health::Complete { Health::Invalid } else { self.health.clone() };
        Some(NodePool { health, late, devices })
    }

    fn slice_is_reached(&self, place: usize, node: &Node) -> bool {
        let slice = &self.slices[place];
        match &slice.reach {
            Reach::Devices => self.entries[slice.devices.clone()].iter().any(|e| e.reached_by(node)),
            reach => reach.matches(node),
        }
    }

    /// What is left of the counters; it may be less than nothing.
    pub fn counters_left(&self, usage: &Usage) -> Counters {
        let mut left = self.counters.clone();
        if left.is_empty() {
            return left;
        }
        for entry in self.entries.iter().filter(|e| usage.contains(&e.id)) {
            for (key, amount) in counters_of(entry.device()) {
                if let Some(left) = left.get_mut(&key) {
                    *left -= amount;
                }
            }
        }
        left
    }
}

/// What a device takes of its pool's counters.
pub fn counters_of(device: &Device) -> impl Iterator<Item = ((Box<str>, Box<str>), &Quantity)> {
    device.consumes_counters.iter().flat_map(|taken| {
        let counters = taken.counters.iter();
        counters.map(|(name, counter)| ((taken.counter_set.clone(), name.clone()), &counter.value))
    })
}

/// The taints that keep claims away: those of the driver, then those of rules.
fn taints(id: &DeviceId, device: &Device, rules: &[Arc<DeviceTaintRule>]) -> Vec<DeviceTaint> {
    let added = rules.iter().filter(|rule| rule.spec.selects(&id.driver, &id.pool, &id.device));
    let all = device.taints.iter().chain(added.map(|rule| &rule.spec.taint));
    all.filter(|taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute")).cloned().collect()
}

/// What a node reaches of a pool.
pub struct NodePool {
    /// Whether devices may be allocated.
    pub health: Health,
    /// Some device needs preparation before a pod is bound: other pools are better.
    pub late: bool,
    /// The devices, by their places in the pool.
    pub devices: Vec<usize>,
}

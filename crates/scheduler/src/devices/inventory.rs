//! All pools, and which of them a node reaches.
//!
//! Invariant: only pools of which a slice has changed are made again, or all when rules for taints change.

use super::pool::{NodePool, Pool, PoolKey};
use kaji_runtime::{
    ObjectSnapshot,
    objects::{DeviceTaintRule, Node, ResourceSlice},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// The pools.
#[derive(Clone, Default)]
pub struct Inventory {
    slices: ObjectSnapshot<ResourceSlice>,
    rules: ObjectSnapshot<DeviceTaintRule>,
    members: BTreeMap<PoolKey, BTreeMap<Box<str>, Arc<ResourceSlice>>>,
    pools: HashMap<PoolKey, Arc<Pool>>,
    /// Pools of which some node alone reaches a slice.
    by_node: HashMap<Box<str>, BTreeSet<PoolKey>>,
    /// Pools that several nodes may reach.
    shared: BTreeSet<PoolKey>,
}

fn key_of(slice: &ResourceSlice) -> PoolKey {
    (slice.spec.driver.clone(), slice.spec.pool.name.clone())
}

impl Inventory {
    /// Whether it is that of these slices and rules.
    pub fn is_of(
        &self,
        slices: &ObjectSnapshot<ResourceSlice>,
        rules: &ObjectSnapshot<DeviceTaintRule>,
    ) -> bool {
        slices.changes_since(&self.slices).next().is_none()
            && rules.changes_since(&self.rules).next().is_none()
    }

    /// Brings it up to date.
    pub fn update(&mut self, slices: ObjectSnapshot<ResourceSlice>, rules: ObjectSnapshot<DeviceTaintRule>) {
        let mut stale = BTreeSet::new();
        for (old, new) in slices.changes_since(&self.slices) {
            if let Some(old) = old {
                let key = key_of(old);
                if let Some(members) = self.members.get_mut(&key) {
                    members.remove(old.metadata.name.as_str());
                }
                stale.insert(key);
            }
            if let Some(new) = new {
                let key = key_of(new);
                let members = self.members.entry(key.clone()).or_default();
                members.insert(new.metadata.name.as_str().into(), new.clone());
                stale.insert(key);
            }
        }
        if rules.changes_since(&self.rules).next().is_some() {
            stale.extend(self.members.keys().cloned());
        }
        let rule_list: Vec<_> = rules.iter().cloned().collect();
        for key in stale {
            self.make_again(key, &rule_list);
        }
        (self.slices, self.rules) = (slices, rules);
    }

    fn make_again(&mut self, key: PoolKey, rules: &[Arc<DeviceTaintRule>]) {
        if let Some(former) = self.pools.remove(&key) {
            self.shared.remove(&key);
            for node in former.nodes() {
                if let Some(keys) = self.by_node.get_mut(node) {
                    keys.remove(&key);
                    if keys.is_empty() {
                        self.by_node.remove(node);
                    }
                }
            }
        }
        let Some(members) = self.members.get(&key).filter(|members| !members.is_empty()) else {
            self.members.remove(&key);
            return;
        };
        let pool = Pool::new(key.clone(), members, rules);
        for node in pool.nodes() {
            self.by_node.entry(node.clone()).or_default().insert(key.clone());
        }
        if pool.is_shared() {
            self.shared.insert(key.clone());
        }
        self.pools.insert(key, Arc::new(pool));
    }

    /// The pools that a node reaches, by driver and name; those with devices that need preparation come last.
    pub fn on(&self, node: &Node) -> Vec<(&Arc<Pool>, NodePool)> {
        let own = self.by_node.get(node.metadata.name.as_str());
        let mut keys: Vec<&PoolKey> = own.into_iter().flatten().chain(&self.shared).collect();
        keys.sort_unstable();
        keys.dedup();
        let pools = keys.into_iter().filter_map(|key| self.pools.get(key));
        let mut pools: Vec<_> = pools.filter_map(|pool| Some((pool, pool.on(node)?))).collect();
        pools.sort_by_key(|(_, part)| part.late);
        pools
    }
}

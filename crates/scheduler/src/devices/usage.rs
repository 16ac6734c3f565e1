//! What is allocated: whole devices, and parts of devices that allow several allocations.
//!
//! Invariants:
//! - Taking an allocation back undoes adding it, whatever happened between.
//! - Allocations with admin access count for nothing.
//! - A copy costs nothing: decisions keep the state that they have seen.

use super::DeviceId;
use imbl::HashMap;
use kaji_meta::Quantity;
use kaji_runtime::objects::{DeviceAllocation, DeviceResult};
use std::collections::BTreeMap;

/// Amounts by the capacity's name.
pub type Amounts = BTreeMap<Box<str>, Quantity>;

/// What is taken of a device that allows several allocations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    /// By how many allocations.
    pub count: usize,
    /// How much.
    pub consumed: Amounts,
}

impl Shares {
    /// Counts one more.
    pub fn add(&mut self, consumed: &Amounts) {
        self.count += 1;
        for (name, amount) in consumed {
            *self.consumed.entry(name.clone()).or_default() += amount;
        }
    }

    /// Counts one less.
    pub fn remove(&mut self, consumed: &Amounts) {
        self.count = self.count.saturating_sub(1);
        for (name, amount) in consumed {
            if let Some(sum) = self.consumed.get_mut(name) {
                *sum -= amount;
            }
        }
    }
}

/// What is allocated.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Whole devices, and by how many allocations: an allocation that is being written counts beside the written one.
    whole: HashMap<DeviceId, usize>,
    shared: HashMap<DeviceId, Shares>,
}

fn id(result: &DeviceResult) -> DeviceId {
    DeviceId { driver: result.driver.clone(), pool: result.pool.clone(), device: result.device.clone() }
}

fn consumed(result: &DeviceResult) -> Amounts {
    let amount = |value| Quantity::from_value(value).unwrap_or_default();
    result.consumed_capacity.iter().map(|(name, value)| (name.clone(), amount(value))).collect()
}

impl Usage {
    /// Counts an allocation.
    pub fn add(&mut self, allocation: &DeviceAllocation) {
        for result in counted(allocation) {
            match result.share_id {
                Some(_) => self.shared.entry(id(result)).or_default().add(&consumed(result)),
                None => *self.whole.entry(id(result)).or_default() += 1,
            }
        }
    }

    /// Takes an allocation back.
    pub fn remove(&mut self, allocation: &DeviceAllocation) {
        for result in counted(allocation) {
            let id = id(result);
            if result.share_id.is_some() {
                if let Some(shares) = self.shared.get_mut(&id) {
                    shares.remove(&consumed(result));
                    if shares.count == 0 {
                        self.shared.remove(&id);
                    }
                }
            } else if let Some(count) = self.whole.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    self.whole.remove(&id);
                }
            }
        }
    }

    /// Whether a device is allocated as a whole.
    pub fn is_whole(&self, id: &DeviceId) -> bool {
        self.whole.contains_key(id)
    }

    /// What is taken of a device that allows several allocations.
    pub fn shares(&self, id: &DeviceId) -> Option<&Shares> {
        self.shared.get(id)
    }

    /// Whether a device is allocated, as a whole or in part.
    pub fn contains(&self, id: &DeviceId) -> bool {
        self.is_whole(id) || self.shared.contains_key(id)
    }
}

fn counted(allocation: &DeviceAllocation) -> impl Iterator<Item = &DeviceResult> {
    allocation.devices.results.iter().filter(|result| result.admin_access != Some(true))
}

//! Devices of dynamic resource allocation: which there are, which are taken, and the search for those that claims ask for.
//!
//! - `inventory` with `pool`: what drivers publish, by pool; which devices a node reaches.
//! - `usage`: what is allocated.
//! - `requests`, `selectors`, `constraints`, `capacity`: what claims ask for.
//! - `allocator` with `results`: the search, pure, and what is written of its outcome.
//! - `classes`: extended resources that stand for classes of devices.
//!
//! Invariants:
//! - A device is handed out once, unless it allows several allocations, or the request has admin access.
//! - What is taken of a shared device's capacity and of a pool's counters is never more than there is.
//!
//! Source: Kubernetes, "Dynamic Resource Allocation"; upstream's `k8s.io/dynamic-resource-allocation/structured`.

mod allocator;
mod capacity;
mod classes;
mod constraints;
mod inventory;
mod pool;
mod requests;
mod results;
mod selectors;
#[cfg(test)]
mod tests;
mod usage;

pub use allocator::{AllocationError, Limit, allocate};
pub use classes::{CLASS_PREFIX, class_of, is_backed_by_devices};
pub use inventory::Inventory;
pub use requests::{Claim, DeviceRequests};
pub use selectors::Selectors;
pub use usage::Usage;

/// A device: driver, pool, name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The driver.
    pub driver: Box<str>,
    /// The pool.
    pub pool: Box<str>,
    /// The name.
    pub device: Box<str>,
}

impl std::fmt::Display for DeviceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

//! What decisions about devices read: the inventory, what is allocated, and allocations that are being written.
//!
//! Invariants:
//! - Claims, usage and pending allocations are of one moment: an allocation that is pending counts until the claims show it.
//! - Only what has changed since the last snapshot is counted again.

use crate::{
    devices::{Inventory, Usage},
    framework::Listers,
};
use imbl::HashMap;
use kaji_runtime::{
    ObjectSnapshot,
    objects::{DeviceAllocation, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice},
};
use std::sync::{Arc, Mutex, PoisonError};

/// What one decision sees.
#[derive(Clone)]
pub struct LedgerSnapshot {
    /// The claims.
    pub claims: ObjectSnapshot<ResourceClaim>,
    /// The classes.
    pub classes: ObjectSnapshot<DeviceClass>,
    /// What is allocated, pending allocations included.
    pub usage: Usage,
    /// The devices.
    pub inventory: Arc<Inventory>,
    pending: HashMap<String, Arc<DeviceAllocation>>,
}

impl LedgerSnapshot {
    /// Whether the allocation of a claim is being written.
    pub fn is_pending(&self, uid: &str) -> bool {
        self.pending.contains_key(uid)
    }
}

#[derive(Default)]
struct State {
    claims: ObjectSnapshot<ResourceClaim>,
    usage: Usage,
    pending: HashMap<String, Arc<DeviceAllocation>>,
    inventory: Arc<Inventory>,
}

/// The present state.
#[derive(Default)]
pub struct Ledger(Mutex<State>);

impl Ledger {
    /// The state as of now.
    pub fn snapshot(&self, listers: &Listers) -> LedgerSnapshot {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let claims = listers.get::<ResourceClaim>();
        for (old, new) in claims.changes_since(&state.claims) {
            if let Some(allocation) = old.and_then(|claim| claim.status.allocation.as_ref()) {
                state.usage.remove(allocation);
            }
            if let Some(allocation) = new.and_then(|claim| claim.status.allocation.as_ref()) {
                state.usage.add(allocation);
            }
        }
        state.claims = claims.clone();
        let (slices, rules) = (listers.get::<ResourceSlice>(), listers.get::<DeviceTaintRule>());
        if !state.inventory.is_of(&slices, &rules) {
            Arc::make_mut(&mut state.inventory).update(slices, rules);
        }
        LedgerSnapshot {
            claims,
            classes: listers.get(),
            usage: state.usage.clone(),
            inventory: state.inventory.clone(),
            pending: state.pending.clone(),
        }
    }

    /// Counts an allocation that is going to be written, by the claim's uid.
    pub fn add_pending(&self, uid: &str, allocation: Arc<DeviceAllocation>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.usage.add(&allocation);
        if let Some(former) = state.pending.insert(uid.to_owned(), allocation) {
            state.usage.remove(&former);
        }
    }

    /// An allocation was not written, or the claims show it.
    pub fn remove_pending(&self, uid: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(allocation) = state.pending.remove(uid) {
            state.usage.remove(&allocation);
        }
    }
}

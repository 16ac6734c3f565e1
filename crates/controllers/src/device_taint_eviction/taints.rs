//! Which taints evict the users of a claim, and when.
//!
//! Invariants: only slices of a pool's newest generation count. A toleration counts only if its effect is `NoExecute`: upstream's
//! loop takes one for all effects as a toleration of scheduling alone.

use jiff::{SignedDuration, Timestamp};
use kaji_runtime::{
    Key, ObjectSnapshot, View,
    objects::{
        DeviceResult, DeviceTaint, DeviceTaintRule, DeviceToleration, Pod, ResourceClaim, ResourceSlice,
    },
};
use std::{collections::BTreeSet, sync::Arc};

/// The effect that evicts.
pub const NO_EXECUTE: &str = "NoExecute";

/// Whether a taint evicts.
pub fn evicts(taint: &DeviceTaint) -> bool {
    *taint.effect == *NO_EXECUTE
}

/// The devices that a claim has.
pub fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceResult> {
    claim.status.allocation.iter().flat_map(|allocation| &allocation.devices.results)
}

/// The pods that a claim is reserved for.
pub fn consumers(claim: &ResourceClaim) -> impl Iterator<Item = Key> {
    let pods = claim.status.reserved_for.iter().filter(|consumer| consumer.is_pod());
    pods.map(|consumer| Key::new(claim.metadata.namespace.as_str(), consumer.name.as_str()))
}

/// The pods that claims with certain devices are reserved for.
pub fn users(
    claims: &ObjectSnapshot<ResourceClaim>,
    wanted: impl Fn(&DeviceResult) -> bool,
) -> BTreeSet<Key> {
    claims.iter().filter(|claim| results(claim).any(&wanted)).flat_map(|claim| consumers(claim)).collect()
}

/// When pods have to go, and the uids of the rules that ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub at: Timestamp,
    pub rules: BTreeSet<String>,
}

impl Eviction {
    /// The earlier one, with the reasons of both.
    fn join(former: Option<Eviction>, mut other: Eviction) -> Option<Eviction> {
        if let Some(former) = former {
            other.at = other.at.min(former.at);
            other.rules.extend(former.rules);
        }
        Some(other)
    }
}

/// The taints of all devices.
pub struct Taints {
    slices: ObjectSnapshot<ResourceSlice>,
    rules: Vec<Arc<DeviceTaintRule>>,
}

impl Taints {
    /// Those that are in force.
    pub fn of(view: &View) -> Taints {
        let rules = view.get::<DeviceTaintRule>();
        let rules = rules.iter().filter(|rule| evicts(&rule.spec.taint)).cloned().collect();
        Taints { slices: view.get(), rules }
    }

    /// A rule's, as if it evicted, and no others.
    pub fn only(rule: &Arc<DeviceTaintRule>) -> Taints {
        Taints { slices: ObjectSnapshot::default(), rules: vec![rule.clone()] }
    }

    /// When a pod has to go because of any of its claims.
    pub fn of_pod(&self, pod: &Pod, claims: &ObjectSnapshot<ResourceClaim>) -> Option<Eviction> {
        // One that is not bound does not use them yet.
        if pod.spec.node_name.is_empty() {
            return None;
        }
        let mut eviction = None;
        for wanted in &pod.spec.resource_claims {
            let name = pod.device_claim(wanted).flatten();
            let Some(claim) = name.and_then(|name| claims.get(&pod.metadata.namespace, name)) else {
                continue;
            };
            // One that was made for another pod of the name is not used.
            let own = |claim: &ResourceClaim| {
                claim.metadata.controller().is_some_and(|owner| owner.uid == pod.metadata.uid)
            };
            let usable = wanted.resource_claim_name.is_some() || own(claim);
            let reserved = claim.status.reserved_for.iter().any(|c| c.is_pod() && c.uid == pod.metadata.uid);
            if usable
                && reserved
                && let Some(other) = self.of_claim(claim)
            {
                eviction = Eviction::join(eviction, other);
            }
        }
        eviction
    }

    fn of_claim(&self, claim: &ResourceClaim) -> Option<Eviction> {
        let mut eviction = None;
        for result in results(claim) {
            let own = self.of_device(result).into_iter().map(|taint| (taint, None));
            let added =
                self.rules.iter().filter(|r| r.spec.selects(&result.driver, &result.pool, &result.device));
            let added = added.map(|rule| (rule.spec.taint.clone(), Some(&rule.metadata.uid)));
            for (taint, rule) in own.chain(added) {
                if let Some(at) = end(&result.tolerations, &taint) {
                    let rules = rule.cloned().into_iter().collect();
                    eviction = Eviction::join(eviction, Eviction { at, rules });
                }
            }
        }
        eviction
    }

    /// The taints that a driver gave a device.
    fn of_device(&self, result: &DeviceResult) -> Vec<DeviceTaint> {
        let term = ResourceSlice::pool_term(&result.driver, &result.pool);
        let newest = newest(self.slices.indexed(ResourceSlice::POOL, &term));
        let mut devices = newest.iter().flat_map(|slice| &slice.spec.devices);
        let device = devices.find(|device| device.name == result.device);
        device.iter().flat_map(|d| &d.taints).filter(|taint| evicts(taint)).cloned().collect()
    }
}

/// The slices of a pool's newest generation, of all slices of the pool.
pub fn newest<'a>(slices: impl Iterator<Item = &'a Arc<ResourceSlice>>) -> Vec<&'a Arc<ResourceSlice>> {
    let slices: Vec<_> = slices.collect();
    let generation = slices.iter().map(|slice| slice.spec.pool.generation).max();
    slices.into_iter().filter(|slice| Some(slice.spec.pool.generation) == generation).collect()
}

/// When the users of a device with a taint have to go; never if the taint is tolerated without an end.
fn end(tolerations: &[DeviceToleration], taint: &DeviceTaint) -> Option<Timestamp> {
    let mut shortest: Option<i64> = None;
    for toleration in tolerations.iter().filter(|toleration| tolerates(toleration, taint)) {
        let seconds = toleration.toleration_seconds?.max(0);
        shortest = Some(shortest.map_or(seconds, |s| s.min(seconds)));
    }
    // The server sets the time of each taint.
    let added = taint.time_added.unwrap_or(Timestamp::UNIX_EPOCH);
    let stay = SignedDuration::from_secs(shortest.unwrap_or_default());
    Some(added.checked_add(stay).unwrap_or(Timestamp::MAX))
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let value = match &*toleration.operator {
        "Exists" => true,
        "" | "Equal" => toleration.value == taint.value,
        _ => false,
    };
    *toleration.effect == *NO_EXECUTE && (toleration.key.is_empty() || toleration.key == taint.key) && value
}

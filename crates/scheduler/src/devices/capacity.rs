//! What a request takes of a device's capacity.
//!
//! Invariant: what a request takes obeys the capacity's policy, or the device is not for it.
//!
//! Source: KEP-5075 (consumable capacity).

use super::usage::{Amounts, Shares};
use kaji_meta::{Quantity, quantity::Format};
use kaji_runtime::objects::{CapacityPolicy, CapacityRange, Device, DeviceCapacity};

/// What a request takes of a device; `None` if it asks for a capacity that the device does not have, or for an amount that
/// the policy forbids.
pub fn consumption(requested: &Amounts, device: &Device) -> Option<Amounts> {
    if requested.keys().any(|name| !device.capacity.contains_key(name)) {
        return None;
    }
    let mut taken = Amounts::new();
    for (name, capacity) in &device.capacity {
        let amount = amount(requested.get(name), capacity);
        if capacity.request_policy.as_ref().is_some_and(|policy| !allowed(&amount, policy)) {
            return None;
        }
        taken.insert(name.clone(), amount);
    }
    Some(taken)
}

/// Whether a device has so much left.
pub fn fits<'a>(
    taken: &Amounts,
    device: &Device,
    others: impl IntoIterator<Item = &'a Shares> + Clone,
) -> bool {
    taken.iter().all(|(name, amount)| {
        let used = others.clone().into_iter().filter_map(|shares| shares.consumed.get(name));
        let sum = used.fold(amount.clone(), |sum, used| sum.add(used));
        device.capacity.get(name).is_some_and(|capacity| sum <= capacity.value)
    })
}

fn amount(requested: Option<&Quantity>, capacity: &DeviceCapacity) -> Quantity {
    let policy = capacity.request_policy.as_ref();
    let Some(requested) = requested else {
        return policy.and_then(|p| p.default.clone()).unwrap_or_else(|| capacity.value.clone());
    };
    match policy {
        Some(CapacityPolicy { valid_range: Some(range), .. }) => round_up(requested, range),
        Some(policy) => {
            policy.valid_values.iter().find(|valid| requested <= *valid).unwrap_or(requested).clone()
        }
        None => requested.clone(),
    }
}

fn round_up(requested: &Quantity, range: &CapacityRange) -> Quantity {
    let Some(min) = &range.min else { return requested.clone() };
    if requested < min {
        return min.clone();
    }
    let Some(step) = range.step.as_ref().map(Quantity::value).filter(|step| *step > 0) else {
        return requested.clone();
    };
    let (from, wanted) = (min.value(), requested.value());
    let steps = wanted.saturating_sub(from).saturating_add(step - 1) / step;
    Quantity::new(from.saturating_add(step.saturating_mul(steps)), Format::BinarySi)
}

fn allowed(amount: &Quantity, policy: &CapacityPolicy) -> bool {
    if policy.default.as_ref() == Some(amount) {
        return true;
    }
    if let Some(range) = &policy.valid_range {
        let below = range.max.as_ref().is_none_or(|max| amount <= max);
        let min = range.min.as_ref().map(Quantity::value).unwrap_or_default();
        let step = range.step.as_ref().map(Quantity::value).filter(|step| *step > 0);
        return below && step.is_none_or(|step| amount.value().saturating_sub(min) % step == 0);
    }
    policy.valid_values.is_empty() || policy.valid_values.contains(amount)
}

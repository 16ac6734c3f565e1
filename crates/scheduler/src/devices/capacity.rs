//! What a request takes of a device's capacity.
//!
//! Invariants:
//! - What a request takes obeys the capacity's policy, or the device is not for it.
//! - Ranges count in thousandths where these hold all their bounds, else in whole units. A request that does not fit in what a range
//!   counts in ends the search: it would fit on no other device either.
//!
//! Source: KEP-5075 (consumable capacity), `consumable_capacity.go` of k8s.io/dynamic-resource-allocation.

use super::usage::{Amounts, Shares};
use kaji_meta::Quantity;
use kaji_runtime::objects::{CapacityPolicy, CapacityRange, Device, DeviceCapacity};

const UNREPRESENTABLE: &str = "capacity request cannot be represented in the device's range arithmetic";

/// What a request takes of a device; `None` if it asks for a capacity that the device does not have, or for an amount that
/// the policy forbids.
///
/// # Errors
/// An amount that cannot be counted, in upstream's words.
pub fn consumption(requested: &Amounts, device: &Device) -> Result<Option<Amounts>, String> {
    if requested.keys().any(|name| !device.capacity.contains_key(name)) {
        return Ok(None);
    }
    let mut taken = Amounts::new();
    for (name, capacity) in &device.capacity {
        let amount = amount(requested.get(name), capacity);
        let amount = amount.and_then(|amount| match amount.sign() {
            ..0 => Err("capacity value is negative".to_owned()),
            _ => Ok(amount),
        });
        taken.insert(name.clone(), amount.map_err(|why| format!("capacity {name:?}: {why}"))?);
    }
    let obeys = |(amount, capacity): (&Quantity, &DeviceCapacity)| {
        capacity.request_policy.as_ref().is_none_or(|policy| allowed(amount, policy))
    };
    let all = taken.values().zip(device.capacity.values()).all(obeys);
    Ok(all.then_some(taken))
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

fn amount(requested: Option<&Quantity>, capacity: &DeviceCapacity) -> Result<Quantity, String> {
    let policy = capacity.request_policy.as_ref();
    let Some(requested) = requested else {
        return Ok(policy.and_then(|p| p.default.clone()).unwrap_or_else(|| capacity.value.clone()));
    };
    match policy {
        Some(CapacityPolicy { valid_range: Some(range @ CapacityRange { min: Some(min), .. }), .. }) => {
            round_up(requested, range, min)
        }
        Some(policy) => {
            Ok(policy.valid_values.iter().find(|valid| requested <= *valid).unwrap_or(requested).clone())
        }
        None => Ok(requested.clone()),
    }
}

/// A quantity in thousandths, if nothing is lost.
fn milli(quantity: &Quantity) -> Option<i64> {
    let milli = quantity.milli_value();
    (Quantity::milli(milli, quantity.format()) == *quantity).then_some(milli)
}

/// Whether a range counts in thousandths.
fn counts_in_milli(range: &CapacityRange) -> bool {
    let mut bounds = [&range.min, &range.max, &range.step].into_iter().flatten();
    let step = range.step.as_ref().is_none_or(|step| step.milli_value() >= 1);
    step && bounds.all(|bound| milli(bound).is_some())
}

/// The least multiple of `step` from `min` on that is no less than `wanted`, which is no less than `min`.
fn next_step(wanted: i64, min: i64, step: i64) -> Option<i64> {
    let (wanted, min, step) = (i128::from(wanted), i128::from(min), i128::from(step));
    i64::try_from(min + (wanted - min + step - 1) / step * step).ok()
}

fn round_up(requested: &Quantity, range: &CapacityRange, min: &Quantity) -> Result<Quantity, String> {
    if requested < min {
        return Ok(min.clone());
    }
    let Some(step) = range.step.as_ref().filter(|step| step.sign() > 0) else { return Ok(requested.clone()) };
    let wrong = |why: &str| format!("{UNREPRESENTABLE}: {why}");
    if counts_in_milli(range) {
        let wanted = milli(requested)
            .ok_or_else(|| wrong(&format!("request {requested} is not a representable milli value")))?;
        let found = next_step(wanted, min.milli_value(), step.milli_value()).ok_or_else(|| {
            wrong(&format!("rounding request {requested} up to the next step passes the milli-value range"))
        })?;
        return Ok(match found % 1000 {
            0 => Quantity::new(found / 1000, step.format()),
            _ => Quantity::milli(found, step.format()),
        });
    }
    if requested.cmp_i64(i64::MAX).is_gt() {
        return Err(wrong(&format!("request {requested} exceeds MaxInt64")));
    }
    let found = next_step(requested.value(), min.value(), step.value())
        .ok_or_else(|| wrong(&format!("rounding request {requested} up to the next step passes MaxInt64")))?;
    Ok(Quantity::new(found, step.format()))
}

fn allowed(amount: &Quantity, policy: &CapacityPolicy) -> bool {
    if policy.default.as_ref() == Some(amount) {
        return true;
    }
    let Some(range) = &policy.valid_range else {
        return policy.valid_values.is_empty() || policy.valid_values.contains(amount);
    };
    if range.max.as_ref().is_some_and(|max| amount > max) {
        return false;
    }
    let Some(step) = range.step.as_ref().filter(|step| step.sign() > 0) else { return true };
    let multiple =
        |amount: i64, min: i64, step: i64| (i128::from(amount) - i128::from(min)) % i128::from(step) == 0;
    let min = range.min.clone().unwrap_or_default();
    match counts_in_milli(range) {
        true => milli(amount).is_some_and(|amount| multiple(amount, min.milli_value(), step.milli_value())),
        false => multiple(amount.value(), min.value(), step.value()),
    }
}

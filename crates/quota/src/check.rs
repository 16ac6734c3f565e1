//! Whether a change fits into the quotas of its namespace.

use crate::{
    Context, Evaluator,
    amounts::{Usage, add, at, compare, increase, print, to_value},
};
use kaji_meta::object;
use serde_json::Value;
use std::{cmp::Ordering, sync::Arc};

/// A write to one object.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// `""` for the object itself.
    pub subresource: &'a str,
    /// The stored object; `None` on create.
    pub old: Option<&'a Value>,
    /// The object to be stored.
    pub new: &'a Value,
}

/// The new `status.used` of every quota that a change uses something of, by index.
///
/// # Errors
/// The reason for refusing it, as upstream words it.
pub fn check(
    quotas: &[Arc<Value>],
    evaluator: &Evaluator,
    change: Change<'_>,
    cx: &Context<'_>,
) -> Result<Vec<(usize, Value)>, String> {
    let mut pertinent = vec![];
    for (index, quota) in quotas.iter().enumerate() {
        let hard = at(quota, &["status", "hard"]);
        let names: Vec<&str> = hard.keys().map(String::as_str).filter(|n| evaluator.tracks(n, cx)).collect();
        if names.is_empty() || !evaluator.in_scopes(quota, change.new) {
            continue;
        }
        let name = object::name(quota);
        if *evaluator == Evaluator::Pods
            && let Some(missing) = crate::pods::missing(change.new, &names)
        {
            return Err(format!("failed quota: {name}: {missing}"));
        }
        let used = at(quota, &["status", "used"]);
        if names.iter().any(|n| !used.contains_key(*n)) {
            return Err(format!("status unknown for quota: {name}, resources: {}", names.join(",")));
        }
        pertinent.push((index, hard, used));
    }
    if pertinent.is_empty() {
        return Ok(vec![]);
    }
    let usage = evaluator.usage(change.new, cx);
    let negative: Vec<&str> = usage.iter().filter(|(_, q)| q.sign() < 0).map(|(n, _)| n.as_str()).collect();
    if !negative.is_empty() {
        return Err(format!("quota usage is negative for resource(s): {}", negative.join(",")));
    }
    let before = change.old.map(|old| evaluator.usage(old, cx));
    let mut charged = vec![];
    for (index, hard, used) in pertinent {
        let counted = change.old.is_some_and(|old| evaluator.in_scopes(&quotas[index], old));
        let mut more = match before.as_ref().filter(|_| counted) {
            Some(before) => increase(&usage, before),
            None => usage.clone(),
        };
        more.retain(|name, q| !q.is_zero() && hard.contains_key(name));
        if more.is_empty() {
            continue;
        }
        let mut after = used.clone();
        add(&mut after, &more);
        if change.subresource != "status" {
            let over = |n: &String| {
                after.get(n).zip(hard.get(n)).is_some_and(|(a, h)| compare(a, h) == Ordering::Greater)
            };
            let exceeded: Vec<&String> = more.keys().filter(|n| over(n)).collect();
            if !exceeded.is_empty() {
                let mask = |u: &Usage| {
                    let kept = u.iter().filter(|(n, _)| exceeded.contains(n));
                    print(&kept.map(|(n, q)| (n.clone(), q.clone())).collect())
                };
                return Err(format!(
                    "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                    object::name(&quotas[index]),
                    mask(&more),
                    mask(&used),
                    mask(&hard)
                ));
            }
        }
        charged.push((index, to_value(&after)));
    }
    Ok(charged)
}

/// What all these objects use of what a quota limits, with nothing for what it limits and none uses.
pub fn total<'a>(
    quota: &Value,
    evaluator: &Evaluator,
    items: impl IntoIterator<Item = &'a Value>,
    cx: &Context<'_>,
) -> Usage {
    let hard = at(quota, &["spec", "hard"]);
    let zero =
        hard.keys().filter(|n| evaluator.tracks(n, cx)).map(|n| (n.clone(), crate::amounts::number(0)));
    let mut sum: Usage = zero.collect();
    for item in items {
        if evaluator.in_scopes(quota, item) {
            let mut usage = evaluator.usage(item, cx);
            usage.retain(|name, _| sum.contains_key(name));
            add(&mut sum, &usage);
        }
    }
    sum
}

#[cfg(test)]
mod tests;

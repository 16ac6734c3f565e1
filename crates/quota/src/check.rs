//! Whether a change fits into the quotas of its namespace.

use crate::{
    Context, Evaluator, Limited,
    amounts::{Usage, add, at, compare, increase, print, to_value},
    scopes,
};
use kaji_meta::object;
use serde_json::Value;
use std::{cmp::Ordering, collections::BTreeSet, sync::Arc};

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

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// 403, for this reason as upstream words it.
    #[error("{0}")]
    Forbidden(String),
    /// No quota has a scope that the configuration demands one for, which upstream answers with a plain error.
    #[error("insufficient quota to match these scopes: [{0}]")]
    UncoveredScopes(String),
}

/// A quota that counts a change.
struct Pertinent {
    index: usize,
    hard: Usage,
    used: Usage,
}

/// The new `status.used` of every quota that a change uses something of, by index.
///
/// # Errors
/// The change does not fit, or lacks a quota that has to cover it.
pub fn check(
    quotas: &[Arc<Value>],
    evaluator: &Evaluator,
    change: Change<'_>,
    cx: &Context<'_>,
    limited: Limited<'_>,
) -> Result<Vec<(usize, Value)>, CheckError> {
    let pertinent = pertinent(quotas, evaluator, change, cx).map_err(CheckError::Forbidden)?;
    if pertinent.is_empty() && limited.is_empty() {
        return Ok(vec![]);
    }
    let usage = evaluator.usage(change.new, cx);
    let negative: Vec<&str> = usage.iter().filter(|(_, q)| q.sign() < 0).map(|(n, _)| n.as_str()).collect();
    if !negative.is_empty() {
        let text = format!("quota usage is negative for resource(s): {}", negative.join(","));
        return Err(CheckError::Forbidden(text));
    }
    let before = change.old.map(|old| evaluator.usage(old, cx));
    let nonzero = |before: Option<&Usage>| {
        let mut more = before.map_or_else(|| usage.clone(), |before| increase(&usage, before));
        more.retain(|_, q| !q.is_zero());
        more
    };
    let delta = |quota: &Pertinent| {
        let counted = change.old.is_some_and(|old| evaluator.in_scopes(&quotas[quota.index], old));
        nonzero(before.as_ref().filter(|_| counted))
    };
    let with_delta = |quota| {
        let more = delta(&quota);
        (quota, more)
    };
    let deltas: Vec<(Pertinent, Usage)> = pertinent.into_iter().map(with_delta).collect();
    let consumes = match deltas.as_slice() {
        [] => !nonzero(before.as_ref()).is_empty(),
        all => all.iter().any(|(_, more)| !more.is_empty()),
    };
    if consumes && !limited.is_empty() {
        let covered = deltas.iter().flat_map(|(quota, _)| tracked(&quota.hard, evaluator, cx));
        check_covered(limited, evaluator, change.new, quotas, (&usage, covered.collect()))?;
    }
    let mut charged = vec![];
    for (quota, mut more) in deltas {
        more.retain(|name, _| quota.hard.contains_key(name));
        if more.is_empty() {
            continue;
        }
        let mut after = quota.used.clone();
        add(&mut after, &more);
        if change.subresource != "status" {
            let name = object::name(&quotas[quota.index]);
            exceeded(name, (&more, &after), &quota).map_err(CheckError::Forbidden)?;
        }
        charged.push((quota.index, to_value(&after)));
    }
    Ok(charged)
}

/// The names in a quota's limits that objects count for.
fn tracked<'a>(
    hard: &'a Usage,
    evaluator: &'a Evaluator,
    cx: &'a Context<'_>,
) -> impl Iterator<Item = &'a str> {
    hard.keys().map(String::as_str).filter(|name| evaluator.tracks(name, cx))
}

/// The quotas that count an object.
fn pertinent(
    quotas: &[Arc<Value>],
    evaluator: &Evaluator,
    change: Change<'_>,
    cx: &Context<'_>,
) -> Result<Vec<Pertinent>, String> {
    let mut pertinent = vec![];
    for (index, quota) in quotas.iter().enumerate() {
        let hard = at(quota, &["status", "hard"]);
        let names: Vec<&str> = tracked(&hard, evaluator, cx).collect();
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
        pertinent.push(Pertinent { index, hard, used });
    }
    Ok(pertinent)
}

/// Checks that what is limited by default has quotas: `usage` by those that count the object, its scopes by any.
fn check_covered(
    limited: Limited<'_>,
    evaluator: &Evaluator,
    item: &Value,
    quotas: &[Arc<Value>],
    (usage, covered): (&Usage, BTreeSet<&str>),
) -> Result<(), CheckError> {
    let names = limited.names(usage);
    let uncovered: Vec<&str> = names.difference(&covered).copied().collect();
    if !uncovered.is_empty() {
        let text = format!("insufficient quota to consume: {}", uncovered.join(","));
        return Err(CheckError::Forbidden(text));
    }
    let covering = quotas.iter().flat_map(|quota| scopes::requirements(quota));
    let covering: Vec<&str> = scopes::matching(evaluator, item, covering).map(|r| r.scope).collect();
    let mut uncovered = limited.scopes(evaluator, item);
    uncovered.retain(|scope| !covering.contains(&scope.scope));
    if uncovered.is_empty() {
        return Ok(());
    }
    let uncovered: Vec<String> = uncovered.iter().map(ToString::to_string).collect();
    Err(CheckError::UncoveredScopes(uncovered.join(" ")))
}

/// Checks that what is used with a change stays within a quota.
fn exceeded(name: &str, (more, after): (&Usage, &Usage), quota: &Pertinent) -> Result<(), String> {
    let over = |n: &String| {
        after.get(n).zip(quota.hard.get(n)).is_some_and(|(a, h)| compare(a, h) == Ordering::Greater)
    };
    let exceeded: Vec<&String> = more.keys().filter(|n| over(n)).collect();
    if exceeded.is_empty() {
        return Ok(());
    }
    let mask = |u: &Usage| {
        let kept = u.iter().filter(|(n, _)| exceeded.contains(n));
        print(&kept.map(|(n, q)| (n.clone(), q.clone())).collect())
    };
    Err(format!(
        "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
        mask(more),
        mask(&quota.used),
        mask(&quota.hard)
    ))
}

/// What all these objects use of what a quota limits, with nothing for what it limits and none uses.
pub fn total<'a>(
    quota: &Value,
    evaluator: &Evaluator,
    items: impl IntoIterator<Item = &'a Value>,
    cx: &Context<'_>,
) -> Usage {
    let hard = at(quota, &["spec", "hard"]);
    let zero = tracked(&hard, evaluator, cx).map(|name| (name.to_owned(), crate::amounts::number(0)));
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

//! No eviction leaves fewer healthy pods than a disruption budget asks for.
//!
//! Upstream's disruption controller writes into the budget how many pods may go, and an eviction counts that down. What is lost
//! otherwise (a node dies, a controller deletes a pod) it observes later: such a pod counts as healthy for a while.
//!
//! Invariants: percentages are rounded up, as upstream's (`minAvailable` of the scale of the pods' controllers, `maxUnavailable` off
//! it); budgets with expressions in their selector are not looked at.

use super::bounds::{Bounds, share_up};
use crate::objects::{BUDGETS, Objects, PODS, at, is_condition_true, is_deleting, uid};
use serde_json::Value;
use std::collections::BTreeMap;

/// Whether the pod's deletion is that of the eviction API.
pub fn is_eviction(pod: &Value) -> bool {
    let conditions = at(pod, &["status", "conditions"]).as_array();
    conditions.is_some_and(|all| all.iter().any(|condition| condition["reason"] == "EvictionByEvictionAPI"))
}

/// What an eviction breaks. `lost` are pods that were available until lately, and were not evicted.
pub fn evicted(
    objects: &Objects,
    (scales, now): (&Bounds, u64),
    key: &str,
    (before, after): (&Value, &Value),
    lost: &[&Value],
) -> Vec<String> {
    if !is_eviction(after) || !is_condition_true(before, "Ready") {
        return vec![];
    }
    let mut broken = vec![];
    for budget in objects.of(BUDGETS) {
        let selector = &budget["spec"]["selector"];
        if selector["matchExpressions"].is_array() || !covers(budget, selector, after) {
            continue;
        }
        let pods = || objects.of(PODS).filter(|pod| covers(budget, selector, pod));
        let least = least(objects, (scales, now), budget, pods().map(|pod| &**pod));
        let is_healthy = |pod: &Value| !is_deleting(pod) && is_condition_true(pod, "Ready");
        let healthy = pods().filter(|pod| is_healthy(pod)).count();
        let lately = lost.iter().filter(|pod| covers(budget, selector, pod)).count();
        let healthy = i64::try_from(healthy + lately).unwrap_or(i64::MAX);
        if healthy < least {
            broken.push(format!(
                "{key}: its eviction leaves {healthy} healthy pods, and the budget asks for {least}"
            ));
        }
    }
    broken
}

/// How many healthy pods a budget asks for: the least of what it did lately, since the scale of controllers changes.
fn least<'a>(
    objects: &Objects,
    (scales, now): (&Bounds, u64),
    budget: &Value,
    pods: impl Iterator<Item = &'a Value>,
) -> i64 {
    let (min, max) = (&budget["spec"]["minAvailable"], &budget["spec"]["maxUnavailable"]);
    if let Some(count) = min.as_i64() {
        return count;
    }
    let roots: BTreeMap<&str, i64> = pods
        .filter_map(|pod| objects.root(pod))
        .map(|(_, root)| (uid(root), scales.min(now, uid(root)).unwrap_or(0)))
        .collect();
    let expected: i64 = roots.values().sum();
    if max.is_null() { share_up(min, expected) } else { (expected - share_up(max, expected)).max(0) }
}

/// Whether a budget's selector of labels matches a pod.
fn covers(budget: &Value, selector: &Value, pod: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object();
    budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
        && wanted.is_some_and(|all| all.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value))
}

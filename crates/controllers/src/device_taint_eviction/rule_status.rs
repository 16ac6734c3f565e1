//! The condition `EvictionInProgress` of a DeviceTaintRule: how many pods it evicts, has evicted, or would evict.
//!
//! Invariants: it is written at once when the rule comes or its spec changes, and then every ten seconds at most; that of a rule
//! without effect once.

use super::taints::{NO_EXECUTE, Taints, newest, results, users};
use crate::shared::conditions::seconds;
use jiff::Timestamp;
use kaji_runtime::{
    PatchKind, Plan, Projection, View, Write,
    client::Target,
    objects::{DeviceTaintRule, DeviceTaintRuleCondition, Pod, ResourceClaim, ResourceSlice},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

const CONDITION: &str = "EvictionInProgress";
/// The shortest time between two writes.
const PERIOD: Duration = Duration::from_secs(10);

/// Brings the condition up to date.
pub fn plan(view: &View, rule: &Arc<DeviceTaintRule>, evicted: u64, now: Timestamp) -> Plan {
    let former = rule.status.conditions.iter().find(|c| *c.kind == *CONDITION);
    let written = former.filter(|c| c.observed_generation == rule.metadata.generation);
    if let Some(at) = written.and_then(|c| c.last_transition_time) {
        // One of the future is by a clock that was wrong.
        let since = Duration::try_from(now.duration_since(at)).unwrap_or(PERIOD);
        if since < PERIOD {
            return Plan::nothing().again_after(PERIOD - since);
        }
    }
    let (holds, reason, message) = condition(view, rule, evicted);
    let plan = if holds { Plan::nothing().again_after(PERIOD) } else { Plan::nothing() };
    let current = DeviceTaintRuleCondition {
        kind: CONDITION.into(),
        status: if holds { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: rule.metadata.generation,
        last_transition_time: former.and_then(|c| c.last_transition_time),
    };
    if former == Some(&current) { plan } else { plan.then(write(rule, &current, now)) }
}

fn write(rule: &DeviceTaintRule, condition: &DeviceTaintRuleCondition, now: Timestamp) -> Write {
    let meta = &rule.metadata;
    let condition = json!({
        "type": condition.kind,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "observedGeneration": condition.observed_generation,
        "lastTransitionTime": seconds(now),
    });
    Write::Patch {
        target: Target::of::<DeviceTaintRule>("", &meta.name).subresource("status"),
        kind: PatchKind::Apply,
        body: json!({
            "apiVersion": DeviceTaintRule::api_version(),
            "kind": DeviceTaintRule::KIND,
            "metadata": {"name": meta.name, "uid": meta.uid},
            "status": {"conditions": [condition]},
        }),
    }
}

/// Whether it holds, its reason and its message.
fn condition(view: &View, rule: &Arc<DeviceTaintRule>, evicted: u64) -> (bool, &'static str, String) {
    let (holds, reason, mut message) = match &*rule.spec.taint.effect {
        NO_EXECUTE => match pending(view, rule) {
            (0, _) if evicted > 0 => (false, "Completed", String::new()),
            (0, _) => (false, "NotStarted", String::new()),
            (pods, namespaces) => {
                let needs = if pods == 1 { "needs" } else { "need" };
                let text = format!(
                    "{} {needs} to be evicted in {}.",
                    counted(pods, "pod", "pods"),
                    counted(namespaces, "namespace", "different namespaces")
                );
                (true, "PodsPendingEviction", text)
            }
        },
        "None" => (false, "NoEffect", preview(view, rule)),
        _ => (false, "OtherEffect", "Eviction only happens for the NoExecute effect.".to_owned()),
    };
    if evicted > 0 {
        let space = if message.is_empty() { "" } else { " " };
        let evicted = usize::try_from(evicted).unwrap_or(usize::MAX);
        message +=
            &format!("{space}{} evicted since starting the controller.", counted(evicted, "pod", "pods"));
    }
    (holds, reason, message)
}

/// `1 pod`, `2 pods`
fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// How many pods a rule evicts, or would, and in how many namespaces.
fn pending(view: &View, rule: &Arc<DeviceTaintRule>) -> (usize, usize) {
    let (pods, claims) = (view.get::<Pod>(), view.get::<ResourceClaim>());
    let taints = Taints::only(rule);
    let concerned = users(&claims, |r| rule.spec.selects(&r.driver, &r.pool, &r.device));
    let goes = |pod: &Arc<Pod>| !pod.metadata.deleting() && taints.of_pod(pod, &claims).is_some();
    let going: Vec<_> = concerned.iter().filter(|key| pods.by_key(key).is_some_and(goes)).collect();
    let namespaces: BTreeSet<&str> = going.iter().map(|key| key.namespace.as_str()).collect();
    (going.len(), namespaces.len())
}

/// What a rule without effect would do.
fn preview(view: &View, rule: &Arc<DeviceTaintRule>) -> String {
    let slices = view.get::<ResourceSlice>();
    let mut pools: BTreeMap<(&str, &str), Vec<&Arc<ResourceSlice>>> = BTreeMap::new();
    for slice in slices.iter() {
        pools.entry((&*slice.spec.driver, &*slice.spec.pool.name)).or_default().push(slice);
    }
    let published: usize = pools
        .into_iter()
        .flat_map(|((driver, pool), slices)| {
            let devices = newest(slices.into_iter()).into_iter().flat_map(|slice| &slice.spec.devices);
            devices.filter(move |device| rule.spec.selects(driver, pool, &device.name))
        })
        .count();
    let claims = view.get::<ResourceClaim>();
    let allocated = claims.iter().flat_map(|claim| results(claim));
    let allocated = allocated.filter(|r| rule.spec.selects(&r.driver, &r.pool, &r.device)).count();
    let (pods, namespaces) = pending(view, rule);
    format!(
        "{} selected. {} selected. {} would be evicted in {} if the effect was NoExecute. This information will not be updated again. \
         Recreate the DeviceTaintRule to trigger an update.",
        counted(published, "published device", "published devices"),
        counted(allocated, "allocated device", "allocated devices"),
        counted(pods, "pod", "pods"),
        counted(namespaces, "namespace", "different namespaces"),
    )
}

//! How a daemon set's pods are replaced: a few at a time, either first deleted or, with a surge, first created.

use super::Daemons;
use kaji_meta::intstr::IntOrString;
use kaji_runtime::objects::{Pod, RollingUpdate};
use serde_json::Value;
use std::sync::Arc;

/// What a rolling update does now.
#[derive(Debug, Default)]
pub struct Rollout {
    /// Pods to be deleted.
    pub delete: Vec<Arc<Pod>>,
    /// Nodes that get another pod.
    pub create: Vec<String>,
}

/// Bounds of the update on so many nodes.
pub struct Bounds {
    surge: usize,
    unavailable: usize,
}

impl Bounds {
    /// By the strategy; something must be able to move.
    pub fn of(strategy: Option<&RollingUpdate>, nodes: usize) -> Self {
        let total = i64::try_from(nodes).unwrap_or(i64::MAX);
        let scaled = |value: Option<&Value>, default: i64| {
            let value = match value.filter(|v| !v.is_null()).and_then(IntOrString::from_value) {
                Some(value) => value.scaled_value(total, true).unwrap_or(0),
                None => default,
            };
            usize::try_from(value).unwrap_or(0)
        };
        let surge = scaled(strategy.map(|s| &s.max_surge), 0);
        let unavailable =
            scaled(strategy.map(|s| &s.max_unavailable), if strategy.is_some() { 0 } else { 1 });
        Bounds { surge, unavailable: if surge == 0 { unavailable.max(1) } else { unavailable } }
    }
}

/// A node's new and old pod.
type Pair<'a> = (Option<&'a Arc<Pod>>, Option<&'a Arc<Pod>>);

/// The new and the old pod of a node; `None` when there are more than one of either.
fn pair<'a>(daemons: &Daemons<'_>, pods: &'a [Arc<Pod>]) -> Option<Pair<'a>> {
    let (mut new, mut old) = (None, None);
    for pod in pods.iter().filter(|p| !p.metadata.deleting()) {
        let place = if daemons.updated(pod) { &mut new } else { &mut old };
        if place.replace(pod).is_some() {
            return None;
        }
    }
    Some((new, old))
}

/// The next step of a rolling update.
pub fn roll(daemons: &Daemons<'_>) -> Rollout {
    let desired = daemons.nodes.iter().filter(|n| n.fit.run).count();
    let strategy = daemons.set.spec.update_strategy.rolling_update.as_ref();
    let bounds = Bounds::of(strategy, desired);
    if bounds.surge == 0 {
        without_surge(daemons, bounds.unavailable)
    } else {
        with_surge(daemons, bounds.surge, desired)
    }
}

fn without_surge(daemons: &Daemons<'_>, most: usize) -> Rollout {
    let (mut unavailable, mut must, mut may) = (0, vec![], vec![]);
    for node in daemons.nodes.iter().filter(|n| n.fit.run || !n.pods.is_empty()) {
        match pair(daemons, &node.pods) {
            // What is one too many, or missing, is put right without the update.
            None | Some((None, None) | (Some(_), Some(_))) => unavailable += 1,
            Some((Some(new), None)) => unavailable += usize::from(!daemons.available(new)),
            Some((None, Some(old))) if !daemons.available(old) => {
                must.push(old.clone());
                unavailable += 1;
            }
            Some((None, Some(old))) => may.push(old.clone()),
        }
    }
    may.truncate(most.saturating_sub(unavailable));
    must.extend(may);
    Rollout { delete: must, create: vec![] }
}

fn with_surge(daemons: &Daemons<'_>, most: usize, desired: usize) -> Rollout {
    let (mut surging, mut available) = (0, 0);
    let (mut must, mut may, mut leaving) = (vec![], vec![], vec![]);
    let mut delete = vec![];
    for node in daemons.nodes.iter().filter(|n| n.fit.run || !n.pods.is_empty()) {
        let Some((new, old)) = pair(daemons, &node.pods) else {
            surging += 1;
            continue;
        };
        available += usize::from(old.or(new).is_some_and(|p| daemons.available(p)));
        match (new, old) {
            (_, None) => {}
            (None, Some(old)) => match (daemons.available(old), node.fit.run) {
                (false, false) => delete.push(old.clone()),
                (true, false) => leaving.push(old.clone()),
                (false, true) => must.push(node.name.clone()),
                (true, true) => may.push(node.name.clone()),
            },
            (Some(new), Some(_)) if !daemons.available(new) => surging += 1,
            (Some(_), Some(old)) => delete.push(old.clone()),
        }
    }
    // Pods on nodes that they no longer belong to go only as others have become available.
    leaving.truncate(available.saturating_sub(desired));
    delete.extend(leaving);
    may.truncate(most.saturating_sub(surging));
    must.extend(may);
    Rollout { delete, create: must }
}

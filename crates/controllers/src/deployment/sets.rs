//! Replica sets as a deployment's plan changes them, and the arithmetic of surge and unavailability.
//!
//! Source: the API reference of `DeploymentSpec.strategy`; the annotations are those that kubectl reads.

use kaji_meta::intstr::IntOrString;
use kaji_runtime::{
    EventRecord, PatchKind, Step, Write,
    client::Target,
    objects::{Deployment, ReplicaSet, Workload},
};
use serde_json::{Map, Value, json};
use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

/// Number of the rollout.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
/// Earlier numbers of a replica set that was rolled back to.
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// `spec.replicas` of the deployment when the replica set was last scaled.
pub const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
/// The same with surge.
pub const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// The revision to go back to: `spec.rollbackTo` of former APIs.
pub const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";
/// Annotations of a deployment that are not its replica sets'.
pub const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED,
    MAX,
    ROLLBACK_TO,
];
/// Longest revision history, in bytes.
const HISTORY_LIMIT: usize = 2000;

/// A deployment's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// `spec.replicas`
    pub wanted: i64,
    /// Pods over that.
    pub surge: i64,
    /// Pods under that.
    pub unavailable: i64,
}

impl Bounds {
    /// Of a deployment. Both bounds are 0 unless it rolls; never are both 0 when it does.
    pub fn of(d: &Deployment) -> Self {
        let wanted = d.replicas();
        if !rolls(d) {
            return Bounds { wanted, surge: 0, unavailable: 0 };
        }
        let scaled = |field: fn(&kaji_runtime::objects::RollingUpdate) -> &Value, up| {
            let value = d.spec.strategy.rolling_update.as_ref().map(field).and_then(IntOrString::from_value);
            value.and_then(|v| v.scaled_value(wanted, up).ok()).unwrap_or(0)
        };
        let surge = scaled(|r| &r.max_surge, true);
        let unavailable = match scaled(|r| &r.max_unavailable, false) {
            // Surge may be out of reach (quota), so something has to be able to move.
            0 if surge == 0 => 1,
            n => n,
        };
        Bounds { wanted, surge, unavailable: unavailable.min(wanted) }
    }

    /// Most pods at any time.
    pub fn most(self) -> i64 {
        self.wanted + self.surge
    }

    /// Fewest available pods at any time.
    pub fn fewest(self) -> i64 {
        self.wanted - self.unavailable
    }
}

/// Whether the strategy is a rolling update.
pub fn rolls(d: &Deployment) -> bool {
    d.spec.strategy.kind == "RollingUpdate"
}

/// A replica set and what the plan makes of it.
#[derive(Clone, Debug)]
pub struct Set {
    /// As seen; for one that is to be created, as it will be, without uid.
    pub seen: Arc<ReplicaSet>,
    /// Planned `spec.replicas`.
    pub replicas: i64,
    /// Planned annotations.
    pub annotations: BTreeMap<String, String>,
    /// Planned `spec.minReadySeconds`.
    pub min_ready_seconds: i64,
    /// Sizes it goes through, first the one seen.
    sizes: Vec<i64>,
}

impl Set {
    /// As it is.
    pub fn new(seen: Arc<ReplicaSet>) -> Self {
        Set {
            replicas: seen.replicas(),
            annotations: BTreeMap::clone(&seen.metadata.annotations),
            min_ready_seconds: seen.spec.min_ready_seconds,
            sizes: vec![seen.replicas()],
            seen,
        }
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.seen.metadata.name
    }

    /// Whether it has desired replicas.
    pub fn active(&self) -> bool {
        self.replicas > 0
    }

    /// Its revision; one that is not a number is `None`.
    pub fn revision(&self) -> Option<i64> {
        self.annotations.get(REVISION).map_or(Some(0), |r| r.parse().ok())
    }

    /// `spec.replicas` of the deployment when this set was last scaled.
    pub fn desired(&self) -> Option<i64> {
        self.count(DESIRED)
    }

    fn count(&self, annotation: &str) -> Option<i64> {
        self.annotations.get(annotation)?.parse::<u32>().ok().filter(|n| *n <= i32::MAX as u32).map(i64::from)
    }

    /// Plans a size. Says whether that is a change; `force` writes the annotations even when it is none.
    pub fn scale(&mut self, size: i64, bounds: Bounds, force: bool) -> bool {
        if size == self.replicas && !force {
            return false;
        }
        self.annotate(bounds);
        let changed = size != self.replicas;
        if changed {
            self.replicas = size;
            self.sizes.push(size);
        }
        changed
    }

    /// Records the deployment's size in annotations.
    pub fn annotate(&mut self, bounds: Bounds) {
        self.annotations.insert(DESIRED.into(), bounds.wanted.to_string());
        self.annotations.insert(MAX.into(), bounds.most().to_string());
    }

    /// Makes it the newest set: the deployment's annotations, and `revision` unless it has a later one.
    pub fn promote(&mut self, d: &Deployment, revision: i64) {
        for (key, value) in &d.metadata.annotations {
            if !NOT_COPIED.contains(&key.as_str()) {
                self.annotations.insert(key.clone(), value.clone());
            }
        }
        let former = self.annotations.get(REVISION).cloned();
        let Ok(number) = former.as_deref().filter(|r| !r.is_empty()).unwrap_or("0").parse::<i64>() else {
            return;
        };
        if number >= revision {
            return;
        }
        self.annotations.insert(REVISION.into(), revision.to_string());
        if let Some(former) = former {
            let history = self.annotations.entry(REVISION_HISTORY.into()).or_default();
            *history = lengthened(history, &former);
        }
    }

    /// The share of a proportional scaling by `to_add` pods, of which `added` are given away already.
    pub fn proportion(&self, d: &Deployment, bounds: Bounds, to_add: i64, added: i64) -> i64 {
        if self.replicas == 0 || to_add == 0 || to_add == added {
            return 0;
        }
        let (fraction, allowed) = (self.fraction(d, bounds), to_add - added);
        if to_add > 0 { fraction.min(allowed) } else { fraction.max(allowed) }
    }

    fn fraction(&self, d: &Deployment, bounds: Bounds) -> i64 {
        if bounds.wanted == 0 {
            return -self.replicas;
        }
        let before = match self.count(MAX) {
            Some(n) if n != 0 => n,
            // The annotation was removed: the current size is the best estimate.
            _ => d.status.replicas,
        };
        if before == 0 {
            return 0;
        }
        // Sizes are 32-bit numbers, so nothing is lost; halves round away from zero.
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        let rounded = ((self.replicas * bounds.most()) as f64 / before as f64).round() as i64;
        rounded - self.replicas
    }

    /// Whether all wanted pods run and are available.
    pub fn saturated(&self, bounds: Bounds) -> bool {
        let desired = self.annotations.get(DESIRED).and_then(|d| d.parse::<i64>().ok());
        self.replicas == bounds.wanted
            && desired == Some(bounds.wanted)
            && self.seen.status.available_replicas == bounds.wanted
    }

    /// The patch that carries the plan out, if it changes anything.
    pub fn step(&self, regarding: &Value) -> Option<Step> {
        let meta = &self.seen.metadata;
        let annotations: Map<String, Value> = self
            .annotations
            .iter()
            .filter(|(k, v)| meta.annotations.get(*k) != Some(v))
            .map(|(k, v)| (k.clone(), v.as_str().into()))
            .collect();
        let mut spec = Map::new();
        if self.replicas != self.seen.replicas() {
            spec.insert("replicas".into(), self.replicas.into());
        }
        if self.min_ready_seconds != self.seen.spec.min_ready_seconds {
            spec.insert("minReadySeconds".into(), self.min_ready_seconds.into());
        }
        if annotations.is_empty() && spec.is_empty() {
            return None;
        }
        let mut metadata = json!({"uid": meta.uid, "resourceVersion": meta.resource_version});
        if !annotations.is_empty() {
            metadata["annotations"] = annotations.into();
        }
        let mut body = json!({"metadata": metadata});
        if !spec.is_empty() {
            body["spec"] = spec.into();
        }
        let target = Target::of::<ReplicaSet>(&meta.namespace, &meta.name);
        let write = Write::Patch { target, kind: PatchKind::Merge, body };
        Some(Step { write, on_success: self.scaling_event(regarding), on_failure: None })
    }

    /// `Scaled up replica set x from 1 to 2`
    pub fn scaling_event(&self, regarding: &Value) -> Option<EventRecord> {
        let (from, to) = (*self.sizes.first()?, self.replicas);
        let direction = match from.cmp(&to) {
            Ordering::Less => "up",
            Ordering::Greater => "down",
            Ordering::Equal => return None,
        };
        let text = format!("Scaled {direction} replica set {} from {from} to {to}", self.name());
        Some(EventRecord::normal(regarding.clone(), "ScalingReplicaSet", text))
    }

    /// Older sets first.
    pub fn by_age(&self, other: &Self) -> Ordering {
        let (a, b) = (&self.seen.metadata, &other.seen.metadata);
        a.creation_timestamp.cmp(&b.creation_timestamp).then_with(|| a.name.cmp(&b.name))
    }

    /// Earlier revisions first.
    pub fn by_revision(&self, other: &Self) -> Ordering {
        match (self.revision(), other.revision()) {
            (Some(a), Some(b)) if a != b => a.cmp(&b),
            _ => self.by_age(other),
        }
    }
}

/// A revision history with one more, without the oldest that do not fit.
fn lengthened(history: &str, revision: &str) -> String {
    if history.is_empty() {
        return revision.to_owned();
    }
    let old: Vec<&str> = history.split(',').collect();
    let mut total = history.len() + revision.len() + 1;
    let mut start = 0;
    while total > HISTORY_LIMIT && start < old.len() {
        total -= old[start].len() + 1;
        start += 1;
    }
    if total > HISTORY_LIMIT {
        return history.to_owned();
    }
    let mut kept = old[start..].to_vec();
    kept.push(revision);
    kept.join(",")
}
